"""The stages of a curriculum as a config has them: what a run trained on before its main setting."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from report.reading.directories import items, mapping, number


@dataclass(frozen=True)
class Stage:
    """A stage before the main setting: `length` of its rows in tokens, and the `tokens` that it trains on."""

    length: float
    tokens: float


def stages(config: Mapping[str, Any]) -> list[Stage]:
    """Returns the stages of `data.curriculum`; what one leaves out is the main setting's."""
    data, results = mapping(config.get("data")), []
    for raw in items(data, "curriculum"):
        stage = {**data, **{key: value for key, value in mapping(raw).items() if value is not None}}
        length = number(stage.get("length"))
        tokens = number(stage.get("steps")) * length * number(stage.get("batch_size"))
        if math.isfinite(tokens):
            results.append(Stage(length, tokens))
    return results
