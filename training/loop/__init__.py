"""The training loop: budget, schedule, metrics, validation, packs."""
