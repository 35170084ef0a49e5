"""Reads sweep and run directories into plain objects. Unreadable files are listed and never stop the report."""

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs import columns, provenance
from configs.documents import ordinary
from configs.errors import UserError
from configs.evaluations import EVALUATIONS
from report.statistics import sequential
from report.statistics.sequential import Plan

STATUSES = ("done", "running", "preempted", "waiting", "failed", "diverged", "unreadable")


@dataclass
class Run:
    """One run directory. `missing` has the reason for each absent evaluation."""

    arm: str
    seed: int
    directory: Path
    status: str
    error: str = ""
    info: dict[str, Any] = field(default_factory=dict)  # run.json
    config: dict[str, Any] = field(default_factory=dict)  # config.json
    metrics: list[dict[str, Any]] = field(default_factory=list)  # metrics.jsonl, by increasing step
    evals: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    of: dict[str, dict[str, Any]] = field(default_factory=dict)  # the origin of each evaluation (configs/provenance.py)
    stale: dict[str, str] = field(default_factory=dict)  # results left out: not of the run's current state
    parent: str = ""  # how the run that this one started from has changed since


@dataclass
class Arm:
    """One arm of a study: its configuration and its runs, one per seed."""

    name: str
    overrides: dict[str, Any]
    config: dict[str, Any]
    runs: list[Run]
    matches: list[dict[str, Any]] = field(default_factory=list)  # what it was matched to, from sweep.json

    @property
    def done(self) -> list[Run]:
        """The runs that finished: the only ones used in statistics."""
        return [run for run in self.runs if run.status == "done"]


@dataclass
class Selection:
    """How a hyperparameter was chosen for each arm of a study, on separate seeds.

    `choices` is from sweep.json, by arm; `trials` are the arms whose runs tried the values.
    """

    field: str
    seeds: list[int]
    choices: dict[str, dict[str, Any]]
    trials: list[Arm]

    def of(self, arm: str) -> list[tuple[float, Arm]]:
        """Returns (value, the arm whose runs tried it) for an arm, by increasing value."""
        results = [(number(trial.overrides.get(self.field)), trial) for trial in self.trials]
        return sorted((pair for pair in results if pair[1].name.rsplit("@", 1)[0] == arm), key=lambda pair: pair[0])


@dataclass
class Ladder:
    """The same arms at several budgets (or sizes): `rungs` has each arm's runs, by increasing value of the field `by`.

    The highest rung is the study itself; `selections` are those of the rungs, if a hyperparameter was chosen there.
    """

    by: str
    rungs: dict[float, dict[str, Arm]]
    selections: dict[float, Selection]
    tokens_per_parameter: float = math.nan  # for a ladder by size
    branches: bool = False


@dataclass
class Study:
    """Arms that are compared with one another; `baseline` is None if nothing is compared."""

    name: str
    title: str
    question: str
    baseline: str | None
    evals: list[str]
    arms: list[Arm]
    seeds: list[int]
    selection: Selection | None = None
    solved: dict[str, float] = field(
        default_factory=dict
    )  # {"accuracy": 0.9} or {"loss": 0.1}: threshold from which a seed has solved the task
    plan: Plan | None = None  # of looks, if seeds are added by one
    care: float = math.nan  # the smallest difference of losses that matters, nats
    looked: list[int] = field(default_factory=list)  # earlier numbers of seeds at which a fixed list was looked at
    family: "list[Study]" = field(default_factory=list, repr=False, compare=False)  # studies reported together
    ladder: Ladder | None = None
    target: float = math.nan  # validation loss, nats, to which steps and tokens are measured
    columns: list[str] = field(default_factory=list)  # of its paper tables (configs/columns.py); empty: the default
    highlight: list[str] = field(default_factory=list)  # arms in colour in figures with many arms

    def arm(self, name: str | None) -> Arm | None:
        """Returns the arm with this name, or None."""
        return next((arm for arm in self.arms if arm.name == name), None)


@dataclass
class Sweep:
    """Everything a report is made from. `faults` names every unreadable file, and the position in it."""

    directory: Path
    name: str
    title: str
    file: str
    created: str
    studies: list[Study]
    single: bool = False
    together: bool = False  # several sweeps, read as one
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Links every study to those it is reported with: their claims are one family."""
        for study in self.studies:
            study.family = self.studies

    @property
    def runs(self) -> list[Run]:
        """All runs of all studies, including those that tried hyperparameters."""
        chosen = [study.selection.trials for study in self.studies if study.selection]
        arms = [arm for study in self.studies for arm in study.arms]
        lower = [arm for study in self.studies for arm in lower_rungs(study)]
        return [run for arm in [*itertools.chain(*chosen), *lower, *arms] for run in arm.runs]


def lower_rungs(study: Study) -> list[Arm]:
    """Returns the arms of a ladder's lower rungs, including those that tried hyperparameters there."""
    if study.ladder is None:
        return []
    trials = [s.trials for s in study.ladder.selections.values() if s is not study.selection]
    rungs = [list(rung.values()) for rung in study.ladder.rungs.values()]
    return [arm for arm in itertools.chain(*trials, *rungs) if arm not in study.arms]


def read(directory: str | Path) -> Sweep:
    """Reads a sweep directory (it has sweep.json) or a single run directory (it has run.json or config.json).

    Raises:
        UserError: the directory is neither.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory")
    if (directory / "sweep.json").exists():
        return _Reader(directory).sweep()
    if (directory / "run.json").exists() or (directory / "config.json").exists():
        return _Reader(directory).single()
    raise UserError(f"{directory}: neither a sweep (no sweep.json) nor a run (no run.json)")


class _Reader:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.faults: list[str] = []

    def sweep(self) -> Sweep:
        raw = self.object("sweep.json")
        given = [(item, self.study(item, index)) for index, item in enumerate(items(raw, "studies"))]
        studies = self.selected([(item, study) for item, study in given if study is not None])
        name = text(raw.get("name")) or self.directory.name
        return Sweep(
            directory=self.directory,
            name=name,
            title=text(raw.get("title")) or name,
            file=text(raw.get("file")),
            created=text(raw.get("created")),
            studies=studies,
            faults=self.faults,
        )

    def single(self) -> Sweep:
        run = self.run("", self.directory, seed=0)
        run.seed = whole(run.info.get("seed", run.config.get("seed")), 0)
        run.arm = text(run.info.get("name")) or text(run.config.get("name")) or self.directory.resolve().name
        arm = Arm(run.arm, {}, run.config, [run])
        study = Study(run.arm, run.arm, "", None, sorted(run.evals), [arm], [run.seed])
        created = text(run.info.get("started"))
        return Sweep(self.directory, run.arm, run.arm, "", created, [study], single=True, faults=self.faults)

    def study(self, raw: Any, index: int) -> Study | None:
        if not isinstance(raw, dict):
            self.faults.append(f"sweep.json: studies[{index}] is not an object")
            return None
        name = text(raw.get("name")) or f"study {index + 1}"
        seeds = [whole(seed, 0) for seed in items(raw, "seeds")]
        arms = [arm for item in items(raw, "arms") if (arm := self.arm(item, seeds, name)) is not None]
        baseline = text(raw.get("baseline")) or None
        if baseline is not None and baseline not in [arm.name for arm in arms]:
            self.faults.append(f"sweep.json: study {name}: its baseline {baseline} is not among its arms")
            baseline = None
        title = text(raw.get("title")) or name
        evals = [text(item) for item in items(raw, "evals")]
        solved = {key: number(value) for key, value in mapping(raw.get("solved")).items()}
        plan, care = _plan(mapping(raw.get("plan"))), number(raw.get("care"))
        looked = [whole(one, 0) for one in items(raw, "looked")]
        asked = [one for one in map(text, items(raw, "columns")) if one]
        self.faults += [f"sweep.json: study {name}: unknown column {one}" for one in asked if not columns.known(one)]
        return Study(
            name, title, text(raw.get("question")), baseline, evals, arms, seeds, solved=solved, plan=plan,
            care=plan.care if plan else care, looked=looked, target=number(raw.get("target")),
            columns=list(dict.fromkeys(one for one in asked if columns.known(one))),
            highlight=[text(one) for one in items(raw, "highlight")],
        )  # fmt: skip

    def selected(self, given: list[tuple[dict[str, Any], Study]]) -> list[Study]:
        """Moves the studies that tried hyperparameters into those that use the chosen values; returns the latter."""
        trials = {text(raw.get("selects_for")): study for raw, study in given if text(raw.get("selects_for"))}
        for raw, study in given:
            select, tried = mapping(raw.get("select")), trials.get(study.name)
            if select and tried is not None:
                choices = {name: mapping(choice) for name, choice in mapping(select.get("choices")).items()}
                study.selection = Selection(text(select.get("field")), tried.seeds, choices, tried.arms)
        rungs = [(raw, study) for raw, study in given if not text(raw.get("selects_for"))]
        return self.ladders(rungs)

    def ladders(self, given: list[tuple[dict[str, Any], Study]]) -> list[Study]:
        """Moves the studies that are rungs of a ladder into the study at its top; returns the other studies."""
        for raw, study in given:
            ladder = mapping(raw.get("ladder"))
            if not ladder or text(raw.get("rung_of")):
                continue
            below = [pair for pair in given if text(pair[0].get("rung_of")) == study.name]
            results: dict[float, dict[str, Arm]] = {}
            selections: dict[float, Selection] = {}
            for level, rung in [*below, (raw, study)]:
                value, items_ = number(level.get("rung")), [mapping(one) for one in items(level, "arms")]
                named = {text(one.get("name")): text(one.get("rung_of")) or text(one.get("name")) for one in items_}
                if math.isfinite(value):
                    results[value] = {named.get(arm.name, arm.name): arm for arm in rung.arms}
                    if rung.selection is not None:
                        selections[value] = rung.selection
            study.ladder = Ladder(
                text(ladder.get("by")),
                dict(sorted(results.items())),
                selections,
                number(ladder.get("tokens_per_parameter")),
                ladder.get("branches") is True,
            )
        return [study for raw, study in given if not text(raw.get("rung_of"))]

    def arm(self, raw: Any, seeds: list[int], study: str) -> Arm | None:
        name = text(raw.get("name")) if isinstance(raw, dict) else ""
        if not name:
            self.faults.append(f"sweep.json: study {study}: an arm without a name")
            return None
        folder = self.directory / "runs" / name
        if not folder.resolve().is_relative_to(self.directory.resolve()):
            self.faults.append(f"sweep.json: study {study}: arm {name} is outside the sweep's directory")
            return None
        runs = [self.run(name, folder / f"seed{seed}", seed) for seed in seeds]
        matches = list(objects(raw, "match"))
        return Arm(name, mapping(raw.get("overrides")), mapping(raw.get("config")), runs, matches)

    def run(self, arm: str, directory: Path, seed: int) -> Run:
        run = Run(arm, seed, directory, "waiting")
        place = self.place(directory)
        if not directory.is_dir():
            return run
        run.config = self.object(f"{place}config.json", optional=True)
        if not (directory / "run.json").exists():
            return run
        before = len(self.faults)
        run.info = self.object(f"{place}run.json")
        unreadable = self.faults[before] if len(self.faults) > before else ""
        run.status = "unreadable" if unreadable else text(run.info.get("status")) or "unreadable"
        run.error = unreadable or text(run.info.get("error"))
        run.metrics = self.metrics(f"{place}metrics.jsonl")
        run.parent = provenance.parent_problem(directory, siblings_only=True)
        now = provenance.directory(directory)
        for name in EVALUATIONS:
            self.evaluation(run, name, f"{place}eval/{name}.json", now)
        return run

    def evaluation(self, run: Run, name: str, path: str, now: dict[str, Any]) -> None:
        before = len(self.faults)
        result = self.object(path, optional=True)
        of = provenance.of(result, name, run.config)
        if result and run.status == "done" and (line := provenance.difference(of, now, provenance.RUN)):
            run.stale[name] = run.missing[name] = f"{path} {line}; it is left out until it is evaluated again"
        elif result:
            run.evals[name], run.of[name] = result, of
        elif len(self.faults) > before:
            run.missing[name] = self.faults[before]
        elif failure := text(dig(run.info, "eval_errors", name)).strip():
            run.missing[name] = f"{path}: the evaluation failed: {failure.splitlines()[-1]}"
        else:
            run.missing[name] = f"no {path}" if run.status == "done" else f"{path}: the run is {run.status}"

    def place(self, directory: Path) -> str:
        relative = directory.relative_to(self.directory).as_posix()
        return "" if relative == "." else f"{relative}/"

    def object(self, path: str, optional: bool = False) -> dict[str, Any]:
        """Returns the JSON object in a file; if it cannot be read, an empty one, and a line in `faults`."""
        file = self.directory / path
        if optional and not file.exists():
            return {}
        try:
            result = json.loads(ordinary(file).read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            self.faults.append(f"{path}: line {error.lineno} column {error.colno}: {error.msg}")
        except (OSError, ValueError, RecursionError) as error:
            self.faults.append(f"{path}: {getattr(error, 'strerror', None) or error}")
        else:
            if isinstance(result, dict):
                return result
            self.faults.append(f"{path}: has a {type(result).__name__}, not an object")
        return {}

    def metrics(self, path: str) -> list[dict[str, Any]]:
        """Returns the lines by step; of several for one step (after a resume) the last. A torn end is not a fault."""
        file = self.directory / path
        try:
            lines = ordinary(file).read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return []
        by_step: dict[float, dict[str, Any]] = {}
        for index, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                step = number(row.get("step"))
            except (ValueError, AttributeError, RecursionError) as error:
                if index < len(lines) - 1:
                    self.faults.append(f"{path}: line {index + 1}: {error}")
                continue
            if math.isfinite(step):
                by_step[step] = row
        return [by_step[step] for step in sorted(by_step)]


def _plan(raw: dict[str, Any]) -> Plan | None:
    looks, care = tuple(whole(one, 0) for one in items(raw, "looks")), number(raw.get("care"))
    return None if sequential.check(looks, care) else Plan(looks, care)


def number(value: Any) -> float:
    """Returns a float; nan for other values."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def whole(value: Any, default: int) -> int:
    """Returns an int, or the default if the value is not a finite number."""
    if type(value) is int and abs(value) < 2**63:  # a seed, whose last digits a float would lose
        return value
    result = number(value)
    return int(result) if math.isfinite(result) else default


def text(value: Any) -> str:
    """Returns text; empty for None and for anything but text or a number."""
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""


def mapping(value: Any) -> dict[str, Any]:
    """Returns the value if it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(raw: Any, *keys: str) -> list[Any]:
    """Returns the list at a path of keys; empty if there is none."""
    result = dig(raw, *keys)
    return result if isinstance(result, list) else []


def dig(raw: Any, *keys: str) -> Any:
    """Returns the value at a path of keys, or None."""
    for key in keys:
        raw = raw.get(key) if isinstance(raw, dict) else None
    return raw


def objects(raw: Any, *keys: str) -> Iterator[dict[str, Any]]:
    """Yields the objects of the list at a path of keys, skipping other values."""
    yield from (item for item in items(raw, *keys) if isinstance(item, dict))
