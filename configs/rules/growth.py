"""A window that grows in training: `model.attention.window_stages`, and the RoPE scaling that follows it.

In each stage no query sees more than the stage's window; after the last one the model is as its config says.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

FIELDS = ("steps", "window")
FOLLOWING = ("linear", "ntk", "ntk_by_parts", "yarn")  # scalings that a factor alone moves


def stage_of(config: ConfigDict, steps: int) -> int:
    """Returns the stage in which the step after `steps` steps lies; len(window_stages) after the last."""
    last = 0
    for index, stage in enumerate(config.model.attention.window_stages):
        last += stage["steps"]
        if steps < last:
            return index
    return len(config.model.attention.window_stages)


def window_of(config: ConfigDict, stage: int) -> int | None:
    """Returns the window that no layer exceeds in a stage; after the last one `attention.window`."""
    stages = config.model.attention.window_stages
    return stages[stage]["window"] if stage < len(stages) else config.model.attention.window


def at_stage(config: ConfigDict, stage: int) -> ConfigDict:
    """Returns the config that trains in a stage: a copy with its windows and RoPE scaling, and no stages."""
    result = config.copy_and_resolve_references()
    attention, scaling = result.model.attention, result.model.position.rope.scaling
    with result.ignore_type():
        attention.window_stages = ()
        if stage < len(config.model.attention.window_stages):
            most = config.model.attention.window_stages[stage]["window"]
            attention.window = min(attention.window or most, most)
            attention.window_pattern = tuple(min(window or most, most) for window in attention.window_pattern)
            if scaling.follow == "window":
                scaling.factor = max(1.0, most / scaling.original_length)
        scaling.follow = "none"
    return result


def lasting(config: ConfigDict, stages: Sequence[Any]) -> list[tuple[int | None, int, int]]:
    """Returns (steps, data stage, window stage) for each span of steps in which neither changes; None: to the end.

    Args:
        config: resolved.
        stages: of the data, each with `steps`, the last without.
    """
    ends, at = {0}, 0
    for stage in stages[:-1]:
        at += stage.steps
        ends.add(at)
    of_data, at = sorted(ends), 0
    for stage in config.model.attention.window_stages:
        at += stage["steps"]
        ends.add(at)
    starts, results = sorted(ends), []
    for index, start in enumerate(starts):
        steps = starts[index + 1] - start if index + 1 < len(starts) else None
        data = sum(first <= start for first in of_data) - 1
        results.append((steps, data, stage_of(config, start)))
    return results


def problems(config: ConfigDict) -> list[str]:
    """Returns every problem of a growing window, a line each."""
    attention, results = config.model.attention, []
    stages = tuple(attention.window_stages)
    for index, stage in enumerate(stages):
        name = f"model.attention.window_stages[{index}]"
        if not isinstance(stage, Mapping) or set(stage) != {*FIELDS}:
            results.append(f"{name} = {stage!r}: must be dict(steps=, window=)")
            continue
        for field, value in stage.items():
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                results.append(f"{name}.{field} = {value!r}: must be a whole number above 0")
    if results:
        return results
    windows = [*(stage["window"] for stage in stages), attention.window]
    for index, (before, after) in enumerate(itertools.pairwise(windows)):
        if after is not None and after <= before:
            then = f"window_stages[{index + 1}].window" if index + 1 < len(stages) else "window"
            results.append(
                f"model.attention.window_stages[{index}].window = {before}: must be below model.attention.{then} = "
                f"{after}: windows grow"
            )
    steps = sum(stage["steps"] for stage in stages)
    if config.budget.kind == "steps" and stages and steps >= config.budget.amount:
        results.append(
            f"budget.amount = {config.budget.amount:g}: model.attention.window_stages alone take {steps} steps, and "
            "the model's own window needs some too"
        )
    return results or _following(config)


def _following(config: ConfigDict) -> list[str]:
    attention, scaling = config.model.attention, config.model.position.rope.scaling
    name = "model.position.rope.scaling.follow = 'window'"
    if scaling.follow == "none":
        return []
    if not attention.window_stages:
        return [f"{name}: has no effect without model.attention.window_stages"]
    if scaling.kind not in FOLLOWING:
        return [f"{name}: model.position.rope.scaling.kind = {scaling.kind!r}: must be one of {', '.join(FOLLOWING)}"]
    first, last = scaling.original_length or config.data.length, attention.window or config.data.length
    if scaling.factor != max(1.0, last / first):
        of = "model.attention.window" if attention.window else "data.length"
        return [
            f"model.position.rope.scaling.factor = {scaling.factor:g}: must be {max(1.0, last / first):g} with {name}, "
            f"{of} = {last} / original_length = {first}"
        ]
    return []
