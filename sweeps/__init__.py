"""Sweeps: expansion of a sweep file into arms, launching, resuming, status, plans."""

import configs as configs  # a clear error if the packages are not installed
