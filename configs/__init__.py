"""Experiments as ml_collections files; `base.py` holds every field, presets change a few."""

import importlib.util
import sys

if importlib.util.find_spec("ml_collections") is None:
    raise SystemExit(
        f"error: {sys.executable} has not the packages that this needs: `make setup` makes them in .venv; then start "
        "with .venv/bin/python"
    )
