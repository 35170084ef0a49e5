"""Sweeps: expansion of a sweep file into arms, launching, resuming, status, plans."""
