"""Claims: what may be compared, what is resolved, and its wording."""
