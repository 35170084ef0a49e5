"""Charts: one file per kind of figure; shared parts, theme and export."""
