"""Seeds added look by look, by a plan made in advance: `seeds=dict(looks=(5, 10, 20), care=0.01)`.

Adding seeds until something is significant, testing at 5% each time, makes far more than 5% false claims. A plan spends
the 5% over its looks: at look k of K a claim must pass the level LEVEL * k (k + 1) / 2 / sum, which for three looks are
0.005, 0.015 and 0.03. They add up to 5%, so that, however the looks are correlated, at most 5% of sweeps in which
nothing differs claim anything at any look (Bonferroni); most of it is kept for the last look, which has the most seeds.
Tests and intervals at a look are Student's t at its level.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from report.statistics.intervals import CONFIDENCE

LEVEL = 1 - CONFIDENCE


@dataclass(frozen=True)
class Plan:
    """A plan of looks: `looks` are increasing numbers of seeds; `care` the smallest relevant difference, in nats."""

    looks: tuple[int, ...]
    care: float

    def look(self, seeds: int) -> int:
        """Returns how many looks a number of seeds completes."""
        return sum(number <= seeds for number in self.looks)

    def level(self, look: int) -> float:
        """Returns the level of the tests and intervals at look `look` (the first is 1)."""
        return levels(len(self.looks))[look - 1]


def levels(looks: int) -> list[float]:
    """Returns the level of each look; they add up to LEVEL."""
    weights = [look * (look + 1) / 2 for look in range(1, looks + 1)]
    return [LEVEL * weight / sum(weights) for weight in weights]


def check(looks: Sequence[int], care: float) -> str:
    """Returns what is wrong with a plan; empty if nothing is."""
    whole = [isinstance(one, int) and not isinstance(one, bool) and one >= 2 for one in looks]
    if not looks or not all(whole) or any(a >= b for a, b in itertools.pairwise(looks)):
        return "looks must be increasing whole numbers of seeds, 2 or more, such as (5, 10, 20)"
    if isinstance(care, bool) or not isinstance(care, (int, float)) or not 0 < care < float("inf"):
        return "care must be a number above 0, in nats"
    return ""
