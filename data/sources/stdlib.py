"""The source `stdlib`: the Python standard library's sources, which need no download."""

from ml_collections import ConfigDict

from data import documents
from data.corpora import Corpus
from data.sources import apart, prepared

TRAIN_SHARE = 0.95  # share of the files that train; the rest, about half a megabyte, validates


def open_corpus(data: ConfigDict, vocab_size: int | None) -> Corpus:
    """Opens the source; see `data.sources.open_data`."""
    files, read = documents.stdlib_files(), documents.read_python
    if data.validation_path:
        return apart.open_apart(prepared.whole("stdlib", files, read, data, "data.source = 'stdlib'"), data)
    return prepared.open_prepared("stdlib", files, read, "hash", TRAIN_SHARE, data.cache_dir)
