"""Claims: what may be compared, what is resolved, and how it is worded."""
