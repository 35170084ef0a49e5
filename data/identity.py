"""The fingerprint of what a run reads: equal on every machine for equal content, another for anything else."""

from typing import Any

from ml_collections import ConfigDict

from data.corpora import FORMAT, Corpus, digest
from data.pipeline import stages
from data.tokenizers import Tokenizer


def fingerprint(config: ConfigDict, corpus: Corpus | None, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Returns what identifies a run's data, for run.json.

    Args:
        config: resolved.
        corpus: None where the run reads no text.
        tokenizer: likewise.

    Returns:
        `fingerprint`, a hash over: the documents of both splits, the tokenizer, and the settings of every synthetic
        source that is mixed in (row shapes, batch sizes and seeds are not data). Beside it what went in: `source`,
        `files`, `bytes`, `sha256`, counts by split, `tokenizer`, `weights`.
    """
    plan = stages(config)
    recall = any(stage.weights["mqar"] > 0 for stage in plan)
    mixture = [{name: round(share, 9) for name, share in stage.weights.items()} for stage in plan]
    about: dict[str, Any] = {"source": "mqar", "files": 0, "bytes": 0, "sha256": None}
    if corpus is not None:
        about = dict(corpus.fingerprint)
    about["tokenizer"] = tokenizer.describe() if tokenizer is not None else None
    about["weights"] = mixture[-1]
    about["mqar"] = config.data.mqar.to_dict() if recall else None
    content = [
        FORMAT,
        about.get("documents_sha256"),
        about["tokenizer"],
        mixture,
        [[stage.pairs, stage.length] for stage in plan] if recall else None,
        about["mqar"],
    ]
    return {"fingerprint": digest(content)[:32], **about}
