"""Corpora: documents in a train and a validation split, read from ArrayRecord files through TFDS, without TensorFlow.

The built-in corpus and users' own files are written once as a TFDS data set in the cache, under a key that covers their
content, so that a changed file is another entry and stale data cannot be read; TFDS data sets are read where they lie.
"""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from ml_collections import ConfigDict

from configs.errors import UserError
from data import cache, documents, formats, shards
from data.documents import Document, SourceFile
from data.formats import columns, llmc
from data.shards import TokenCorpus

if TYPE_CHECKING:  # TFDS is imported where a corpus is opened: programs are built and measured without it
    from data import tfds_sets
    from data.tfds_sets import Texts

# Raised when the same files would be prepared into something else.
FORMAT = 2
# Of the built-in corpus, by files; the rest, about half a megabyte, validates.
STDLIB_TRAIN_SHARE = 0.95
LISTED = 16  # files named one by one in a fingerprint; above, their count and common hash say it


@dataclass(frozen=True)
class Corpus:
    """Documents in two splits, with what identifies them.

    `key` names the content (equal content gives an equal key on every machine); `fingerprint` holds `source`, `files`,
    `bytes` and `sha256` of the files one after the other (for one file: what `sha256sum` prints), `documents` and
    `text_bytes` by split, `documents_sha256` over every document's split, name and text, how it was split, how many
    `duplicates` (left out of files, only counted in TFDS data sets) and how many empty or undecodable documents
    (`skipped`, left out) there were, and a `listing` of the files if few. `validation_in_train` is there where a TFDS
    data set has validation documents that are training documents too: how many.
    """

    key: str
    train: Texts
    validation: Texts
    fingerprint: dict[str, Any]
    cache_dir: str
    holds_text: ClassVar[bool] = True

    def split(self, name: str) -> Texts:
        """Returns the documents of `train` or `validation`."""
        return self.train if name == "train" else self.validation


def open_corpus(data: ConfigDict, vocab_size: int | None = None) -> Corpus | TokenCorpus:
    """Opens the corpus that `config.data` names, prepared first where the cache does not hold it yet.

    Args:
        data: of a resolved config.
        vocab_size: of the model, where it is known, which the ids of token files must be below.

    Raises:
        UserError: no such files or data set, unreadable text or tokens, or a split that would be empty.
    """
    data = _saved(data)
    if data.path and (result := _open_tokens(data, vocab_size)) is not None:
        return result
    for name in ("vocab_size", "separator"):
        if data[name] is not None:
            raise UserError(f"data.{name} = {data[name]}: is of token files, and what this run reads is text")
    if data.validation_path:
        return _open_apart(data)
    if data.path:
        return _open_files(data)
    if data.tfds.name:
        return _open_tfds(data)
    read = documents.read_python
    return _open_prepared("stdlib", documents.stdlib_files(), read, "hash", STDLIB_TRAIN_SHARE, data.cache_dir)


def _saved(data: ConfigDict) -> ConfigDict:
    """Returns the data with the splits of a DatasetDict that `datasets` saved in place of its folder.

    `train` trains; `validation`, else `test`, validates where `data.validation_path` names nothing.

    Raises:
        UserError: it has no split `train`.
    """
    splits = documents.saved_splits(data.path) if data.path else None
    if splits is None:
        return data
    if "train" not in splits:
        raise UserError(f"data.path = {data.path!r}: has no split 'train'; it has {', '.join(splits) or 'none'}")
    result = ConfigDict(data.to_dict())
    held = next((splits[name] for name in ("validation", "test") if name in splits), "")
    result.path, result.validation_path = splits["train"], data.validation_path or held
    return result


def _open_tokens(data: ConfigDict, vocab_size: int | None) -> TokenCorpus | None:
    """Opens token files; returns None where `data.path` names text."""
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
    """Returns files with those whose column holds token ids replaced by token files in the cache."""
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
                raise UserError(f"{source}: column {field!r} holds an id outside 0 .. 2**32 - 1")
            count += len(ids)
            file.write(ids.astype("<u4").tobytes())
        if count >= 2**31:
            raise UserError(f"{source}: column {field!r} holds {count:,} ids; a file may hold 2**31 - 1")
        file.seek(0)
        file.write(np.array([20240801, 7, count], "<i4").tobytes())


def _open_files(data: ConfigDict) -> Corpus:
    read = partial(documents.read_text, field=data.field)
    files = documents.matching_files(data.path)
    try:
        return _open_prepared("files", files, read, data.split, data.train_share, data.cache_dir, data.field)
    except EmptySplit as error:
        raise UserError(f"data.path = {data.path!r}: {error}") from error


class EmptySplit(UserError):
    """The files hold no text, or too little for two splits."""


def _open_prepared(
    source: str,
    files: Sequence[SourceFile],
    read: Callable[[SourceFile], Iterable[Document]],
    split: str,
    train_share: float,
    cache_dir: str,
    *settings: str,
) -> Corpus:
    from data import tfds_sets

    identity = [[file.name, file.size, file.sha256] for file in files]
    key = digest([FORMAT, source, split, train_share, settings, identity])
    folder = cache.private_folder(cache_dir, "corpora") / f"{source}-{key[:20]}"
    cache.entry(folder, lambda work: _prepare(work, source, files, read, split, train_share))
    manifest = json.loads((folder / "manifest.json").read_text())
    if len(manifest["listing"]) > LISTED:
        del manifest["listing"]
    train, validation = tfds_sets.read_prepared(folder)
    return Corpus(key, train, validation, manifest, cache_dir)


def digest(value: Any) -> str:
    """Returns the sha256 of a JSON-able value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _prepare(
    folder: Path,
    source: str,
    files: Sequence[SourceFile],
    read: Callable[[SourceFile], Iterable[Document]],
    split: str,
    train_share: float,
) -> None:
    """Writes the TFDS data set and `manifest.json`; two passes, so that no more than one file is in memory."""
    from data import tfds_sets

    plan = _plan(files, read, split, train_share)
    names = ("train",) if split == "whole" else ("train", "validation")
    tally = {name: {"documents": 0, "text_bytes": 0} for name in names}
    content = {name: hashlib.sha256() for name in tally}

    def generate(name: str) -> Iterator[Document]:
        for file in files:
            for document in read(file):
                # No entry: a duplicate. Before the cut the text trains, after it it validates.
                cut = plan.cuts.get(document.name)
                text = "" if cut is None else document.text[:cut] if name == "train" else document.text[cut:]
                if text:
                    encoded = text.encode()
                    tally[name]["documents"] += 1
                    tally[name]["text_bytes"] += len(encoded)
                    content[name].update(f"{document.name}\0{len(encoded)}\0".encode() + encoded)
                    yield Document(document.name, text)

    tfds_sets.write(folder, {name: partial(generate, name) for name in tally})
    manifest = {
        "source": source,
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "sha256": _sha256_of_all(files),
        "documents": {name: counts["documents"] for name, counts in tally.items()},
        "text_bytes": {name: counts["text_bytes"] for name, counts in tally.items()},
        "documents_sha256": digest({name: content[name].hexdigest() for name in content}),
        "split": {"kind": plan.kind, "train_share": train_share},
        "duplicates": plan.duplicates,
        "skipped": plan.skipped,
        "listing": [{"name": file.name, "bytes": file.size, "sha256": file.sha256} for file in files],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


@dataclass
class _Plan:
    kind: str  # hash, first, or whole: all of it is one split
    cuts: dict[str, int]  # by document: how many of its characters train
    duplicates: int
    skipped: int  # files that gave no document


def _plan(
    files: Sequence[SourceFile], read: Callable[[SourceFile], Iterable[Document]], split: str, train_share: float
) -> _Plan:
    """Decides what trains and what validates.

    Raises:
        EmptySplit: nothing is left for one of the two.
    """
    lengths: dict[str, int] = {}
    seen: set[bytes] = set()
    duplicates = skipped = 0
    for file in files:
        empty = True
        for document in read(file):
            empty = False
            content = hashlib.sha256(document.text.encode()).digest()
            if content in seen:
                duplicates += 1
                continue
            seen.add(content)
            lengths[document.name] = len(document.text)
        skipped += empty
    total = sum(lengths.values())
    if not total:
        raise EmptySplit(f"{len(files)} files hold no text" if len(files) > 1 else "the file holds no text")
    if split == "whole":
        return _Plan("whole", lengths, duplicates, skipped)
    if split == "hash" and len(lengths) > 1:
        trains = documents.split_by_hash(list(lengths), train_share)
        cuts = {name: lengths[name] if train else 0 for name, train in zip(lengths, trains, strict=True)}
        return _Plan("hash", cuts, duplicates, skipped)
    train = int(train_share * total)
    if not 0 < train < total:
        name = "train" if train == 0 else "validation"
        raise EmptySplit(
            f"the {name} split is empty (train_share = {train_share} of {total} characters); give more text"
        )
    cuts, before = {}, 0
    for name, length in lengths.items():
        cuts[name] = min(max(train - before, 0), length)
        before += length
    return _Plan("first", cuts, duplicates, skipped)


def _sha256_of_all(files: Sequence[SourceFile]) -> str:
    if len(files) == 1:
        return files[0].sha256
    total = hashlib.sha256()
    for file in files:
        total.update(file.path.read_bytes())
    return total.hexdigest()


def _open_tfds(data: ConfigDict) -> Corpus:
    from data import tfds_sets

    result = tfds_sets.find(data.tfds.name, data.tfds.data_dir, data.field)
    splits = {"train": data.tfds.train_split, "validation": data.tfds.validation_split}
    texts = {name: result.texts(split) for name, split in splits.items()}
    _refuse_overlap(result, splits)
    hashes = result.file_hashes(splits.values())
    key = digest([FORMAT, "tfds", result.label, splits, data.field, hashes])
    folder = cache.private_folder(data.cache_dir, "corpora") / f"tfds-{key[:20]}"
    fields = {name: f"data.tfds.{name}_split = {split!r}" for name, split in splits.items()}
    about = {"source": f"tfds:{result.label}", "files": len(hashes)}
    cache.entry(folder, lambda work: _describe(work, about, splits, texts, fields))
    return _described(key, folder, texts, data, fields)


def _described(key: str, folder: Path, texts: dict[str, Texts], data: ConfigDict, fields: dict[str, str]) -> Corpus:
    """Returns a corpus of a `_describe`d manifest; tells of validation documents that train, or refuses them."""
    manifest = json.loads((folder / "manifest.json").read_text())
    _tell_leak(manifest)
    leaked, of = manifest.get("validation_in_train", 0), manifest["documents"]["validation"]
    most = data.validation_in_train
    if leaked > most * of:
        raise UserError(
            f"{fields['validation']}: {leaked:,} of its {of:,} documents are in {_short(fields['train'])} too, "
            f"word for word, and data.validation_in_train = {most:g} allows {most:.0%}"
        )
    return Corpus(key, texts["train"], texts["validation"], manifest, data.cache_dir)


def _short(field: str) -> str:
    return field.removeprefix("data.tfds.")


def _open_apart(data: ConfigDict) -> Corpus:
    """Opens a corpus whose validation documents are those of `data.validation_path`, whatever trains."""
    from data import tfds_sets

    read, where = partial(documents.read_text, field=data.field), data.validation_path
    texts, keys, manifests = {}, {}, {}
    about: dict[str, Any]
    held = documents.matching_files(where, "data.validation_path")
    texts["validation"], manifests["validation"], keys["validation"] = _whole("files", held, read, data)
    fields = {"validation": f"data.validation_path = {where!r}"}
    if data.tfds.name:
        result = tfds_sets.find(data.tfds.name, data.tfds.data_dir, data.field)
        texts["train"] = result.texts(data.tfds.train_split)
        hashes = result.file_hashes([data.tfds.train_split])
        keys["train"] = digest([FORMAT, "tfds", result.label, data.tfds.train_split, data.field, hashes])
        fields["train"] = f"data.tfds.train_split = {data.tfds.train_split!r}"
        about = {"source": f"tfds:{result.label}", "files": len(hashes)}
    else:
        if data.path:
            whole = _whole("files", documents.matching_files(data.path), read, data)
            fields["train"] = f"data.path = {data.path!r}"
        else:
            whole = _whole("stdlib", documents.stdlib_files(), documents.read_python, data)
            fields["train"] = "data.source = 'stdlib'"
        texts["train"], manifests["train"], keys["train"] = whole
        about = {name: manifests["train"][name] for name in ("source", "files")}
    about["files"] += len(held)
    key = digest([FORMAT, "apart", keys["train"], keys["validation"]])
    folder = cache.private_folder(data.cache_dir, "corpora") / f"apart-{key[:20]}"
    splits = {"kind": "validation_path"}
    left_out = {name: sum(one[name] for one in manifests.values()) for name in ("duplicates", "skipped")}
    cache.entry(folder, lambda work: _describe(work, about, splits, texts, fields, left_out))
    return _described(key, folder, texts, data, fields)


def _whole(
    source: str, files: Sequence[SourceFile], read: Callable[[SourceFile], Iterable[Document]], data: ConfigDict
) -> tuple[Texts, dict[str, Any], str]:
    """Returns (documents, manifest, key) of files that all go to one split."""
    from data import tfds_sets

    identity = [[file.name, file.size, file.sha256] for file in files]
    key = digest([FORMAT, source, "whole", data.field, identity])
    folder = cache.private_folder(data.cache_dir, "corpora") / f"{source}-{key[:20]}"
    try:
        cache.entry(folder, lambda work: _prepare(work, source, files, read, "whole", 1.0))
    except EmptySplit as error:
        raise UserError(f"{files[0].path.parent}: {error}") from error
    manifest = json.loads((folder / "manifest.json").read_text())
    return tfds_sets.read_prepared(folder, ("train",))[0], manifest, key


def _refuse_overlap(result: tfds_sets.Found, splits: dict[str, str]) -> None:
    """Refuses splits that have records in common: a loss on them would be one on trained text.

    Raises:
        UserError: naming both splits and the number of records.
    """
    shared = result.shared_records(splits["train"], splits["validation"])
    if shared:
        raise UserError(
            f"data.tfds.validation_split = {splits['validation']!r}: {shared:,} of its records are in train_split = "
            f"{splits['train']!r} too; the two must not overlap, as train[:90%] and train[90%:] do not"
        )


def _tell_leak(manifest: dict[str, Any]) -> None:
    """Warns of validation documents that are trained on, which TFDS data sets are read with as they are."""
    leaked, of = manifest.get("validation_in_train", 0), manifest["documents"]["validation"]
    if leaked:
        message = f"{leaked:,} of the {of:,} validation documents are in the train split too, word for word"
        print(f"warning: {manifest['source']}: {message}", file=sys.stderr)


def _describe(
    folder: Path,
    about: dict[str, Any],
    splits: dict[str, str],
    texts: dict[str, Texts],
    fields: dict[str, str],
    left_out: Mapping[str, int] = MappingProxyType({"duplicates": 0, "skipped": 0}),
) -> None:
    """Reads both splits once for the counts and hashes of their manifest.

    Args:
        folder: gets the manifest.
        about: `source` and `files`.
        splits: what the manifest says of the split.
        texts: by split.
        fields: what names each split in the config, for messages.
        left_out: documents that were left out before: duplicates, and empty ones.

    Raises:
        UserError: a split holds no text, or every validation document is a training document.
    """
    total = hashlib.sha256()
    content, counts = {}, {}
    hashes = {name: array("Q") for name in texts}  # 8 bytes a document, since there may be many millions
    for name, split_texts in texts.items():
        of_split, size = hashlib.sha256(), 0
        for text in split_texts:
            encoded = text.encode()
            size += len(encoded)
            total.update(encoded)
            of_split.update(f"{len(encoded)}\0".encode() + encoded)
            if encoded:
                hashes[name].append(int.from_bytes(hashlib.sha256(encoded).digest()[:8]))
        if not size:
            raise UserError(f"{fields[name]}: holds no text")
        content[name], counts[name] = of_split.hexdigest(), size
    train, validation = (np.frombuffer(hashes[name], np.uint64) for name in ("train", "validation"))
    leaked = int(np.isin(validation, train).sum())
    if leaked == len(validation):
        raise UserError(
            f"{fields['validation']}: all its documents are in {_short(fields['train'])} too, word for word"
        )
    manifest = {
        **about,
        "bytes": sum(counts.values()),
        "sha256": total.hexdigest(),
        "documents": {name: len(split_texts) for name, split_texts in texts.items()},
        "text_bytes": counts,
        "documents_sha256": digest(content),
        "split": splits,
        "duplicates": len(train)
        + len(validation)
        - len(np.unique(np.concatenate([train, validation])))
        + left_out["duplicates"],
        "skipped": left_out["skipped"],
    }
    if leaked:
        manifest["validation_in_train"] = leaked
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
