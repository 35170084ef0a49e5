"""The training step: loss, optimizer, mesh and random keys."""
