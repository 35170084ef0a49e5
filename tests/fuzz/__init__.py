"""Bad input, made from good: `python -m tests.fuzz` (`make fuzz`)."""
