"""Training: the loop, its state, checkpoints, and comparisons of runs."""
