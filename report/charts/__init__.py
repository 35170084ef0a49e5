"""Charts: one file a kind of figure, their shared parts, theme and export."""
