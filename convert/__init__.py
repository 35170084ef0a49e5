"""Run directories from elsewhere and to elsewhere: Hugging Face checkpoints, and surgery on trained models."""
