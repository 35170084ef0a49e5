"""Sweeps as files: which fields vary, over what, with which seeds."""
