"""Reading: sweep and run directories as plain objects and tidy frames."""
