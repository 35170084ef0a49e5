"""The run directory: config, record, checkpoints and locks."""
