"""Intervals: Wilson's for shares of successes, independent or in rows; a block bootstrap for means over text."""

import math

import numpy as np
import scipy  # a submodule loads at its first use

CONFIDENCE = 0.95
BLOCK_TOKENS = 1024  # approximate size of a bootstrap block; neighbouring tokens are correlated, distant ones hardly
MIN_BLOCKS = 32  # with fewer blocks the percentile interval is visibly too narrow, so blocks are made smaller


def wilson(correct: int, examples: int, confidence: float = CONFIDENCE) -> list[float]:
    """Returns [low, high], Wilson's score interval of a share (Wilson 1927, without continuity correction).

    Without examples: [0, 1].
    """
    if not examples:
        return [0.0, 1.0]
    from scipy import stats  # slow to load, and a loss has no shares

    interval = stats.binomtest(int(correct), int(examples)).proportion_ci(confidence, method="wilson")
    return [float(interval.low), float(interval.high)]


def score_interval(share: float, examples: float, confidence: float = CONFIDENCE) -> list[float]:
    """Returns [low, high], Wilson's score interval of a share of examples that need not be a whole number."""
    if not examples:
        return [0.0, 1.0]
    z = float(scipy.special.ndtri(0.5 + confidence / 2))
    middle = (share + z * z / (2 * examples)) / (1 + z * z / examples)
    half = z * math.sqrt(share * (1 - share) / examples + (z / (2 * examples)) ** 2) / (1 + z * z / examples)
    return [0.0 if share == 0 else middle - half, 1.0 if share == 1 else middle + half]


def independent(correct_N: np.ndarray, row_N: np.ndarray | None = None, confidence: float = CONFIDENCE) -> float:
    """Returns how many independent answers these amount to: Wilson's interval with that number covers.

    Answers of one row share its needles and its haystack. With one answer per row that number is N. With several it is
    p (1 - p) over the variance of p between rows (a ratio's, linearized), times (z / t)^2 for the number of rows (Korn
    and Graubard 1998; for Wilson's interval Franco et al. 2019); never more than N. One extra row is assumed, all of
    whose answers have the rarer outcome: if errors are rare, the data cannot show whether they occur in clusters, and
    then rows count about once each.
    """
    examples = len(correct_N)
    if row_N is None or not examples:
        return float(examples)
    rows, at = np.unique(row_N, return_inverse=True)
    number = len(rows)
    if number == examples:
        return float(examples)
    size, more = examples / number, float(correct_N.mean() < 0.5)
    right_R = np.append(np.bincount(at, correct_N, number), more * size)
    count_R = np.append(np.bincount(at, minlength=number), size)
    share = float(right_R.sum() / count_R.sum())
    between_R = right_R - share * count_R
    variance = (number + 1) / number * float(between_R @ between_R) / float(count_R.sum()) ** 2
    tail = 0.5 + confidence / 2
    student = float(scipy.special.ndtri(tail) / scipy.special.stdtrit(number, tail)) ** 2
    return min(float(examples), student * share * (1 - share) / variance)


def blocks(sums_N: np.ndarray, counts_N: np.ndarray, block_tokens: int = BLOCK_TOKENS) -> tuple[np.ndarray, np.ndarray]:
    """Sums consecutive pieces of text (rows) into blocks of about `block_tokens` tokens.

    Args:
      sums_N: the quantity summed over each piece, in the text's order.
      counts_N: tokens of each piece; pieces without tokens are dropped.
      block_tokens: the target; less if it would leave fewer than MIN_BLOCKS blocks. A piece is never split.

    Returns:
      (sums, counts) of the blocks.
    """
    keep_N = counts_N > 0
    sums_N, counts_N = sums_N[keep_N], counts_N[keep_N]
    total = counts_N.sum()
    number = max(MIN_BLOCKS, int(total // block_tokens))
    if len(counts_N) <= number:
        return sums_N, counts_N
    middles_N = np.cumsum(counts_N) - counts_N / 2
    index_N = np.minimum((middles_N * number / total).astype(int), number - 1)
    sums, counts = np.bincount(index_N, sums_N, number), np.bincount(index_N, counts_N, number)
    return sums[counts > 0], counts[counts > 0]


def block_bootstrap(
    sums_N: np.ndarray, counts_N: np.ndarray, *, resamples: int = 1000, seed: int = 0, confidence: float = CONFIDENCE
) -> list[float] | None:
    """Returns [low, high], a percentile interval of sum(sums) / sum(counts), resampling whole blocks with replacement.

    The blocks, not the tokens in them, are assumed independent (Künsch 1989, non-overlapping blocks). A draw of N
    blocks is a multinomial vector of how often each was drawn, so that all resamples are two matmuls. Percentiles of N
    equal draws are too narrow by sqrt((N - 1) / N), and are corrected for that.

    None with fewer than two blocks or no resamples.
    """
    number = len(counts_N)
    if number < 2 or resamples < 1:
        return None
    generator = np.random.default_rng(seed)
    share = np.full(number, 1 / number)
    means = []
    step = max(1, 4_000_000 // number)  # limits the table of draws to about 32 MB
    for start in range(0, resamples, step):
        draws_RN = generator.multinomial(number, share, size=min(step, resamples - start))
        means.append((draws_RN @ sums_N) / (draws_RN @ counts_N))
    mean = sums_N.sum() / counts_N.sum()
    deviations = (np.concatenate(means) - mean) * np.sqrt(number / (number - 1))
    low, high = mean + np.quantile(deviations, [(1 - confidence) / 2, (1 + confidence) / 2])
    return [float(low), float(high)]


def column_bootstrap(
    sums_NM: np.ndarray, counts_N: np.ndarray, *, resamples: int = 1000, seed: int = 0, confidence: float = CONFIDENCE
) -> np.ndarray | None:
    """Returns [2, M], the intervals of `block_bootstrap` for M quantities of the same rows, with the same draws.

    Rows with a count of 0 are left out. None as of `block_bootstrap`.
    """
    keep_N = counts_N > 0
    sums_NM, counts_N = sums_NM[keep_N], counts_N[keep_N]
    number = len(counts_N)
    if number < 2 or resamples < 1:
        return None
    draws_RN = np.random.default_rng(seed).multinomial(number, np.full(number, 1 / number), size=resamples)
    mean_M = sums_NM.sum(0) / counts_N.sum()
    deviations_RM = (draws_RN @ sums_NM) / (draws_RN @ counts_N)[:, None] - mean_M
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    return mean_M + np.quantile(deviations_RM, tails, axis=0) * np.sqrt(number / (number - 1))
