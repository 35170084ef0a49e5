"""Statistics: intervals, aggregates and the share of seeds that solve a task."""
