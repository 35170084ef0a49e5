"""Experiments as ml_collections files; `base.py` holds every field, presets change a few."""
