"""Faults put into real runs, at random moments for a given time: `make torture MINUTES=30`. See docs/durability.md."""
