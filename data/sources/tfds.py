"""The source `tfds`: a prepared TFDS data set, read in place."""

from ml_collections import ConfigDict

from configs.errors import UserError
from data import tfds_sets
from data.corpora import FORMAT, Corpus, digest
from data.sources import apart
from data.sources.prepared import Whole


def open_corpus(data: ConfigDict, vocab_size: int | None) -> Corpus:
    """Opens the source; see `data.sources.open_data`.

    Raises:
        UserError: see there, or the two splits have records in common.
    """
    result = tfds_sets.find(data.tfds.name, data.tfds.data_dir, data.field)
    if data.validation_path:
        return apart.open_apart(_whole(result, data), data)
    splits = {"train": data.tfds.train_split, "validation": data.tfds.validation_split}
    texts = {name: result.texts(split) for name, split in splits.items()}
    _refuse_overlap(result, splits)
    hashes = result.file_hashes(splits.values())
    key = digest([FORMAT, "tfds", result.label, splits, data.field, hashes])
    fields = {name: f"data.tfds.{name}_split = {split!r}" for name, split in splits.items()}
    about = {"source": f"tfds:{result.label}", "files": len(hashes)}
    return apart.described(f"tfds-{key[:20]}", key, about, splits, texts, fields, data)


def _whole(result: tfds_sets.Found, data: ConfigDict) -> Whole:
    split = data.tfds.train_split
    texts, hashes = result.texts(split), result.file_hashes([split])
    key = digest([FORMAT, "tfds", result.label, split, data.field, hashes])
    return Whole(key, texts, f"tfds:{result.label}", len(hashes), f"data.tfds.train_split = {split!r}")


def _refuse_overlap(result: tfds_sets.Found, splits: dict[str, str]) -> None:
    """Refuses splits that have records in common: the validation loss would include trained text.

    Raises:
        UserError: with both splits and the number of common records.
    """
    shared = result.shared_records(splits["train"], splits["validation"])
    if shared:
        raise UserError(
            f"data.tfds.validation_split = {splits['validation']!r}: {shared:,} of its records are in train_split = "
            f"{splits['train']!r}, too; they must not overlap (such as train[:90%] and train[90%:])"
        )
