"""Key/value groups at equal parameters."""
