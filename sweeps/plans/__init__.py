"""Plans: the cost of an arm on a target, before anything is spent."""
