"""The learning rate as a function of progress."""

from collections.abc import Callable

import optax
from ml_collections import ConfigDict

from training.budget import Budget

UNITS = 1_000_000  # a budget whose steps are not known beforehand is divided into this many


def shape(optimizer: ConfigDict, warmup: int, total: int) -> Callable[[float], float]:
    """Returns rate(step) over `total` steps, the `warmup` ones included, as optax counts them.

    cosine: rises linearly from 0 to the peak, falls as half a cosine to final_share * peak at `total`.
    wsd: rises, stays, falls linearly over the last decay_share of `total` (warm-up, stable, decay; 2405.18392).
    constant: rises and stays.
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

    Where the budget fixes the number of steps, the rate is a function of the update alone. A budget in seconds does
    not: there the warm-up counts updates and the decay follows progress.
    """
    total = budget.total_steps
    if total is not None:
        by_step = shape(optimizer, optimizer.warmup_steps, total)
        return lambda update, progress: float(by_step(update))
    by_progress = shape(optimizer, 0, UNITS)
    warmup = max(1, optimizer.warmup_steps)
    return lambda update, progress: min(1.0, update / warmup) * float(by_progress(min(1.0, progress) * UNITS))
