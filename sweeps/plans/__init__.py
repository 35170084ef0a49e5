"""Plans: what an arm costs on a target, before anything is spent."""
