"""Sweeps at the size of one GPU: `--target=h100:1` plans them, docs/plans.md has the figures."""
