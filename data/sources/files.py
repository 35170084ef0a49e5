"""The source `files`: text, JSON lines, columns or token ids from the files of `data.path`."""

import hashlib
from functools import partial
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from configs.errors import UserError
from data import cache, documents, formats, shards
from data.corpora import FORMAT, Corpus, digest
from data.formats import columns, llmc
from data.shards import TokenCorpus
from data.sources import apart, prepared


def open_corpus(data: ConfigDict, vocab_size: int | None) -> Corpus | TokenCorpus:
    """Opens the source; see `data.sources.open_data`.

    Raises:
        UserError: see there, or a field for token files is set and the files have text.
    """
    data = _saved(data)
    if (result := _open_tokens(data, vocab_size)) is not None:
        return result
    for name in ("vocab_size", "separator"):
        if data[name] is not None:
            raise UserError(f"data.{name} = {data[name]}: applies to token files only, and this run reads text")
    files, read = documents.matching_files(data.path), partial(documents.read_text, field=data.field)
    field = f"data.path = {data.path!r}"
    if data.validation_path:
        return apart.open_apart(prepared.whole("files", files, read, data, field), data)
    try:
        return prepared.open_prepared("files", files, read, data.split, data.train_share, data.cache_dir, data.field)
    except prepared.EmptySplit as error:
        raise UserError(f"{field}: {error}") from error


def _saved(data: ConfigDict) -> ConfigDict:
    """Returns the data config with the splits of a saved DatasetDict in place of its folder.

    `train` trains; `validation`, else `test`, validates if `data.validation_path` is not set.

    Raises:
        UserError: it has no split `train`.
    """
    splits = documents.saved_splits(data.path)
    if splits is None:
        return data
    if "train" not in splits:
        raise UserError(f"data.path = {data.path!r}: has no split 'train'; it has {', '.join(splits) or 'none'}")
    result = ConfigDict(data.to_dict())
    held = next((splits[name] for name in ("validation", "test") if name in splits), "")
    result.path, result.validation_path = splits["train"], data.validation_path or held
    return result


def _open_tokens(data: ConfigDict, vocab_size: int | None) -> TokenCorpus | None:
    """Opens token files; returns None if `data.path` names text."""
    train = _stored_tokens(documents.matching_paths(data.path), data)
    if not any(formats.of_tokens(path, formats.head(path)) for _, path in train):
        return None
    held = documents.matching_paths(data.validation_path, "data.validation_path") if data.validation_path else []
    held = _stored_tokens(held, data)
    return shards.open_tokens(
        train,
        held,
        train_share=data.train_share,
        cache_dir=data.cache_dir,
        vocab_size=data.vocab_size,
        model_vocab_size=vocab_size,
        separator=data.separator,
    )


def _stored_tokens(files: list[tuple[str, Path]], data: ConfigDict) -> list[tuple[str, Path]]:
    """Returns the files, with those whose column has token ids replaced by token files in the cache."""
    results = []
    for name, path in files:
        of_columns = formats.of_columns(formats.head(path))
        if of_columns is None or not columns.holds_tokens(of_columns, path, data.field):
            results.append((name, path))
            continue
        with path.open("rb") as file:
            key = digest([FORMAT, "column", data.field, hashlib.file_digest(file, "sha256").hexdigest()])
        folder = cache.private_folder(data.cache_dir, "tokens") / f"column-{key[:20]}"
        cache.entry(folder, partial(_store_tokens, source=path, of_columns=of_columns, field=data.field))
        results.append((name, folder / "tokens.bin"))
    return results


def _store_tokens(folder: Path, source: Path, of_columns: formats.Columns, field: str) -> None:
    """Writes the ids of a column as one shard of llm.c's uint32."""
    count = 0
    with (folder / "tokens.bin").open("wb") as file:
        file.write(bytes(llmc.HEADER))
        for ids in columns.tokens(of_columns, source, field):
            if ids.size and (ids.min() < 0 or ids.max() >= 2**32):
                raise UserError(f"{source}: column {field!r} has an id outside 0 .. 2**32 - 1")
            count += len(ids)
            file.write(ids.astype("<u4").tobytes())
        if count >= 2**31:
            raise UserError(f"{source}: column {field!r} has {count:,} ids; the maximum per file is 2**31 - 1")
        file.seek(0)
        file.write(np.array([20240801, 7, count], "<i4").tobytes())
