"""Text and synthetic rows for training and evaluation.

The way of the data: `sources` (open a corpus: documents in two splits, kept as a TFDS data set in the cache) ->
`tokenizers` -> `streams` (each split as one memory-mapped array of tokens) -> `packing`, `mqar` and `retrieval` (rows
of tokens) -> `pipeline` (batches for training, through Grain, and for validation). `identity` names what was read.
"""

import configs as configs  # which tells a Python without the packages in a line
from data.identity import fingerprint

__all__ = ["fingerprint"]
