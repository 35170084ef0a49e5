"""The noise that the choice of documents adds to a difference of losses, together with that of seeds.

All arms of a study are scored on the same documents, and all scalings at a length on the same blocks of rows (which
take the place of documents below), so a difference of losses is paired by seed and by document. Its mean over S seeds
has the variance

    (between seeds) / S + (between documents) / D - (seed by document) / (S D),

each estimated from the table of differences [S, D]; the last is part of both others and is subtracted once. Documents
are weighted by their tokens, as in the loss. The bootstrap draws documents and seeds together (the pigeonhole
bootstrap, Owen 2007), the same documents for both arms.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from report.statistics.intervals import BOOTSTRAP_FROM, CONFIDENCE, RESAMPLES, expanded_tail

FEWEST = 8  # documents; the spread of fewer is not estimated well enough to be counted


@dataclass(frozen=True)
class Pieces:
    """The losses of one run by piece of text: `loss` in nats, summed over each piece, and its scored `tokens`."""

    loss: np.ndarray
    tokens: np.ndarray


def differences(arm: dict[int, Pieces], baseline: dict[int, Pieces], seeds: tuple[int, ...]) -> np.ndarray | None:
    """Returns arm - baseline, nats summed over each piece, [seeds, pieces]; None if the pieces differ."""
    both = [(arm.get(seed), baseline.get(seed)) for seed in seeds]
    rows = []
    for own, other in both:
        if own is None or other is None or not np.array_equal(own.tokens, other.tokens):
            return None
        rows.append(own.loss - other.loss)
    same = len({len(row) for row in rows}) == 1
    return np.array(rows) if same and len(rows[0]) >= FEWEST else None


def variance(sums_SD: np.ndarray, tokens_D: np.ndarray) -> tuple[float, float]:
    """Returns (variance that the documents add to the mean difference, its degrees of freedom).

    Args:
        sums_SD: differences in nats, summed over each document.
        tokens_D: its scored tokens.
    """
    seeds, documents = sums_SD.shape
    share_D = tokens_D / tokens_D.sum()
    mean_S = sums_SD.sum(1) / tokens_D.sum()
    # The influence of a document on a ratio of sums.
    left_SD = sums_SD / tokens_D.sum() - share_D * mean_S[:, None]
    left_D = left_SD.mean(0)
    scale = documents / (documents - 1)
    between = scale * float((left_D**2).sum())
    if seeds > 1:
        between -= scale * float(((left_SD - left_D) ** 2).sum()) / (seeds * (seeds - 1))
    return max(0.0, between), documents - 1.0


@functools.lru_cache(maxsize=2)  # all differences of a report have the same documents and seeds
def _drawn(documents: int, seeds: int, resamples: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns how often each document and each seed is drawn, [R, D] and [R, S]."""
    rng = np.random.default_rng(0)
    of_documents = rng.multinomial(documents, np.full(documents, 1 / documents), resamples).astype(float)
    return of_documents, rng.multinomial(seeds, np.full(seeds, 1 / seeds), resamples).astype(float)


def bootstrap(
    sums_SD: np.ndarray, tokens_D: np.ndarray, level: float = 1 - CONFIDENCE, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Returns the expanded percentile interval of the mean difference, drawing documents and seeds together.

    nan with fewer than BOOTSTRAP_FROM seeds, as `intervals.bootstrap`.
    """
    seeds, documents = sums_SD.shape
    if seeds < BOOTSTRAP_FROM or not np.isfinite(sums_SD).all():
        return math.nan, math.nan
    drawn_RD, drawn_RS = _drawn(documents, seeds, resamples)
    means_RS = (drawn_RD @ sums_SD.T) / (drawn_RD @ tokens_D)[:, None]
    tail = expanded_tail(seeds, level)
    low, high = np.quantile((means_RS * drawn_RS).sum(1) / seeds, [tail, 1 - tail])
    return float(low), float(high)
