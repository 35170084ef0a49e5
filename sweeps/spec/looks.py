"""Seeds added look by look, by a plan in the sweep file: `seeds=dict(looks=(5, 10, 20), care=0.01)`.

The launcher trains seeds 0 .. 4 of every arm and compares each with the baseline by validation loss. If every
difference is resolved, or known to be smaller than `care` nats, it is done; else it continues with seeds 5 .. 9, and so
on. Testing repeatedly at 5% would make far more than 5% false claims, so each look spends a part of it
(report/statistics/sequential.py). The report makes the decision: the launcher stops on what the page says.

With an ordinary list of seeds, `care` lets the report say how many seeds would show a difference of that size.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from configs.errors import nearest
from report.statistics import sequential
from report.statistics.sequential import Plan
from sweeps.spec.sweep import Study, Sweep

KEYS = ("looks", "care")
MEASURED = "loss"  # the evaluation whose differences decide


def check(seeds: Any, given: Mapping[str, Any], where: str) -> list[str]:
    """Returns the problems of a plan of looks; empty for an ordinary list of seeds."""
    if not isinstance(seeds, Mapping):
        return []
    problems = [f"{where}seeds: unknown key {key!r}{nearest(str(key), KEYS)}" for key in seeds if key not in KEYS]
    problems += [f"{where}seeds.{key}: is missing" for key in KEYS if key not in seeds]
    if problems:
        return problems
    looks = seeds["looks"]
    if not isinstance(looks, list | tuple):
        return [f"{where}seeds.looks = {looks!r}: must be numbers of seeds, such as (5, 10, 20)"]
    if wrong := sequential.check(tuple(looks), seeds["care"]):
        return [f"{where}seeds = {dict(seeds)!r}: {wrong}"]
    evals = given.get("evals", ["loss"])
    if isinstance(evals, list | tuple) and MEASURED not in evals:
        problems.append(f"{where}evals = {list(evals)}: must contain {MEASURED!r}, by which a plan of seeds decides")
    if given.get("ladder") is not None:
        problems.append(f"{where}seeds: a ladder's rungs share their seeds; use a list of seeds, not looks")
    if given.get("care") is not None:
        problems.append(f"{where}care: is also set as seeds.care; remove one")
    return problems


def check_care(given: Mapping[str, Any], where: str) -> list[str]:
    """Returns the problems of `care`, the smallest difference of losses that matters."""
    care = given.get("care")
    if care is None:
        return []
    number = isinstance(care, int | float) and not isinstance(care, bool) and 0 < care < float("inf")
    return [] if number else [f"{where}care = {care!r}: must be a number above 0, in nats"]


def plan_of(given: Mapping[str, Any]) -> Plan | None:
    """Returns the plan of a checked study; None for an ordinary list of seeds."""
    seeds = given.get("seeds")
    return Plan(tuple(seeds["looks"]), float(seeds["care"])) if isinstance(seeds, Mapping) else None


def resumed(sweep: Sweep, recorded: Mapping[str, Any]) -> Sweep:
    """Returns the sweep with the seeds of as many looks as sweep.json has reached.

    Args:
        sweep: from the file, with the first look's seeds.
        recorded: the directory's sweep.json; empty for a new one. Only a number of seeds is read from it, and only one
            of the plan's.
    """
    before = {study.get("name"): study.get("seeds") for study in recorded.get("studies", [])}

    def again(study: Study) -> Study:
        seeds = before.get(study.name)
        if study.plan is None or not isinstance(seeds, list):
            return study
        reached = [number for number in study.plan.looks if number <= len(seeds)]
        return replace(study, seeds=tuple(range(max(reached, default=study.plan.looks[0]))))

    return replace(sweep, studies=tuple(again(study) for study in sweep.studies))


def looked(sweep: Sweep, recorded: Mapping[str, Any], measured: Callable[[str], set[int]]) -> Sweep:
    """Returns the sweep with the numbers of seeds at which its studies without a plan were looked at before.

    A list of seeds that was extended after results existed was looked at, at its former number of seeds.

    Args:
        recorded: the directory's sweep.json; empty for a new one.
        measured: from a study's name to the seeds of its measured runs; called only for studies that were extended.
    """
    before = {study.get("name"): study for study in recorded.get("studies", [])}

    def marked(study: Study) -> Study:
        earlier = before.get(study.name, {})
        seeds, known = set(earlier.get("seeds") or []), earlier.get("looked") or []
        known = [number for number in known if isinstance(number, int)] if isinstance(known, list) else []
        grown = bool(seeds) and bool(set(study.seeds) - seeds) and study.plan is None and len(seeds) not in known
        more = [len(seeds)] if grown and seeds & measured(study.name) else []
        return replace(study, looked=(*known, *more))

    return replace(sweep, studies=tuple(marked(study) for study in sweep.studies))


@dataclass(frozen=True)
class State:
    """The state of a plan: look `number` of `of` (0: none) is complete, with `seeds` seeds; `left`: open arms."""

    number: int
    of: int
    seeds: int
    left: tuple[str, ...]

    @property
    def words(self) -> str:
        """The state as a phrase."""
        if not self.number:
            return f"look 1 of {self.of} ({self.seeds} seeds) is not complete"
        state = f"open: {', '.join(self.left)}" if self.left else "every comparison is decided"
        return f"after look {self.number} of {self.of}, {self.seeds} seeds: {state}"


def states(directory: Path, studies: Iterable[str]) -> dict[str, State]:
    """Returns the states of these studies' plans, as judged by the report of the sweep directory."""
    expected = set(studies)
    if not expected:
        return {}
    from report.claims import comparing
    from report.reading.directories import read

    results = {}
    for study in read(directory).studies:
        look = comparing.look(study) if study.name in expected else None
        if look is not None:
            compared = [one for one in comparing.comparisons(study) if one.measure == MEASURED]
            left = tuple(one.arm for one in compared if comparing.is_open(one))
            results[study.name] = State(look.number, look.of, look.seeds, left)
    return results


def grown(sweep: Sweep, directory: Path) -> tuple[Sweep, list[str]]:
    """Returns the sweep with the next look's seeds if comparisons are open, and a line per study on its state.

    A study whose look is not complete, for example because a run failed, is unchanged.
    """
    known = states(directory, [study.name for study in sweep.studies if study.plan])
    result, lines = [], []
    for study in sweep.studies:
        state = known.get(study.name)
        if study.plan is not None and state is not None and state.number and state.seeds == len(study.seeds):
            line = f"{study.name}: {state.words}"
            if state.left and state.number < state.of:
                number = study.plan.looks[state.number]
                line, study = f"{line}; continuing to {number} seeds", replace(study, seeds=tuple(range(number)))
            lines.append(line)
        result.append(study)
    return replace(sweep, studies=tuple(result)), lines


def planned(recorded: Mapping[str, Any]) -> list[str]:
    """Returns the studies of a sweep.json that add seeds by a plan."""
    return [study["name"] for study in recorded.get("studies", []) if isinstance(study.get("plan"), dict)]
