"""Two splits of separate texts: a manifest in the cache describes them, and counts documents that are in both."""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_collections import ConfigDict

from configs.errors import UserError
from data import cache, documents
from data.corpora import FORMAT, Corpus, digest
from data.sources import prepared
from data.sources.prepared import Whole

if TYPE_CHECKING:
    from data.tfds_sets import Texts


def open_apart(train: Whole, data: ConfigDict) -> Corpus:
    """Opens a corpus whose validation documents come from `data.validation_path`, whatever trains.

    Raises:
        UserError: no such files, or from `described`.
    """
    where = data.validation_path
    held = documents.matching_files(where, "data.validation_path")
    read = partial(documents.read_text, field=data.field)
    validation = prepared.whole("files", held, read, data, f"data.validation_path = {where!r}")
    both = {"validation": validation, "train": train}  # in this order for `sha256` of fingerprints
    key = digest([FORMAT, "apart", train.key, validation.key])
    about = {"source": train.source, "files": train.files + validation.files}
    texts, fields = ({name: getattr(one, part) for name, one in both.items()} for part in ("texts", "field"))
    left_out = {name: sum(getattr(one, name) for one in both.values()) for name in ("duplicates", "skipped")}
    splits = {"kind": "validation_path"}
    return described(f"apart-{key[:20]}", key, about, splits, texts, fields, data, **left_out)


def described(
    entry: str,
    key: str,
    about: dict[str, Any],
    splits: dict[str, str],
    texts: dict[str, Texts],
    fields: dict[str, str],
    data: ConfigDict,
    *,
    duplicates: int = 0,
    skipped: int = 0,
) -> Corpus:
    """Returns a corpus of two splits of texts; warns of validation documents that train, or refuses them.

    Args:
        entry: of the cache, for the manifest.
        key: see `Corpus`.
        about: `source` and `files`.
        splits: the manifest's description of the split.
        texts: by split.
        fields: the config field of each split, for messages.
        data: of a resolved config.
        duplicates: number of documents already left out.
        skipped: number of empty documents already left out.

    Raises:
        UserError: a split has no text, or more validation documents train than `data.validation_in_train` allows.
    """
    folder = cache.private_folder(data.cache_dir, "corpora") / entry
    cache.entry(folder, lambda work: _describe(work, about, splits, texts, fields, duplicates, skipped))
    manifest = json.loads((folder / "manifest.json").read_text())
    _warn_of_shared(manifest)
    shared, of = manifest.get("validation_in_train", 0), manifest["documents"]["validation"]
    most = data.validation_in_train
    if shared > most * of:
        raise UserError(
            f"{fields['validation']}: {shared:,} of its {of:,} documents are also in {_short(fields['train'])}, "
            f"word for word, and data.validation_in_train = {most:g} allows {most:.0%}"
        )
    return Corpus(key, texts["train"], texts["validation"], manifest, data.cache_dir)


def _short(field: str) -> str:
    return field.removeprefix("data.tfds.")


def _warn_of_shared(manifest: dict[str, Any]) -> None:
    """Warns of validation documents that are also training documents."""
    shared, of = manifest.get("validation_in_train", 0), manifest["documents"]["validation"]
    if shared:
        message = f"{shared:,} of the {of:,} validation documents are also in the train split, word for word"
        print(f"warning: {manifest['source']}: {message}", file=sys.stderr)


def _describe(
    folder: Path,
    about: dict[str, Any],
    splits: dict[str, str],
    texts: dict[str, Texts],
    fields: dict[str, str],
    duplicates: int,
    skipped: int,
) -> None:
    """Reads both splits once, for the counts and hashes of the manifest in `folder`; see `described`.

    Raises:
        UserError: a split has no text, or every validation document is a training document.
    """
    total = hashlib.sha256()
    content, counts = {}, {}
    hashes = {name: array("Q") for name in texts}  # 8 bytes per document: there may be many millions
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
            raise UserError(f"{fields[name]}: has no text")
        content[name], counts[name] = of_split.hexdigest(), size
    train, validation = (np.frombuffer(hashes[name], np.uint64) for name in ("train", "validation"))
    shared = int(np.isin(validation, train).sum())
    if shared == len(validation):
        raise UserError(
            f"{fields['validation']}: all its documents are also in {_short(fields['train'])}, word for word"
        )
    manifest = {
        **about,
        "bytes": sum(counts.values()),
        "sha256": total.hexdigest(),
        "documents": {name: len(split_texts) for name, split_texts in texts.items()},
        "text_bytes": counts,
        "documents_sha256": digest(content),
        "split": splits,
        "duplicates": len(train) + len(validation) - len(np.unique(np.concatenate([train, validation]))) + duplicates,
        "skipped": skipped,
    }
    if shared:
        manifest["validation_in_train"] = shared
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
