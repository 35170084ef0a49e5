"""Corpora: documents in a train and a validation split, read from ArrayRecord files through TFDS, without TensorFlow.

The built-in corpus and users' own files are written once as a TFDS data set in the cache, under a key that covers their
content, so that a changed file is another entry and stale data cannot be read; TFDS data sets are read where they lie.
"""

import hashlib
import json
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs.errors import UserError
from data import cache, documents, tfds_sets
from data.documents import Document, SourceFile
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

    def split(self, name: str) -> Texts:
        """Returns the documents of `train` or `validation`."""
        return self.train if name == "train" else self.validation


def open_corpus(data: ConfigDict) -> Corpus:
    """Opens the corpus that `config.data` names, prepared first where the cache does not hold it yet.

    Raises:
        UserError: no such files or data set, unreadable text, or a split that would be empty.
    """
    if data.path:
        return _open_files(data)
    if data.tfds.name:
        return _open_tfds(data)
    read = documents.read_python
    return _open_prepared("stdlib", documents.stdlib_files(), read, "hash", STDLIB_TRAIN_SHARE, data.cache_dir)


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
    plan = _plan(files, read, split, train_share)
    tally = {name: {"documents": 0, "text_bytes": 0} for name in ("train", "validation")}
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
    kind: str  # hash or first
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
    found = tfds_sets.find(data.tfds.name, data.tfds.data_dir, data.field)
    splits = {"train": data.tfds.train_split, "validation": data.tfds.validation_split}
    texts = {name: found.texts(split) for name, split in splits.items()}
    _refuse_overlap(found, splits)
    key = digest([FORMAT, "tfds", found.label, splits, data.field, found.file_hashes(splits.values())])
    folder = cache.private_folder(data.cache_dir, "corpora") / f"tfds-{key[:20]}"
    cache.entry(folder, lambda work: _describe_tfds(work, found, splits, texts))
    manifest = json.loads((folder / "manifest.json").read_text())
    _tell_leak(manifest)
    return Corpus(key, texts["train"], texts["validation"], manifest, data.cache_dir)


def _refuse_overlap(found: tfds_sets.Found, splits: dict[str, str]) -> None:
    """Refuses splits that have records in common: a loss on them would be one on trained text.

    Raises:
        UserError: naming both splits and the number of records.
    """
    shared = found.shared_records(splits["train"], splits["validation"])
    if shared:
        raise UserError(
            f"data.tfds.validation_split = {splits['validation']!r}: {shared:,} of its records are in train_split = "
            f"{splits['train']!r} too; the two must not overlap, as train[:90%] and train[90%:] do not"
        )


def _tell_leak(manifest: dict[str, Any]) -> None:
    """Warns of validation documents that are trained on, which TFDS data sets are read with as they are."""
    leaked, of = manifest.get("validation_in_train", 0), manifest["documents"]["validation"]
    if leaked:
        told = f"{leaked:,} of the {of:,} validation documents are in the train split too, word for word"
        print(f"warning: {manifest['source']}: {told}", file=sys.stderr)


def _describe_tfds(folder: Path, found: tfds_sets.Found, splits: dict[str, str], texts: dict[str, Texts]) -> None:
    """Reads the data set once for the counts and hashes of its manifest.

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
            raise UserError(f"data.tfds.{name}_split = {splits[name]!r}: holds no text")
        content[name], counts[name] = of_split.hexdigest(), size
    train, validation = (np.frombuffer(hashes[name], np.uint64) for name in ("train", "validation"))
    leaked = int(np.isin(validation, train).sum())
    if leaked == len(validation):
        raise UserError(
            f"data.tfds.validation_split = {splits['validation']!r}: all its documents are in train_split = "
            f"{splits['train']!r} too, word for word"
        )
    manifest = {
        "source": f"tfds:{found.label}",
        "files": len(found.file_hashes(splits.values())),
        "bytes": sum(counts.values()),
        "sha256": total.hexdigest(),
        "documents": {name: len(split_texts) for name, split_texts in texts.items()},
        "text_bytes": counts,
        "documents_sha256": digest(content),
        "split": splits,
        "duplicates": len(train) + len(validation) - len(np.unique(np.concatenate([train, validation]))),
        "skipped": 0,
    }
    if leaked:
        manifest["validation_in_train"] = leaked
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
