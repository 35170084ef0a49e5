"""What `train.py` is assembled from: budget, schedule, optimizer, step, checkpoints, metrics, the run directory."""
