"""The specification of a sweep: from its file to arms with resolved configs."""
