"""Measurements of a run directory, one file per question: each writes DIR/eval/NAME.json."""
