"""The laboratory: many short runs of the learner on the tiny Countdown model, and what they say of the methods."""
