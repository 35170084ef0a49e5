"""The validation loss in training: the same tokens at every call, for every batch size."""

from collections.abc import Callable
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs.rules import tasks
from data import mqar, pipeline, retrieval, streams
from training.step import mesh as meshes
from training.step import train_step as steps

TASK_ROWS = 256


def batches(config: ConfigDict, tokenizer: Any, corpus: Any) -> list[dict[str, np.ndarray]]:
    """Returns the validation batches of the main setting: text if it trains on text, else its main task's rows."""
    rows = config.eval.batch_size
    if tasks.uses(config, "text"):
        result = pipeline.validation(
            config, tokenizer, corpus, length=config.data.length, batch_size=rows, max_tokens=config.eval.tokens
        )
        return list(result)
    name, setting = tasks.main_task(config), {"length": config.data.length, "batch_size": rows, "rows": TASK_ROWS}
    if name is None or name == "mqar":
        return list(mqar.evaluation(config, **setting))
    text = None if corpus is None else streams.open_stream(corpus, tokenizer, "validation")
    return list(retrieval.evaluation(retrieval.make(name, config, tokenizer, text), config.seed, **setting))


def validator(config: ConfigDict, given: list[dict[str, np.ndarray]], mesh: Any = None) -> Callable[[Any], float]:
    """Returns `validation_loss(params)` in nats per token over the result of `batches`."""
    losses, rules = steps.loss_function(config, mesh), meshes.rules_of(config, mesh)
    ready = [(batch["weights"], meshes.whole_batch(rules, batch)) for batch in given]

    def loss(params: Any) -> float:
        total, weight = 0.0, 0.0
        for weights, batch in ready:
            result = np.asarray(losses(params, batch), np.float64)[: len(weights)]
            total += float(np.sum(result * weights))
            weight += float(np.sum(weights, dtype=np.float64))
        return total / max(weight, 1e-9)

    return loss
