"""Losses on the texts of a mixture: read by name, averaged over runs, missing where a run has none."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from report.reading.measures import loss_sources, source_loss


def run(*entries: Any) -> Any:
    return SimpleNamespace(evals={"loss": {"by_source": list(entries)}})


def test_each_text_has_its_loss() -> None:
    one = run({"name": "web", "loss": 2.0, "interval": [1.9, 2.1]}, {"name": "code", "loss": 1.0})
    other = run({"name": "web", "loss": 4.0}, "no object", {"name": None, "loss": 7.0})
    arm: Any = SimpleNamespace(done=[one, other])
    assert loss_sources(SimpleNamespace(arms=[arm])) == ["web", "code"]  # type: ignore[arg-type]
    assert source_loss(arm, "web").mean == 3.0 and source_loss(arm, "code").mean == 1.0
    alone: Any = SimpleNamespace(done=[one])
    assert (source_loss(alone, "web").low, source_loss(alone, "web").high) == pytest.approx((1.9, 2.1))
    assert math.isnan(source_loss(arm, "lost").mean)
