"""A small Transformer that learns to find a pass key in noise, by growing from bare pairs.

Its vocabulary is small on purpose: `characters64.json` has 64 tokens, one a character, and writes what it lacks as
<unk>. With bytes (256 tokens) not even the bare pairs were learned in 600 updates; docs/log.md has the trials.
"""

from pathlib import Path

from ml_collections import ConfigDict

from configs import retrieval

TOKENIZER = Path(__file__).with_name("characters64.json")


def get_config() -> ConfigDict:
    """Returns the config: the model of configs/retrieval.py; bare pairs alone, then beside short pass keys."""
    config = retrieval.get_config()
    config.name = "passkey"
    config.data.tokenizer = str(TOKENIZER)
    config.data.weights.mqar = 0.5
    config.data.weights.passkey = 0.5
    config.data.retrieval.form = "short"
    config.data.retrieval.digits = 2
    config.data.curriculum = (
        {"steps": 150, "length": 15, "pairs": 4, "batch_size": 256, "weights": {"mqar": 1.0, "passkey": 0.0}},
        {"steps": 150, "length": 31, "pairs": 8, "batch_size": 256},
    )
    config.budget.amount = 500
    config.eval.retrieval.task = "passkey"
    return config
