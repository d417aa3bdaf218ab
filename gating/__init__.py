"""The gating mathematics: posteriors, BBG, FADE, advantages, drawing, pass@k. Pure numpy, no I/O, imports nothing of ours."""
