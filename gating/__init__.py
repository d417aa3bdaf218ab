"""The gating mathematics: posteriors, BBG, FADE, advantages, drawing, pass@k. Pure numpy, no I/O, nothing of ours."""
