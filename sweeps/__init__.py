"""Sweeps: expansion of a sweep file into arms, launching, resuming, status, plans."""

import configs as configs  # which tells a Python without the packages in a line
