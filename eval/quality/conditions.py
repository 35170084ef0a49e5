"""A condition of retrieval (length, scaling, number of needles): its counts, its distances, its local baseline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from eval.quality import cells
from eval.quality.cells import Answers
from eval.variants import CONTROL, TRAINED, Variant, beyond, reach


@dataclass(frozen=True)
class Found:
    """The answers at one length, with one scaling and one number of needles."""

    forced: Answers
    generated: Answers | None
    depths: np.ndarray  # of the grid
    merged: Mapping[int, Sequence[float]] = field(default_factory=dict)  # see `cells.by_depth`


@dataclass(frozen=True)
class Condition:
    """The answers at one length with one scaling, and those of the local baseline if there is one."""

    config: ConfigDict
    variant: Variant
    chance: float
    found: Found
    baseline: tuple[Variant, Found | None] | None

    @property
    def _beyond(self) -> int:
        return beyond(self.config, self.variant.length)

    def overall(self) -> dict[str, Any]:
        """Returns the condition's entry of `by_length`."""
        length, result = self._beyond, self.found
        forced = result.forced.from_beyond(length)
        generated = None if result.generated is None else result.generated.from_beyond(length)
        near = None if len(forced.correct) == len(result.forced.correct) else result.forced.nearer(length)
        local = self._baseline()
        local = None if local is None else local.from_beyond(length)
        return {
            **cells.overall(forced, generated),
            "distance": cells.distances(forced),
            "near": None if near is None else {**near.counts, "distance": cells.distances(near)},
            "chance": self.chance,
            "control": self._control(),
            "measures_distance": cells.measures_distance(forced, length, local, self.chance),
        }

    def by_depth(self) -> list[dict[str, Any]]:
        """Returns the condition's `cells`, in which every answer counts, however near."""
        result, local = self.found, self._baseline()
        given = cells.by_depth(result.forced, result.generated, result.depths, result.merged)
        for cell in given:
            here = result.forced.near_depth(cell["depth"], result.depths)
            there = None if local is None else local.near_depth(cell["depth"], result.depths)
            cell["control"] = None if there is None else there.counts
            cell["measures_distance"] = cells.measures_distance(here, self._beyond, there, self.chance)
        return given

    def records(self) -> Iterator[dict[str, Any]]:
        """Yields a record for each answer, those of the baseline with the run's own setting."""
        yield from cells.records(self.found.forced, self.found.generated)
        local = self._baseline()
        if local is not None and self.variant.scaling == TRAINED:
            yield from ({**record, "answer": "control"} for record in cells.records(local, None))

    def _baseline(self) -> Answers | None:
        return None if self.baseline is None or self.baseline[1] is None else self.baseline[1].forced

    def _control(self) -> dict[str, Any] | None:
        """Returns the local baseline's counts, over the answers that the entry counts."""
        if self.baseline is None:
            return None
        variant, result = self.baseline
        named = {"name": CONTROL, "window": int(self.config.data.length)}
        if variant.model is None or result is None:
            return {**named, "reason": variant.reason}
        generated = None if result.generated is None else result.generated.from_beyond(self._beyond)
        counted = cells.overall(result.forced.from_beyond(self._beyond), generated)
        return {**named, "reach": reach(variant.model), **counted}
