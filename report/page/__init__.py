"""The page and the tables."""
