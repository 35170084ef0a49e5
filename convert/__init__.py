"""Run directories from elsewhere and to elsewhere: Hugging Face checkpoints, and surgery on trained models."""

import configs as configs  # which tells a Python without the packages in a line
