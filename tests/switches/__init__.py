"""The switches' table: every position and attention switch against what must hold of it."""
