"""A hyperparameter tuned for each arm: selected on selection seeds, reported on others.

    select=dict(field="optimizer.learning_rate", values=[1e-3, 3e-3, 1e-2], seeds=[100, 101])

trains every arm with every value on the selection seeds first, in separate runs (`runs/<arm>@learning_rate=0.003/
seed100`). The value with the lowest mean validation loss over those seeds is the arm's; the arm's own runs then start
with it, on the study's `seeds`. A value with a diverged selection run is excluded. Choices are read from the runs'
files, so that a stopped sweep continues; sweep.json records them. No JAX.

For runs on text the trials are scored on one part of the validation documents, `eval.split = "selection"`, and the arms
on the other, "test" (data/parts.py): no text that a claim is made on was used to choose.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from configs import fields, provenance, validate
from configs.documents import ordinary
from configs.errors import nearest
from configs.rules import tasks
from sweeps.spec import axes, names
from sweeps.spec.sweep import Arm, Choice, Run, Selection, Study, Sweep

if TYPE_CHECKING:
    from sweeps.store.run_status import RunState

KEYS = ("field", "values", "seeds")
ALSO = ("model.dropout", "model.init_std")  # beside the optimizer's fields; others would change what is compared
SPLIT = "eval.split"  # trials are scored on one part of the validation text, claims are made on the other
MEASURED = "loss"  # the evaluation that decides


def check(given: Any, taken: Mapping[str, str], seeds: Any, where: str) -> list[str]:
    """Returns the problems of a sweep's `select`, one per line.

    Args:
        given: the dictionary, or None.
        taken: {field: what already sets it}.
        seeds: the study's, which must be different.
        where: its name in messages.
    """
    if given is None:
        return []
    if not isinstance(given, Mapping):
        return [f"{where} = {given!r}: must be dict(field=, values=, seeds=)"]
    problems = [f"{where}: unknown key {key!r}{nearest(str(key), KEYS)}" for key in given if key not in KEYS]
    problems += [f"{where}.{key}: is missing" for key in KEYS if key not in given]
    if problems:
        return problems
    return [
        *_check_field(given, taken, where),
        *_check_values(given, where),
        *_check_seeds(given["seeds"], seeds, where),
    ]


def _check_field(given: Mapping[str, Any], taken: Mapping[str, str], where: str) -> list[str]:
    field = given["field"]
    if field not in fields.types():
        return [f"{where}.field: {axes.unknown_field(str(field))}"]
    if fields.types()[field] not in (int, float) or not (field.startswith("optimizer.") or field in ALSO):
        return [f"{where}.field = {field!r}: must be a number of `optimizer`, or {' or '.join(ALSO)}"]
    return [f"{where}.field = {field!r}: is already {taken[field]}"] if field in taken else []


def _check_values(given: Mapping[str, Any], where: str) -> list[str]:
    values = given["values"]
    if not isinstance(values, list | tuple) or len(values) < 2:
        return [f"{where}.values = {values!r}: must be a list of at least two values"]
    known = given["field"] in fields.types()
    problems = [p for value in values for p in (axes.type_problems(given["field"], value) if known else [])]
    if not problems and len(set(values)) < len(values):
        problems = [f"{given['field']} lists a value twice"]
    return [f"{where}.values: {problem}" for problem in problems]


def _check_seeds(given: Any, seeds: Any, where: str) -> list[str]:
    if not isinstance(given, list | tuple | range) or not given:
        return [f"{where}.seeds = {given!r}: must be a list of whole numbers, such as [100, 101]"]
    if len(set(given)) < len(given) or any(isinstance(s, bool) or not isinstance(s, int) or s < 0 for s in given):
        return [f"{where}.seeds = {list(given)}: must be different whole numbers, 0 or more"]
    both = sorted(set(given) & set(seeds))
    if both:
        return [f"{where}.seeds: {both[0]} is also one of `seeds`; a choice must be reported on other seeds"]
    return []


def of(given: Mapping[str, Any] | None) -> Selection | None:
    """Returns a checked `select` with increasing values."""
    if given is None:
        return None
    kind = fields.types()[given["field"]]
    return Selection(given["field"], tuple(sorted(kind(value) for value in given["values"])), tuple(given["seeds"]))


def trials(selection: Selection, arms: tuple[Arm, ...], where: str) -> tuple[list[Arm], list[str]]:
    """Returns the arms that try every value for every arm, and a line for each impossible one."""
    result, problems = [], []
    for arm in arms:
        for value in selection.values:
            config = _scored_on("selection", _with(arm.config, selection.field, value))
            wrong = validate.problems(config)
            name = selection.arm(arm.name, value)
            if len(name) > names.LONGEST:
                wrong = [*wrong, f"its name is longer than {names.LONGEST} characters"]
            problems += [f"{where}arm {name}: {'; '.join(wrong)}"] if wrong else []
            given = {selection.field: value}
            split = {SPLIT: config.eval.split} if config.eval.split != arm.config.eval.split else {}
            result.append(
                replace(arm, name=name, overrides={**arm.overrides, **split, **given}, varied=given, config=config)
            )
    return result, problems


def reported(arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
    """Returns the arms of a study that selects; if they train on text, scored on text that no choice is based on."""
    results = []
    for arm in arms:
        config = _scored_on("test", arm.config)
        split = {SPLIT: config.eval.split} if config.eval.split != arm.config.eval.split else {}
        results.append(replace(arm, config=config, overrides={**arm.overrides, **split}))
    return tuple(results)


def _scored_on(split: str, config: ConfigDict) -> ConfigDict:
    return _with(config, SPLIT, split) if tasks.uses(config, "text") else config


def _with(config: ConfigDict, field: str, value: float | str) -> ConfigDict:
    config = config.copy_and_resolve_references()
    fields.set_field(config, field, value)
    return config


def ready(run: Run, board: "Mapping[str, RunState]") -> bool:
    """Returns whether a run's hyperparameter can be chosen: its selection runs are measured, or have diverged."""
    return run.select is None or all(_settled(board[key]) for key in run.select.keys(run.arm))


def _settled(current: "RunState") -> bool:
    measured = current.status == "done" and MEASURED not in current.missing and MEASURED not in current.eval_errors
    return measured or current.status == "diverged"


def choose(selection: Selection, arm: str, loss: Callable[[str], float | None]) -> Choice | None:
    """Returns an arm's choice: the value with the lowest mean loss over the selection seeds; of equals the smallest.

    Args:
        loss: from a run's key, in nats; infinite for one that diverged; None for one that is not measured yet.

    Returns:
        None while a loss is missing.
    """
    losses: dict[float, float] = {}
    for value in selection.values:
        results = [loss(f"{selection.arm(arm, value)}/seed{seed}") for seed in selection.seeds]
        measured = [one for one in results if one is not None]
        if len(measured) < len(results):
            return None
        mean = sum(measured) / len(measured)
        losses[value] = mean if math.isfinite(mean) else math.inf
    best = min(losses, key=lambda value: (losses[value], value))
    return Choice(selection.field, best if math.isfinite(losses[best]) else None, losses)


def read(directory: Path, selection: Selection, arm: str) -> Choice | None:
    """Returns the choice from the files of a sweep directory for an arm; None while runs are not measured."""

    def loss(key: str) -> float | None:
        folder = directory / "runs" / key
        if _object(folder / "run.json").get("status") == "diverged":
            return math.inf
        if provenance.problem(folder, MEASURED):
            return None
        value = _object(folder / "eval" / f"{MEASURED}.json").get("loss")
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    return choose(selection, arm, loss)


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(ordinary(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def decided(directory: Path, run: Run) -> ConfigDict:
    """Returns a run's config with the hyperparameter chosen for its arm, if there is a choice."""
    choice = None if run.select is None else read(directory, run.select, run.arm)
    return run.config if choice is None or choice.value is None else _with(run.config, choice.field, choice.value)


def unrunnable(directory: Path, run: Run) -> str:
    """Returns why a run can never start: every value diverged; empty otherwise."""
    choice = None if run.select is None else read(directory, run.select, run.arm)
    if choice is None or choice.value is not None:
        return ""
    return f"not started: a selection run diverged with every tried {choice.field}"


def blocked_by(run: Run, board: "Mapping[str, RunState]") -> str:
    """Returns which selection run prevents a run from starting; empty if none does."""
    waits = [] if run.select is None else [key for key in run.select.keys(run.arm) if not _settled(board[key])]
    if not waits:
        return ""
    status = board[waits[0]].status
    how = "not evaluated" if status == "done" else status
    return f"not started: {waits[0]}, by which its {run.select.field if run.select else ''} is chosen, is {how}"


def summary(directory: Path, sweep: Sweep) -> Iterator[tuple[str, str]]:
    """Yields (arm, its choice in words) for every arm with a choice."""
    for study in sweep.studies:
        for arm in study.arms if study.select else ():
            assert study.select is not None
            choice = read(directory, study.select, arm.name)
            if choice is not None and choice.value is not None:
                edge = f", the {choice.edge} tried: a better one may be outside" if choice.edge else ""
                seeds = study.select.seeds
                tried = f"{len(choice.losses)} values on seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
                yield arm.name, f"{arm.name}: {choice.field} = {choice.value} chosen of {tried}{edge}"


def applied(directory: Path, sweep: Sweep) -> Sweep:
    """Returns the sweep with every choice made so far: in its arms' configs, and in its studies' `choices`."""
    return replace(sweep, studies=tuple(_applied(directory, study) for study in sweep.studies))


def _applied(directory: Path, study: Study) -> Study:
    if study.select is None:
        return study
    results = {arm.name: read(directory, study.select, arm.name) for arm in study.arms}
    choices = {name: choice for name, choice in results.items() if choice is not None}
    arms = tuple(_chosen(arm, choices.get(arm.name)) for arm in study.arms)
    return replace(study, arms=arms, choices=choices)


def _chosen(arm: Arm, choice: Choice | None) -> Arm:
    if choice is None or choice.value is None:
        return arm
    config = _with(arm.config, choice.field, choice.value)
    return replace(arm, config=config, overrides={**arm.overrides, choice.field: choice.value})


def described(study: Study) -> dict[str, Any] | None:
    """Returns the entry in sweep.json of a study's selection and of the choices made so far."""
    if study.select is None:
        return None
    return {
        "field": study.select.field,
        "values": list(study.select.values),
        "seeds": list(study.select.seeds),
        "choices": {name: choice.described() for name, choice in study.choices.items()},
    }
