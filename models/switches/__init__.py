"""Switches of attention, one file each; `models/declared/switches.py` declares their parameters and FLOPs."""
