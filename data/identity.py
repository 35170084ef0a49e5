"""The fingerprint of a run's data, by which a report can tell whether two runs are comparable."""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from configs.rules import tasks
from data.corpora import Opened, digest
from data.retrieval import squad
from data.tokenizers import Tokenizer


def fingerprint(config: ConfigDict, corpus: Opened | None, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Returns the data's `fingerprint` (hex, over all the rest), `source`, `files`, `bytes`, `sha256` and more.

    It is the same on every machine, wherever corpus and cache are. It covers the documents and their split, the
    tokenizer, the packing, and the weights and pairs of every stage; not lengths, batch sizes or the seed, in which
    runs on the same data may differ.
    """
    nothing = {"source": "synthetic", "files": 0, "bytes": 0, "sha256": ""}
    text = nothing if corpus is None else corpus.fingerprint
    results = {
        **text,
        "tokenizer": None if tokenizer is None else tokenizer.describe(),
        "packing": None if corpus is None else config.data.packing,
        "mixture": [dict(mix) for mix in dict.fromkeys(_mixtures(config))],
    }
    return {"fingerprint": digest(results)[:32], **results}


def _mixtures(config: ConfigDict) -> Iterator[tuple[tuple[str, Any], ...]]:
    """The sources with weight above 0 of the main setting and of each stage, as shares."""
    data = config.data
    for stage in (*data.curriculum, {}):
        weights: Mapping[str, float] = {**data.weights.to_dict(), **dict(stage.get("weights", {}))}
        total = sum(weights.values())
        mix: list[tuple[str, Any]] = [(name, weight / total) for name, weight in sorted(weights.items()) if weight]
        if weights["mqar"]:
            mix += [("pairs", stage.get("pairs", data.mqar.pairs)), ("mqar_vocab_size", data.mqar.vocab_size)]
        if any(weights[name] for name in tasks.TASKS):
            settings = {**data.retrieval.to_dict(), "needles": stage.get("needles", data.retrieval.needles)}
            del settings["questions"]  # a place; what lies there is named where it is read
            mix += [(f"retrieval.{name}", value) for name, value in sorted(settings.items())]
        if weights["mqar_gaps"]:
            mix += [(f"mqar_gaps.{name}", data.mqar[name]) for name in ("power", "filler", "vocab_size")]
            mix.append(("mqar_gaps.pairs", stage.get("pairs", data.mqar.pairs)))
        if weights["qa"]:
            mix.append(("qa.sha256", squad.load(data.retrieval.questions).sha256))
        yield tuple(mix)
