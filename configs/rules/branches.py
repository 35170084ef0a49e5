"""Rules of runs that continue from the state of another one, or with a larger budget."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict


def problems(config: ConfigDict) -> list[str]:
    """Returns what is wrong with a run that branches off another one, or that others branch off."""
    smaller, budget = config.checkpoint.branches, config.budget
    results = []
    if config.init_state == "branch" and not config.init_from:
        results.append("init_state = 'branch': needs the run that is continued, in init_from")
    for name, requested in (("init_state", config.init_state == "branch"), ("checkpoint.branches", bool(smaller))):
        if requested and budget.kind == "seconds":
            results.append(f"{name}: budget.kind = 'seconds' does not say how many steps there are; take another")
    results += [
        f"checkpoint.branches = {tuple(smaller)!r}: {one:g} must be below budget.amount = {budget.amount:g}"
        for one in smaller
        if not one < budget.amount
    ]
    if smaller and config.optimizer.schedule != "wsd":
        results.append(
            f"checkpoint.branches: optimizer.schedule = {config.optimizer.schedule!r}: must be wsd, whose rates do not "
            "depend on the budget before the decay"
        )
    return results


def lengthened(before: Mapping[str, Any], after: Mapping[str, Any], different: list[str]) -> bool:
    """Tells whether two flat configs, which differ in these fields, are one run and the same with a larger budget."""
    return different == ["budget.amount"] and after["budget.amount"] > before["budget.amount"]


def not_longer(before: Mapping[str, Any], share: float) -> str:
    """Returns why a run cannot continue to a larger budget as if it had had it from the start; empty where it can.

    Args:
        before: its flat config.
        share: how much of its budget it has spent, 0 .. 1.
    """
    schedule, warmup, amount = before["optimizer.schedule"], before["optimizer.warmup_steps"], before["budget.amount"]
    if schedule == "cosine":
        return (
            f"budget.amount = {amount:g} cannot be raised under optimizer.schedule = 'cosine': every learning rate so "
            "far was that of the smaller budget; constant, and wsd before its decay, do not depend on it"
        )
    if schedule == "wsd" and share > 1 - before["optimizer.decay_share"]:
        return (
            f"budget.amount = {amount:g} cannot be raised: the decay of optimizer.schedule = 'wsd' has begun "
            f"({share:.0%} of the budget is spent); a run in another --workdir can take a checkpoint from before it by "
            "init_from and init_state = 'branch'"
        )
    if before["budget.kind"] == "steps" and warmup > amount:
        return f"budget.amount = {amount:g} cannot be raised: optimizer.warmup_steps = {warmup} was cut to it"
    return ""
