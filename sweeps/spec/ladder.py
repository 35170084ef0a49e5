"""A ladder: every arm at several budgets or sizes, for gains in compute (python -m report.ladder, docs/ladder.md).

    ladder=dict(by="budget.amount", values=[50, 100, 200, 400])

trains every arm with each budget, in the unit of the config's `budget.kind`. The highest rung is the arm itself, under
its own name; the lower ones are separate arms (`h1@amount=50`), with the study's seeds and with their own selection if
the study has `select`. Keys:

    by                    budget.amount, or a size: model.width, model.num_layers
    values                two or more numbers
    branches              with budget.amount and optimizer.schedule = "wsd": one run of the highest budget serves all;
                          each lower rung continues its checkpoint from where its own decay starts, and is, to the bit,
                          the run that would have been trained alone. `select` then chooses once, at the highest rung
    tokens_per_parameter  for a ladder by size, required: each rung trains on this many tokens per parameter

Of the study's evaluations, the lower rungs run `loss` and `throughput`. No JAX.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from configs import fields
from configs.errors import nearest
from sweeps.spec import axes, chains, match, names
from sweeps.spec.sweep import Arm, Ladder

KEYS = ("by", "values", "branches", "tokens_per_parameter")
BUDGET = "budget.amount"
SIZES = ("model.width", "model.num_layers")
EVALS = ("loss", "throughput")  # of the study's evaluations, those that a lower rung runs
MEASURED = "loss"  # the evaluation that gains are computed from


def check(given: Any, taken: Mapping[str, str], fixed: frozenset[str], evals: Any, where: str) -> list[str]:
    """Returns the problems of a sweep's `ladder`, one per line.

    Args:
        given: the dictionary, or None.
        taken: {field: what already sets it}.
        fixed: the fields of the study's own `fixed`.
        evals: the study's.
        where: its name in messages.
    """
    if given is None:
        return []
    if not isinstance(given, Mapping):
        return [f"{where} = {given!r}: must be dict(by=, values=)"]
    problems = [f"{where}: unknown key {key!r}{nearest(str(key), KEYS)}" for key in given if key not in KEYS]
    problems += [f"{where}.{key}: is missing" for key in ("by", "values") if key not in given]
    if problems:
        return problems
    by = given["by"]
    if by not in (BUDGET, *SIZES):
        return [f"{where}.by = {by!r}: must be {BUDGET}, {' or '.join(SIZES)}{nearest(str(by), (BUDGET, *SIZES))}"]
    if by in taken:
        problems.append(f"{where}.by = {by!r}: is already {taken[by]}")
    problems += [
        f"{where}: {name} is also in `fixed`, which the ladder would overwrite"
        for name in sorted(fixed & set(sets(given)))
    ]
    if MEASURED not in evals:
        problems.append(f"{where}: evals must contain {MEASURED!r}, from which gains are computed")
    return [*problems, *_check_values(given, where), *_check_kind(given, taken, where)]


def sets(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the fields that a ladder sets."""
    return (BUDGET,) if given.get("by") == BUDGET else (str(given.get("by")), BUDGET, "budget.kind")


def _check_values(given: Mapping[str, Any], where: str) -> list[str]:
    values = given["values"]
    if not isinstance(values, list | tuple | range) or len(values) < 2:
        return [f"{where}.values = {values!r}: must be a list of at least two values"]
    problems = [f"{where}.values: {p}" for value in values for p in axes.type_problems(given["by"], value)]
    if not problems:
        bad = [value for value in values if not 0 < value < math.inf]
        problems += [f"{where}.values: {value!r} must be above 0" for value in bad]
        if len({f"{value:g}" for value in values}) < len(values):
            problems.append(f"{where}.values = {list(values)!r}: lists a value twice")
    return problems


def _check_kind(given: Mapping[str, Any], taken: Mapping[str, str], where: str) -> list[str]:
    branches, each = given.get("branches", False), given.get("tokens_per_parameter")
    problems = []
    if not isinstance(branches, bool):
        problems.append(f"{where}.branches = {branches!r}: must be True or False")
    if given["by"] == BUDGET:
        return problems if each is None else [*problems, f"{where}.tokens_per_parameter: is for a ladder by size"]
    if branches:
        problems.append(f"{where}.branches: a run of one size cannot serve another; must be by {BUDGET}")
    if isinstance(each, bool) or not isinstance(each, int | float) or not 0 < each < math.inf:
        problems.append(f"{where}.tokens_per_parameter = {each!r}: a ladder by size needs a number above 0, such as 20")
    problems += [f"{where}: sets {name}, which is already {taken[name]}" for name in sets(given)[1:] if name in taken]
    return problems


def of(given: Mapping[str, Any] | None) -> Ladder | None:
    """Returns a checked `ladder` with increasing values."""
    if given is None:
        return None
    kind = fields.types()[given["by"]]
    values = tuple(sorted(kind(value) for value in given["values"]))
    return Ladder(given["by"], values, given.get("branches", False), given.get("tokens_per_parameter"))


def rung(ladder: Ladder, value: float, arms: list[Arm], where: str) -> tuple[list[Arm], list[str]]:
    """Returns the arms of a rung, with names and budgets, and a line for each impossible one.

    Args:
        arms: expanded with the ladder's field at `value`.
    """
    result, problems = [], []
    for arm in arms:
        one = _at(ladder, value, arm)
        if len(one.name) > names.LONGEST:
            problems.append(f"{where}arm {one.name}: its name is longer than {names.LONGEST} characters")
        if chains.continued(arm.config) is not None or (ladder.branches and arm.config.init_from):
            problems.append(
                f"{where}arm {one.name}: init_from = {arm.config.init_from!r}: an arm on a ladder must start from "
                "scratch, or its compute would not be complete"
            )
        elif ladder.branches and arm.config.optimizer.schedule != "wsd":
            problems.append(
                f"{where}arm {one.name}: optimizer.schedule = {arm.config.optimizer.schedule!r}: branches need wsd, "
                "whose rate does not depend on the budget before the decay"
            )
        elif ladder.branches and arm.config.budget.kind == "seconds":
            problems.append(f"{where}arm {one.name}: budget.kind = 'seconds': its steps are unknown, so no branches")
        result.append(one)
    return result, problems


def _at(ladder: Ladder, value: float, arm: Arm) -> Arm:
    changed: dict[str, Any] = {}
    top = value == ladder.values[-1]
    if ladder.tokens_per_parameter is not None:
        changed["budget.kind"] = "tokens"
        changed[BUDGET] = float(ladder.tokens_per_parameter * match.count("parameters", arm.config))
    if ladder.branches and top:
        changed["checkpoint.branches"] = ladder.values[:-1]
    elif ladder.branches:
        changed |= {"init_from": f"{chains.PREFIX}{arm.name}", "init_state": "branch"}
    config = arm.config.copy_and_resolve_references()
    for name, one in changed.items():
        fields.set_field(config, name, one)
    return replace(
        arm,
        name=f"{arm.name}{ladder.suffix(value)}",
        overrides={**arm.overrides, ladder.by: value, **changed},
        config=config,
        rung_of=arm.name,
    )
