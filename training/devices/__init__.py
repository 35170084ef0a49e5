"""Devices: what chips can do, what a run needs of their memory, and compiling for those that are not here."""
