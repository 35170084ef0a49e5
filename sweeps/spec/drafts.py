"""A sweep file as given: split into its studies, and checked as far as possible before arms are built."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from configs import cli, columns, fields
from configs.errors import UserError, nearest
from configs.evaluations import EVALUATIONS
from sweeps.spec import axes, ladder, looks, match, names, select
from sweeps.spec import where as conditions

EVALS = tuple(EVALUATIONS)
INHERITED = (
    "base",
    "arm",
    "where",
    "ladder",
    "match",
    "seeds",
    "care",
    "select",
    "solved",
    "target",
    "evals",
    "columns",
)  # beside `studies`, they apply to each study
SHARED_KEYS = ("title", "question", "fixed", "derived", *INHERITED)
STUDY_KEYS = ("axes", "baseline", "highlight", *SHARED_KEYS)
MOST_SEEDS = 2**63  # as in `config.seed`
SOLVED = {"accuracy": 1.0, "loss": 1e9}  # the keys of `solved`, and their maximum values


@dataclass
class Draft:
    """A study from the file, with shared keys merged in."""

    name: str
    where: str  # its prefix in messages: "" for the only study
    given: dict[str, Any]
    folder: Path
    fixed: frozenset[str] = frozenset()  # the fields of its own `fixed`, not of the shared one
    base: ConfigDict = field(default_factory=ConfigDict)


def split(given: Any, file: Path) -> tuple[list[Draft], list[str]]:
    """Splits a sweep into its studies and reports every unknown key."""
    if not isinstance(given, Mapping):
        return [], [f"get_sweep() returned {type(given).__name__}, must be a dictionary"]
    if "studies" not in given:
        known = ("name", "studies", *STUDY_KEYS)
        problems = _unknown_keys(given, known, "")
        name = given.get("name") or file.stem
        rest = {key: value for key, value in given.items() if key != "name"}
        return [Draft(str(name), "", rest, file.parent, _fields(rest))], problems
    problems = _unknown_keys(given, ("name", "studies", *SHARED_KEYS), "beside `studies`: ")
    studies = given["studies"]
    if not isinstance(studies, Mapping) or not studies:
        return [], [*problems, f"studies = {studies!r}: must be a dictionary of studies by name"]
    shared = {key: given[key] for key in INHERITED if key in given}
    drafts = []
    for name, study in studies.items():
        if not isinstance(study, Mapping):
            problems.append(f"studies.{name} = {study!r}: must be a dictionary")
            continue
        problems += _unknown_keys(study, STUDY_KEYS, f"studies.{name}: ")
        merged = {**shared, **study}
        for key in ("fixed", "derived"):
            parts = [given.get(key) or {}, study.get(key) or {}]
            if all(isinstance(part, Mapping) for part in parts):
                merged[key] = {**parts[0], **parts[1]}
        drafts.append(Draft(str(name), f"studies.{name}.", merged, file.parent, _fields(study)))
    return drafts, problems


def _fields(given: Mapping[str, Any]) -> frozenset[str]:
    table = given.get("fixed")
    return frozenset(map(str, table)) if isinstance(table, Mapping) else frozenset()


def _unknown_keys(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> list[str]:
    return [f"{where}unknown key {key!r}{nearest(str(key), known)}" for key in given if key not in known]


def check_study(draft: Draft, overrides: Mapping[str, Any]) -> list[str]:
    """Reports everything that can be checked before a study's arms are built; loads its base config."""
    given, where = draft.given, draft.where
    problems = []
    base = given.get("base")
    if not isinstance(base, str) or not base:
        problems.append(f"{where}base = {base!r}: must name a config file, such as 'configs/lm.py'")
    else:
        try:
            draft.base = cli.load(base, near=draft.folder)
        except UserError as error:
            problems += [f"{where}base: {line}" for line in str(error).splitlines()]
    problems += _check_table(given.get("fixed", {}), f"{where}fixed", callables=False)
    problems += _check_table(given.get("derived", {}), f"{where}derived", callables=True)
    problems += _check_axes(given.get("axes", []), f"{where}axes")
    problems += looks.check(given.get("seeds", [0]), given, where) or _check_seeds(seeds_of(given), f"{where}seeds")
    problems += looks.check_care(given, where)
    problems += _check_evals(given.get("evals", ["loss"]), f"{where}evals")
    problems += names.check_template(given.get("arm"), f"{where}arm")
    problems += columns.check(given.get("columns"), given, where)
    problems += _check_highlight(given.get("highlight"), f"{where}highlight")
    problems += _check_solved(given.get("solved"), f"{where}solved")
    target = 1.0 if given.get("target") is None else given["target"]
    if isinstance(target, bool) or not isinstance(target, int | float) or not 0 < target < math.inf:
        problems.append(f"{where}target = {target!r}: must be a validation loss in nats, above 0")
    problems += conditions.check(given.get("where"), f"{where}where")
    for key in ("title", "question", "baseline"):
        if not isinstance(given.get(key), str | None):
            problems.append(f"{where}{key} = {given[key]!r}: must be text")
    if not problems:
        choices = axes.assignments({"product": list(given["axes"])}) if given.get("axes") else [{}]
        idle = [
            name for name in draft.fixed if all(name in choice for choice in choices)
        ]  # fields that axes always set
        problems += [f"{where}fixed: {name} is an axis too; remove one" for name in sorted(idle)]
        problems += _check_overrides(draft, overrides)
        varied = _taken(draft, with_ladder=False)
        evals = given.get("evals", ["loss"])
        problems += ladder.check(given.get("ladder"), varied, draft.fixed, evals, f"{where}ladder")
        problems += match.check(given.get("match"), _taken(draft), f"{where}match")
        taken = dict.fromkeys(overrides, "given on the command line") | _taken(draft)
        problems += select.check(given.get("select"), taken, seeds_of(given, every=True), f"{where}select")
    return problems


def _taken(draft: Draft, with_ladder: bool = True) -> dict[str, str]:
    """Returns {field: what sets it in each arm}."""
    rungs = draft.given.get("ladder") if with_ladder else None
    climbed = dict.fromkeys(ladder.sets(rungs), "the ladder's") if isinstance(rungs, Mapping) else {}
    varied = axes.fields_of({"product": draft.given["axes"]}) if draft.given.get("axes") else []
    return dict.fromkeys(varied, "an axis") | dict.fromkeys(draft.given.get("derived", {}), "derived") | climbed


def _check_table(table: Any, where: str, *, callables: bool) -> list[str]:
    if not isinstance(table, Mapping):
        return [f"{where} = {table!r}: must be a dictionary of fields"]
    problems = []
    for name, value in table.items():
        if name in axes.RESERVED:
            problems.append(f"{where}: {name} cannot be set here; {axes.RESERVED[name]}")
        elif name not in fields.types():
            problems.append(f"{where}: {axes.unknown_field(str(name))}")
        elif callables and not callable(value):
            problems.append(f"{where}: {name} = {value!r}: must be a function of the arm's config, or go into `fixed`")
        elif not callables:
            problems += [f"{where}: {problem}" for problem in axes.type_problems(name, value)]
    return problems


def _check_axes(given: Any, where: str) -> list[str]:
    if not isinstance(given, list | tuple):
        return [f"{where} = {given!r}: must be a list of axes"]
    problems = [problem for i, axis in enumerate(given) for problem in axes.check(axis, f"{where}[{i}]")]
    if problems or not given:
        return problems
    number = axes.count({"product": given})
    if number > axes.MOST_ARMS:
        return [f"{where}: {number} arms; at most {axes.MOST_ARMS}"]
    return axes.check_disjoint(given, where)


def seeds_of(given: Mapping[str, Any], every: bool = False) -> Any:
    """Returns a study's seeds from its file; for a plan of looks those of the first look, or of `every` look."""
    seeds = given.get("seeds", [0])
    if not isinstance(seeds, Mapping):
        return seeds
    return range(seeds["looks"][-1 if every else 0])


def _check_seeds(seeds: Any, where: str) -> list[str]:
    if not isinstance(seeds, list | tuple | range) or not seeds:
        return [f"{where} = {seeds!r}: must be a list of whole numbers, such as [0, 1, 2]"]
    bad = [s for s in seeds if isinstance(s, bool) or not isinstance(s, int) or not 0 <= s < MOST_SEEDS]
    if bad:
        return [f"{where} = {list(seeds)}: {bad[0]!r} is not a whole number in 0 .. {MOST_SEEDS - 1}"]
    if len(set(seeds)) < len(seeds):
        return [f"{where} = {list(seeds)}: lists a seed twice"]
    return []


def _check_solved(solved: Any, where: str) -> list[str]:
    """Checks `solved`: the accuracy at the training length, or validation loss, that solves the task."""
    if solved is None:
        return []
    if not isinstance(solved, Mapping) or not solved:
        return [f"{where} = {solved!r}: must be dict(accuracy=0.9), dict(loss=0.2) or both"]
    problems = [f"{where}: unknown key {k!r}{nearest(str(k), SOLVED)}" for k in solved if k not in SOLVED]
    for key, most in SOLVED.items():
        value = solved.get(key, most)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            problems.append(f"{where}.{key} = {value!r}: must be above 0" + (" and at most 1" if most == 1 else ""))
    return problems


def _check_evals(evals: Any, where: str) -> list[str]:
    if not isinstance(evals, list | tuple):
        return [f"{where} = {evals!r}: must be a list of {', '.join(EVALS)}"]
    problems = [
        f"{where}: unknown evaluation {e!r}{nearest(str(e), EVALS)}; there are {', '.join(EVALS)}"
        for e in evals
        if e not in EVALS
    ]
    if len(set(map(str, evals))) < len(evals):
        problems.append(f"{where} = {list(evals)}: lists an evaluation twice")
    return problems


def _check_overrides(draft: Draft, overrides: Mapping[str, Any]) -> list[str]:
    taken = _taken(draft)
    problems = []
    for name in overrides:
        if name in axes.RESERVED:
            problems.append(f"--config.{name}: is set by the sweep; {axes.RESERVED[name]}")
        elif name in taken:
            problems.append(f"--config.{name}: is {taken[name]} of {draft.name}; change it in the sweep file")
    return problems


def _check_highlight(given: Any, where: str) -> list[str]:
    if given is None or (isinstance(given, list | tuple) and all(isinstance(name, str) for name in given)):
        return []
    return [f"{where} = {given!r}: must be a list of arms' names"]
