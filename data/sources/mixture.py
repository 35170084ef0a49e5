"""The source `mixture`: several texts as one corpus, each with its weight and its share in the fingerprint.

Training draws rows of each text in exact proportion to the weights (`data.pipeline`), each text in its own order. The
validation splits are concatenated; their losses are reported separately and together.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs.errors import UserError
from configs.rules.data import TOKENIZERS
from configs.rules.sources import mixture_names
from data import cache
from data.corpora import FORMAT, Corpus, MixedCorpus, digest
from data.shards import TokenCorpus
from data.sources import files


def open_corpus(data: ConfigDict, vocab_size: int | None) -> MixedCorpus:
    """Opens the source; see `data.sources.open_data`.

    Raises:
        UserError: as `open_corpus`, with the text's index in the mixture; text beside token files without a
            tokenizer.json for both; or too many documents that validate one text and train another.
    """
    names = tuple(mixture_names(data.mixture))
    texts = []
    for index, (name, one) in enumerate(zip(names, data.mixture, strict=True)):
        part = ConfigDict(data.to_dict())
        part.mixture, part.path, part.validation_path = (), one["path"], one.get("validation_path", "")
        try:
            texts.append(files.open_corpus(part, vocab_size))
        except UserError as error:
            raise UserError(f"data.mixture[{index}], {name}: {error}") from error
    of_text = {one.holds_text for one in texts}
    if len(of_text) > 1 and data.tokenizer in TOKENIZERS:
        kinds = ", ".join(
            f"{name}: {'text' if one.holds_text else 'token ids'}" for name, one in zip(names, texts, strict=True)
        )
        raise UserError(
            f"data.tokenizer = {data.tokenizer!r}: data.mixture has text beside token files ({kinds}); set it to the "
            "tokenizer.json that made the ids, which then encodes the text too"
        )
    weights = [float(one["weight"]) for one in data.mixture]
    shares = tuple(weight / sum(weights) for weight in weights)
    _refuse_shared(names, texts, data)
    fingerprint = _fingerprint(names, shares, texts)
    key = digest([FORMAT, "mixture", [*names], [one.key for one in texts]])
    return MixedCorpus(key, fingerprint, data.cache_dir, names, shares, tuple(texts))


def _fingerprint(
    names: Sequence[str], shares: Sequence[float], texts: Sequence[Corpus | TokenCorpus]
) -> dict[str, Any]:
    about = [one.fingerprint for one in texts]
    return {
        "source": "mixture",
        "files": sum(one["files"] for one in about),
        "bytes": sum(one["bytes"] for one in about),
        "sha256": "",  # each text has one
        "documents_sha256": digest([one["documents_sha256"] for one in about]),
        "split": {"kind": "mixture", "texts": [one["split"] for one in about]},
        "texts": [{"name": name, "share": share, **one} for name, share, one in zip(names, shares, about, strict=True)],
    }


def _refuse_shared(names: Sequence[str], texts: Sequence[Corpus | TokenCorpus], data: ConfigDict) -> None:
    """Refuses texts whose validation documents train another; each text alone was checked when it was opened.

    Raises:
        UserError: more of a text's validation documents than `data.validation_in_train` allows.
    """
    known = [(name, one) for name, one in zip(names, texts, strict=True) if isinstance(one, Corpus)]
    if len(known) < 2:
        return
    key = digest([FORMAT, "shared", [one.key for _, one in known]])
    folder = cache.private_folder(data.cache_dir, "corpora") / f"mixture-{key[:20]}"
    cache.entry(folder, lambda work: _count_shared(work, [one for _, one in known]))
    for name, other, count, of in json.loads((folder / "shared.json").read_text()):
        if count > data.validation_in_train * of:
            raise UserError(
                f"data.mixture: {count:,} of the {of:,} validation documents of {known[name][0]} also train in "
                f"{known[other][0]}, word for word, and data.validation_in_train = {data.validation_in_train:g} allows "
                f"{data.validation_in_train:.0%}"
            )


def _count_shared(folder: Path, texts: Sequence[Corpus]) -> None:
    """Writes [text, other text, documents that validate the one and train the other, validation documents]."""
    hashes = [[_hashes(one.train), _hashes(one.validation)] for one in texts]
    results = []
    for index, (_, validation) in enumerate(hashes):
        for other, (train, _) in enumerate(hashes):
            if other != index:
                results.append([index, other, int(np.isin(validation, train).sum()), len(validation)])
    (folder / "shared.json").write_text(json.dumps(results))


def _hashes(texts: Sequence[str]) -> np.ndarray:
    return np.array([int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) for text in texts], np.uint64)
