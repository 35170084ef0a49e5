"""Measurements of a run directory, one file per question: each writes DIR/eval/NAME.json."""

import configs as configs  # a clear error if the packages are not installed
