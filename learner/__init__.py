"""The learner: draws groups by posterior and mass, corrects for age, steps through DeepSpeed, publishes weights."""
