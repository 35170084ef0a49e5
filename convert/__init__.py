"""Conversion of run directories: Hugging Face checkpoints in and out, and surgery on trained models."""

import configs as configs  # a clear error if the packages are not installed
