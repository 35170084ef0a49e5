"""From a sweep file to arms with resolved configs; everything impossible is refused at once, before anything runs.

A sweep file has `get_sweep()`, which returns a dictionary:

    dict(
        name="head_count",
        title="...", question="...",                          # for the report
        base="configs/lm.py",                                 # a config file, from the checkout or beside this file
        fixed={"budget.amount": 2000},                        # set on every arm
        axes=[{"model.num_heads": [1, 2, 4]}, ...],           # multiplied; see sweeps/axes.py
        derived={"model.head_dim": lambda c: c.model.width // c.model.num_heads},  # in order, after the axes
        arm="h{model.num_heads}",                             # or a function of the arm's config; unset: from the axes
        seeds=[0, 1],
        baseline="h4",                                        # the arm others are compared with
        evals=["loss", "throughput"],                         # run after training
    )

or `dict(name=..., studies={"heads": {...}, "windows": {...}})`, where each study is such a dictionary, and `base`,
`fixed`, `derived`, `arm`, `seeds` and `evals` beside `studies` hold for all of them. Arm names are unique over all
studies, because they name folders, and an arm may continue another one's runs (`init_from = "arm:NAME"`, see
sweeps/chains.py). Command-line overrides hold for every arm; they come after `fixed` and the axes and
before `derived`, so that derived fields follow them.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from configs import cli, fields, validate
from configs.errors import ConfigError, UserError, nearest
from sweeps import axes, chains, names

EVALS = ("loss", "retrieval", "throughput", "memory", "equivalence")  # those of eval.run, which would import JAX
STUDY_KEYS = ("title", "question", "base", "fixed", "axes", "derived", "arm", "seeds", "baseline", "evals")
SHARED_KEYS = ("title", "question", "base", "fixed", "derived", "arm", "seeds", "evals")
MOST_SEEDS = 2**31


@dataclass(frozen=True)
class Arm:
    """One setting of a study: `overrides` is what differs from the base config, `config` is resolved."""

    study: str
    name: str
    overrides: dict[str, Any]
    varied: dict[str, Any]
    config: ConfigDict


@dataclass(frozen=True)
class Run:
    """One arm with one seed: one run directory."""

    study: str
    arm: str
    seed: int
    config: ConfigDict
    evals: tuple[str, ...]

    @property
    def key(self) -> str:
        """The run's folder below `runs/`, and how messages name it."""
        return f"{self.arm}/seed{self.seed}"


@dataclass(frozen=True)
class Study:
    """Arms that are compared with each other."""

    name: str
    title: str
    question: str
    base: str
    baseline: str | None
    evals: tuple[str, ...]
    seeds: tuple[int, ...]
    arms: tuple[Arm, ...]


@dataclass(frozen=True)
class Sweep:
    """A whole sweep file, expanded."""

    name: str
    title: str
    file: str
    text: str
    overrides: dict[str, Any]
    studies: tuple[Study, ...]

    def runs(self) -> list[Run]:
        """Returns every run, the seeds of an arm one after the other, so that its compiled programs serve them all."""
        return [
            Run(study.name, arm.name, seed, with_seed(arm, seed), study.evals)
            for study in self.studies
            for arm in study.arms
            for seed in study.seeds
        ]


@dataclass
class _Draft:
    """A study as the file gives it, its shared keys merged in."""

    name: str
    where: str  # how messages name it: "" for the only study
    given: dict[str, Any]
    folder: Path
    base: ConfigDict = field(default_factory=ConfigDict)


def with_seed(arm: Arm, seed: int) -> ConfigDict:
    """Returns the arm's config for one seed, labelled with the arm's name."""
    config = copy.deepcopy(arm.config)
    config.seed = seed
    config.name = arm.name
    return config


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """Reads a sweep file and expands it.

    Args:
        path: the file, with `get_sweep()`.
        overrides: `{dotted field: value}` for every arm (the command line's `--config.x=v`).

    Raises:
        UserError: the file is missing, fails, or has no `get_sweep`.
        ConfigError: with one line for each thing wrong with it and for each arm that cannot be.
    """
    module = cli.load_module(path)
    if not hasattr(module, "get_sweep"):
        hint = " (it is a config: use train.py --config)" if hasattr(module, "get_config") else ""
        raise UserError(f"{path}: has no get_sweep(){hint}")
    try:
        given = module.get_sweep()
    except Exception as error:
        raise UserError(f"{path}: get_sweep() failed: {type(error).__name__}: {error}") from error
    file = Path(module.__file__ or path)
    return expand(given, file=file, overrides=overrides)


def expand(given: Any, *, file: Path, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """Expands a sweep dictionary (see `load`); `file` is where it came from."""
    overrides = dict(overrides or {})
    drafts, problems = _drafts(given, file)
    for draft in drafts:
        problems += _check_study(draft, overrides)
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    studies = []
    for draft in drafts:
        arms, wrong = _arms(draft, overrides)
        studies.append(_study(draft, arms))
        problems += wrong or _check_baseline(studies[-1])
    problems += names.collisions([arm.name for study in studies for arm in study.arms])
    problems += [] if problems else chains.problems(studies)
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    return Sweep(
        name=given.get("name") or file.stem,
        title=given.get("title") or "",
        file=_relative(file),
        text=file.read_text(encoding="utf-8") if file.is_file() else "",
        overrides=overrides,
        studies=tuple(studies),
    )


def _relative(file: Path) -> str:
    file = file.resolve()
    return file.relative_to(cli.CHECKOUT).as_posix() if file.is_relative_to(cli.CHECKOUT) else str(file)


def _drafts(given: Any, file: Path) -> tuple[list[_Draft], list[str]]:
    """Splits a sweep into its studies and names every key that does not belong."""
    if not isinstance(given, Mapping):
        return [], [f"get_sweep() gave {type(given).__name__}, must be a dictionary"]
    if "studies" not in given:
        known = ("name", "studies", *STUDY_KEYS)
        problems = _unknown_keys(given, known, "")
        name = given.get("name") or file.stem
        rest = {key: value for key, value in given.items() if key != "name"}
        return [_Draft(str(name), "", rest, file.parent)], problems
    problems = _unknown_keys(given, ("name", "studies", *SHARED_KEYS), "beside `studies`: ")
    studies = given["studies"]
    if not isinstance(studies, Mapping) or not studies:
        return [], [*problems, f"studies = {studies!r}: must be a dictionary of studies by name"]
    shared = {key: given[key] for key in ("base", "arm", "seeds", "evals") if key in given}
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
        drafts.append(_Draft(str(name), f"studies.{name}.", merged, file.parent))
    return drafts, problems


def _unknown_keys(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> list[str]:
    return [f"{where}unknown key {key!r}{nearest(str(key), known)}" for key in given if key not in known]


def _check_study(draft: _Draft, overrides: Mapping[str, Any]) -> list[str]:
    """Everything that can be said of a study before its arms are built; loads its base config."""
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
    problems += _check_seeds(given.get("seeds", [0]), f"{where}seeds")
    problems += _check_evals(given.get("evals", ["loss"]), f"{where}evals")
    problems += names.check_template(given.get("arm"), f"{where}arm")
    for key in ("title", "question", "baseline"):
        if not isinstance(given.get(key) or "", str):
            problems.append(f"{where}{key} = {given[key]!r}: must be text")
    if not problems:
        problems += _check_overrides(draft, overrides)
    return problems


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


def _check_seeds(seeds: Any, where: str) -> list[str]:
    if not isinstance(seeds, list | tuple | range) or not seeds:
        return [f"{where} = {seeds!r}: must be a list of whole numbers, such as [0, 1, 2]"]
    bad = [s for s in seeds if isinstance(s, bool) or not isinstance(s, int) or not 0 <= s < MOST_SEEDS]
    if bad:
        return [f"{where} = {list(seeds)}: {bad[0]!r} is no whole number of 0 .. {MOST_SEEDS - 1}"]
    if len(set(seeds)) < len(seeds):
        return [f"{where} = {list(seeds)}: lists a seed twice"]
    return []


def _check_evals(evals: Any, where: str) -> list[str]:
    if not isinstance(evals, list | tuple):
        return [f"{where} = {evals!r}: must be a list of {', '.join(EVALS)}"]
    problems = [f"{where}: unknown evaluation {e!r}{nearest(str(e), EVALS)}" for e in evals if e not in EVALS]
    if len(set(map(str, evals))) < len(evals):
        problems.append(f"{where} = {list(evals)}: lists an evaluation twice")
    return problems


def _check_overrides(draft: _Draft, overrides: Mapping[str, Any]) -> list[str]:
    varied = axes.fields_of({"product": draft.given["axes"]}) if draft.given.get("axes") else []
    derived = draft.given.get("derived", {})
    problems = []
    for name in overrides:
        if name in axes.RESERVED:
            problems.append(f"--config.{name}: a sweep sets it itself; {axes.RESERVED[name]}")
        elif name in varied:
            problems.append(f"--config.{name}: is an axis of {draft.name}; change the sweep file")
        elif name in derived:
            problems.append(f"--config.{name}: is derived in {draft.name}; change the sweep file")
    return problems


def _arms(draft: _Draft, overrides: Mapping[str, Any]) -> tuple[list[Arm], list[str]]:
    """Builds a study's arms, and a line for each one that cannot be."""
    given = draft.given
    choices = axes.assignments({"product": list(given["axes"])}) if given.get("axes") else [{}]
    arms: list[Arm] = []
    problems = []
    for varied in choices:
        config = copy.deepcopy(draft.base)
        overridden = {**given.get("fixed", {}), **varied, **overrides}
        cli.apply(config, overridden)
        label = names.default(varied) or draft.name
        derived, wrong = _derive(config, given.get("derived", {}))
        overridden |= derived
        if not wrong:
            wrong = validate.problems(config)
        resolved = config if wrong else validate.resolve(config)
        try:
            name = names.of(given.get("arm"), resolved, label)
        except ConfigError as error:
            name, wrong = label, [*wrong, *error.problems]
        if wrong:
            problems.append(f"{draft.where}arm {name}: {'; '.join(wrong)}")
        else:
            arms.append(Arm(draft.name, name, overridden, dict(varied), resolved))
    return arms, problems + _same_configs(arms, draft.where)


def _derive(config: ConfigDict, derived: Mapping[str, Callable[[ConfigDict], Any]]) -> tuple[dict[str, Any], list[str]]:
    """Sets the derived fields in place; returns them, and what went wrong."""
    values: dict[str, Any] = {}
    for name, function in derived.items():
        try:
            values[name] = function(config)
            fields.set_field(config, name, values[name])
        except ConfigError as error:
            return values, [f"derived {problem}" for problem in error.problems]
        except Exception as error:
            return values, [
                f"derived {name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            ]
    return values, []


def _same_configs(arms: list[Arm], where: str) -> list[str]:
    seen: dict[str, str] = {}
    problems = []
    for arm in arms:
        same = seen.setdefault(arm.config.to_json(), arm.name)
        if same != arm.name:
            problems.append(f"{where}arm {arm.name}: is the same config as arm {same}")
    return problems


def _study(draft: _Draft, arms: list[Arm]) -> Study:
    given = draft.given
    return Study(
        name=draft.name,
        title=given.get("title") or "",
        question=given.get("question") or "",
        base=given["base"],
        baseline=given.get("baseline"),
        evals=tuple(given.get("evals", ("loss",))),
        seeds=tuple(given.get("seeds", (0,))),
        arms=tuple(arms),
    )


def _check_baseline(study: Study) -> list[str]:
    arms = [arm.name for arm in study.arms]
    if study.baseline is None or study.baseline in arms:
        return []
    return [f"{study.name}: baseline = {study.baseline!r} is no arm{nearest(study.baseline, arms)}"]
