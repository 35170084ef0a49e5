"""Published comparisons, run again: protocol, sweep files, committed results, verdicts. docs/studies.md is built here.

A study is a folder: `protocol.md` (written before its runs), `study.py` (what is compared, declared with
studies/spec.py), its sweep files, and `results.json` once it has been run. `python -m studies.build` makes the pages
and figures of docs/ from those alone; `make study NAME=heads` runs a study again.
"""

NAMES = ("heads", "rope_scaling", "kv_groups", "positions", "recall")  # in the order of docs/studies.md
