"""The learning rate as a function of progress."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import optax
from ml_collections import ConfigDict

from training.step.budget import Budget

UNITS = 1_000_000  # a budget with an unknown number of steps is divided into this many
BLOCK = 1024  # updates whose rates are computed at once


def shape(optimizer: ConfigDict, warmup: int, total: int) -> Callable[[Any], Any]:
    """Returns rate(step), of numbers or arrays, over `total` steps including the `warmup` ones, as optax counts them.

    cosine: increases linearly from 0 to the peak, then decreases as half a cosine to final_share * peak at `total`.
    wsd: increases, stays, decreases linearly over the last decay_share of `total` (warm-up, stable, decay; 2405.18392).
    constant: increases and stays.
    """
    peak, end = optimizer.learning_rate, optimizer.learning_rate * optimizer.final_share
    warmup = min(warmup, total)
    rise = optax.linear_schedule(0.0, peak, warmup) if warmup else optax.constant_schedule(peak)
    if optimizer.schedule == "constant" or warmup == total:
        return optax.join_schedules([rise, optax.constant_schedule(peak)], [warmup])
    if optimizer.schedule == "cosine":
        if not warmup:
            return optax.cosine_decay_schedule(peak, total, optimizer.final_share)
        return optax.warmup_cosine_decay_schedule(0.0, peak, warmup, total, end)
    start = max(warmup, min(total - 1, round(total * (1 - optimizer.decay_share))))
    fall = optax.linear_schedule(peak, end, max(1, total - start))
    return optax.join_schedules([rise, optax.constant_schedule(peak), fall], [warmup, start])


def learning_rate(optimizer: ConfigDict, budget: Budget) -> Callable[[int, float], float]:
    """Returns rate(update, progress): update counts from 1, progress is the share of the budget spent after it.

    If the budget fixes the number of steps, the rate is a function of the update alone. With a budget in seconds, the
    warm-up counts updates and the decay follows progress.
    """
    total = budget.total_steps
    if total is not None:
        rates = _blocks(shape(optimizer, optimizer.warmup_steps, total))
        return lambda update, progress: float(rates(update // BLOCK)[update % BLOCK])
    by_progress = shape(optimizer, 0, UNITS)
    warmup = max(1, optimizer.warmup_steps)
    return lambda update, progress: min(1.0, update / warmup) * float(by_progress(min(1.0, progress) * UNITS))


def _blocks(by_step: Callable[[np.ndarray], Any]) -> Callable[[int], np.ndarray]:
    """Returns rates(n): of steps from n * BLOCK on, float32 [BLOCK].

    A schedule of optax is a dozen device calls; evaluated step by step it would take longer than a batch.
    """

    @lru_cache(maxsize=2)
    def rates(number: int) -> np.ndarray:
        steps = np.arange(number * BLOCK, (number + 1) * BLOCK)
        return np.broadcast_to(np.asarray(by_step(steps), np.float32), steps.shape)

    return rates
