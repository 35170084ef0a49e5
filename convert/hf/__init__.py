"""Hugging Face checkpoints on disk: settings of config.json against our fields, tensors against our parameters."""
