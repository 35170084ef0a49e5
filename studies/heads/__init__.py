"""Head counts at a fixed width."""
