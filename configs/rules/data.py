"""Rules of the data: weights of sources, the curriculum, and what follows from them."""

import math
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from configs.errors import nearest
from configs.rules import sources, tasks

TOKENIZERS = ("byte", "char", "none")  # that are no files
STAGE_FIELDS = ("steps", "length", "batch_size", "pairs", "needles", "weights")


def longest(config: ConfigDict) -> int:
    """Returns the longest training length, T of the main setting or of a stage."""
    return max([config.data.length, *(stage["length"] for stage in config.data.curriculum)])


def known_vocabulary(config: ConfigDict) -> int | None:
    """Returns the vocabulary that the data needs; None: only the loaded tokenizer knows it."""
    bare = tasks.vocabulary(config)
    if not tasks.has_tokenizer(config):
        return bare
    if config.data.tokenizer in ("byte", "none") and config.data.vocab_size is not None:
        return max(config.data.vocab_size, bare)
    return max(256, bare) if config.data.tokenizer == "byte" else None


def problems(config: ConfigDict) -> list[str]:
    """Returns every problem of a config.data, a line each; the fields by themselves must be sound."""
    data = config.data
    result = [*sources.problems(data), *_vocabulary_problems(config)]
    if data.batch_size % data.micro_batches:
        result.append(f"data.micro_batches = {data.micro_batches}: must divide data.batch_size = {data.batch_size}")
    weights = data.weights.to_dict()
    if not any(weights.values()):
        result.append(f"data.weights: one source must be above 0, of {', '.join(weights)}")
    result += tasks.problems(config, weights, {}, "data")
    if data.weights.mqar > 0:
        result += _pairs("data.mqar.pairs", data.mqar.pairs, "data.length", data.length, data.mqar.vocab_size)
    vocabulary = config.model.vocab_size
    known = known_vocabulary(config) if _tokens_known(config) else None
    if vocabulary is not None and known is not None and vocabulary < known:
        result.append(f"model.vocab_size = {vocabulary}: the data's tokens need {known} or more")
    return result


def _vocabulary_problems(config: ConfigDict) -> list[str]:
    data, vocabulary, result = config.data, config.model.vocab_size, []
    if data.tokenizer == "none" and vocabulary is None and data.vocab_size is None:
        result.append("model.vocab_size: must be set where data.tokenizer = 'none', or data.vocab_size")
    if None not in (data.vocab_size, vocabulary) and data.vocab_size > vocabulary:
        result.append(f"data.vocab_size = {data.vocab_size}: must be at most model.vocab_size = {vocabulary}")
    return result


def _tokens_known(config: ConfigDict) -> bool:
    stages = config.data.curriculum
    return all(isinstance(stage, Mapping) and isinstance(stage.get("weights", {}), Mapping) for stage in stages)


def _pairs(name: str, pairs: int, length_name: str, length: int, vocab_size: int) -> list[str]:
    if 4 * pairs > length + 1:
        return [f"{name} = {pairs}: {length_name} = {length} holds {(length + 1) // 4} pairs at most (4 a token row)"]
    if pairs > vocab_size // 2:
        return [f"{name} = {pairs}: data.mqar.vocab_size = {vocab_size} has {vocab_size // 2} keys"]
    return []


def curriculum_problems(config: ConfigDict) -> list[str]:
    """Returns every problem of a curriculum, a line each."""
    results = []
    for index, stage in enumerate(config.data.curriculum):
        name = f"data.curriculum[{index}]"
        if not isinstance(stage, Mapping):
            results.append(f"{name} = {stage!r}: must be dict({', '.join(f'{field}=' for field in STAGE_FIELDS)})")
            continue
        for field in stage:
            if field not in STAGE_FIELDS:
                results.append(f"{name}.{field} = {stage[field]!r}: unknown{nearest(field, STAGE_FIELDS)}")
        results += _stage(config, name, stage)
    steps = sum(stage["steps"] for stage in config.data.curriculum) if not results else 0
    if config.budget.kind == "steps" and steps >= config.budget.amount:
        results.append(
            f"budget.amount = {config.budget.amount:g}: data.curriculum alone takes {steps} steps, and the main "
            "setting needs some too"
        )
    return results


def _stage(config: ConfigDict, name: str, stage: Mapping[str, Any]) -> list[str]:
    results = []
    for field in ("steps", "length"):
        if field not in stage:
            results.append(f"{name}.{field}: is missing; a stage needs steps and length")
    for field in ("steps", "length", "batch_size", "pairs", "needles"):
        value = stage.get(field, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            results.append(f"{name}.{field} = {value!r}: must be a whole number above 0")
    given = stage.get("weights", {})
    if not isinstance(given, Mapping):
        return [*results, f"{name}.weights = {given!r}: must be dict(text=, mqar=, ...)"]
    main = config.data.weights.to_dict()
    for key, weight in given.items():
        if key not in main:
            results.append(f"{name}.weights.{key} = {weight!r}: unknown source{nearest(key, main)}")
        elif isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
            results.append(f"{name}.weights.{key} = {weight!r}: must be 0 or more")
    if results:
        return results
    merged = {**main, **given}
    if not any(merged.values()):
        results.append(f"{name}.weights: one source must be above 0")
    if merged["mqar"] > 0:
        pairs = stage.get("pairs", config.data.mqar.pairs)
        results += _pairs(f"{name}.pairs", pairs, f"{name}.length", stage["length"], config.data.mqar.vocab_size)
    results += tasks.problems(config, merged, stage, name)
    batch = stage.get("batch_size", config.data.batch_size)
    if batch % config.data.micro_batches:
        results.append(f"{name}.batch_size = {batch}: must be divisible by data.micro_batches")
    return results
