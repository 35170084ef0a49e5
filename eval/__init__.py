"""Measurements of a run directory, one file per question: each writes DIR/eval/NAME.json."""

import configs as configs  # which tells a Python without the packages in a line
