"""Text and synthetic rows for training and evaluation.

Data flow: `sources` (open a corpus: documents in two splits, stored as a TFDS data set in the cache) ->
`tokenizers` -> `streams` (each split as one memory-mapped array of tokens) -> `packing`, `mqar` and `retrieval` (rows
of tokens) -> `pipeline` (batches for training, through Grain, and for validation). `identity` has the fingerprint.
"""

import configs as configs  # a clear error if the packages are not installed
from data.identity import fingerprint

__all__ = ["fingerprint"]
