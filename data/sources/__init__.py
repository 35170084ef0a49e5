"""Sources of text. A source is one file here with `open_corpus(data, vocab_size)` and a line of
`configs.rules.sources.SOURCES`, which declares what the config must know of it.
"""

import importlib

from ml_collections import ConfigDict

from configs.errors import UserError, nearest
from configs.rules import sources
from data.corpora import Opened


def open_data(data: ConfigDict, vocab_size: int | None = None) -> Opened:
    """Opens the corpus that `config.data` names, preparing it if it is not in the cache.

    Args:
        data: of a resolved config.
        vocab_size: of the model, if known; the ids of token files must be below it.

    Raises:
        UserError: an unknown source; no such files or data set, unreadable text or tokens, or an empty split; or from
            the source's `open_corpus`.
    """
    name = sources.source(data)
    if name not in sources.SOURCES:
        raise UserError(f"data.source = {name!r}: is not a source of text{nearest(name, sources.SOURCES)}")
    result: Opened = importlib.import_module(f"data.sources.{name}").open_corpus(data, vocab_size)
    return result
