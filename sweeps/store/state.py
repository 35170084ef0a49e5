"""The sweep directory: sweep.json, `runs/<arm>/seed<k>/`, and its locks. No JAX.

All of a launcher's state is in these files, so that any launcher can continue where another stopped: `sweep.json` has
what is to be done, each run's own files its progress (`sweeps/store/run_status.py`).
"""

import contextlib
import hashlib
import json
import math
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from ml_collections import ConfigDict

from configs import fields, provenance, redaction
from configs.documents import ordinary
from configs.errors import ConfigError, UserError
from configs.rules import branches
from sweeps.spec import chains, looks, names, select
from sweeps.spec.sweep import Run, Sweep
from sweeps.store import lease, run_status
from training.run_directory.files import begun, own, read_json, write_json, write_text

SCHEMA = 1
PRIVATE = ".sweep"  # locks and the workers' own output
# Exceptions from reading such a file if it is damaged.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError)
CANCEL = "cancel"  # a file in PRIVATE: a launcher that sees it stops


def run_dir(directory: Path, arm: str, seed: int) -> Path:
    """Returns the directory of a run.

    Raises:
        UserError: the name or the seed would lead elsewhere (in a foreign sweep.json).
    """
    if not isinstance(arm, str) or not names.SAFE.fullmatch(arm) or not isinstance(seed, int):
        raise UserError(f"{directory}: the run {arm}/seed{seed} is not safe as a folder; allowed: {names.ALLOWED}")
    return directory / "runs" / arm / f"seed{seed}"


@contextlib.contextmanager
def launching(directory: Path) -> Iterator[None]:
    """Holds the sweep directory for one launcher; the lock ends with the process, however it ends.

    Raises:
        UserError: another launcher holds it.
    """
    own(directory, PRIVATE, *(f"{PRIVATE}/{name}" for name in ("jobs", "locks", "missing", "ray", "slurm")), "report")
    private = directory / PRIVATE
    try:
        private.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out={directory}: cannot be created: {error.strerror}") from error
    owner = private / "launch.json"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lease.hold(private / "launch.lock"))
        except lease.Held:
            raise UserError(
                f"{directory}: another launcher is running here{_owner(owner)}; it must end first"
            ) from None
        stack.callback(owner.unlink, missing_ok=True)
        (private / CANCEL).unlink(missing_ok=True)  # it was meant for an earlier launcher
        write_json(owner, {"pid": os.getpid(), "host": socket.gethostname()})
        yield


def _owner(path: Path) -> str:
    try:
        who = json.loads(ordinary(path).read_text(encoding="utf-8"))
        return f" (process {int(who['pid'])} on {str(who['host'])[:100]})"
    except UNREADABLE:
        return ""


def launcher(directory: Path) -> str:
    """Returns the launcher running here, in words; empty if there is none, or (on this host) its process is gone."""
    path = directory / PRIVATE / "launch.json"
    try:
        who = json.loads(ordinary(path).read_text(encoding="utf-8"))
        if who["host"] == socket.gethostname() and not psutil.pid_exists(int(who["pid"])):
            return ""
    except UNREADABLE:
        return ""
    return _owner(path).strip(" ()")


def cancelled(directory: Path) -> bool:
    """Returns whether the launcher running here was asked to save everything and end (`sweeps.cancel`)."""
    return (directory / PRIVATE / CANCEL).exists()


def run_lock(directory: Path, arm: str, seed: int) -> Path:
    """Returns the file that a worker holds (`lease.hold`) while it works on a run."""
    folder = directory / PRIVATE / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{arm}.seed{seed}.lock"


@dataclass(frozen=True)
class Change:
    """Changes from the recorded sweep: new arms, and arms or seeds no longer in the file (their runs stay)."""

    added: tuple[str, ...]
    dropped: tuple[str, ...]  # arms; for an arm that stays, `ARM (seed 2, 3)`


def take_up(directory: Path, sweep: Sweep, now: str) -> Change:
    """Writes sweep.json, after checking that nothing on disk contradicts it.

    Raises:
        UserError: the directory has another sweep, or a run.
        ConfigError: runs on disk have another config than the sweep; with the fields; nothing is changed.
    """
    if (directory / "run.json").exists():
        raise UserError(f"--out={directory}: is a run directory; a sweep needs its own folder")
    _refuse_within(directory)
    _refuse_links(directory, sweep.runs())
    path = directory / "sweep.json"
    earlier = read(directory) if path.exists() else {}
    if earlier and earlier.get("name") != sweep.name:
        raise UserError(f"--out={directory}: has the sweep {earlier.get('name')}, not {sweep.name}; use another folder")
    problems = contradictions(directory, sweep.runs())
    if problems:
        raise ConfigError(problems)
    record(directory, sweep, now)
    before = [arm["name"] for study in earlier.get("studies", []) for arm in study["arms"]]
    after = [arm.name for study in sweep.studies for arm in study.arms]
    return Change(
        added=tuple(name for name in after if name not in before) if earlier else (),
        dropped=(*(name for name in before if name not in after), *_seeds_dropped(earlier, sweep)),
    )


def _refuse_within(directory: Path) -> None:
    """Raises UserError if the directory is inside a run, or in another sweep's folders."""
    here = directory.resolve()
    for parent in here.parents:
        if (parent / "run.json").is_file():
            raise UserError(f"--out={directory}: is inside the run directory {parent}; use a folder outside it")
        if (parent / "sweep.json").is_file() and here.relative_to(parent).parts[0] in ("runs", "report", PRIVATE):
            raise UserError(f"--out={directory}: is inside the sweep directory {parent}; use a folder outside it")


def _refuse_links(directory: Path, runs: list[Run]) -> None:
    """Raises UserError if a path that a launch writes to is a symlink out of the sweep directory."""
    keys = sorted({run.key for run in runs})
    arms = sorted({run.arm for run in runs})
    own(directory, "runs", *(f"runs/{arm}" for arm in arms), *(f"runs/{key}" for key in keys))
    for key in keys:
        log = directory / "runs" / key / "log.txt"
        if log.is_symlink():
            raise UserError(f"{log}: is a symlink to {log.resolve()}; refusing to write through it")


def continued(directory: Path, sweep: Sweep) -> Sweep:
    """Returns the sweep continued from its directory: seeds of planned looks so far, and looks without a plan."""
    if not (directory / "sweep.json").exists():
        return sweep
    recorded = read(directory)
    studies = {study["name"]: study for study in recorded["studies"]}

    def measured(name: str) -> set[int]:
        arms, seeds = studies[name]["arms"], studies[name]["seeds"]
        paths = [(seed, directory / "runs" / arm["name"] / f"seed{seed}") for arm in arms for seed in seeds]
        return {seed for seed, path in paths if not provenance.problem(path, looks.MEASURED)}

    return looks.looked(looks.resumed(sweep, recorded), recorded, measured)


def _seeds_dropped(earlier: Mapping[str, Any], sweep: Sweep) -> Iterator[str]:
    """Yields `ARM (seed 2, 3)` for every remaining arm with seeds in sweep.json that the file no longer has."""
    now = {arm.name: study.seeds for study in sweep.studies for arm in study.arms}
    for study in earlier.get("studies", []):
        for name in (arm["name"] for arm in study["arms"] if arm["name"] in now):
            gone = [str(seed) for seed in study["seeds"] if seed not in now[name]]
            if gone:
                yield f"{name} (seed {', '.join(gone)})"


class Written:
    """sweep.json as this launcher wrote it, to detect when somebody replaces it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "sweep.json"
        self.take()

    def take(self) -> None:
        """Takes the current file as this launcher's own."""
        self.seen, self.content = self._about(), self._hash()

    def replaced(self) -> bool:
        """Returns whether the file has other content now, or is gone."""
        if (about := self._about()) == self.seen:
            return False
        if self._hash() != self.content:
            return True
        self.seen = about
        return False

    def _about(self) -> tuple[int, int, int] | None:
        try:
            result = self.path.stat()
        except OSError:
            return None
        return result.st_ino, result.st_mtime_ns, result.st_size

    def _hash(self) -> str:
        try:
            return hashlib.sha256(ordinary(self.path).read_bytes()).hexdigest()
        except OSError:
            return ""


def record(directory: Path, sweep: Sweep, now: str) -> None:
    """Writes sweep.json with the choices of `select` so far."""
    path = directory / "sweep.json"
    created = read(directory).get("created") if path.exists() else None
    write_json(path, describe(select.applied(directory, sweep), created=created or now, updated=now))


def describe(sweep: Sweep, created: str, updated: str) -> dict[str, Any]:
    """Returns sweep.json's content."""
    studies = [
        {
            "name": study.name,
            "title": study.title,
            "question": study.question,
            "base": study.base,
            "baseline": study.baseline,
            "evals": list(study.evals),
            "seeds": list(study.seeds),
            "plan": {"looks": list(study.plan.looks), "care": study.plan.care} if study.plan else None,
            "care": study.care,
            "looked": list(study.looked),
            "solved": study.solved,
            "select": select.described(study),
            "selects_for": study.selects_for,
            "ladder": study.ladder and study.ladder.described(),
            "rung": study.rung,
            "target": study.target,
            "columns": list(study.columns),
            "highlight": list(study.highlight),
            "rung_of": study.rung_of,
            "arms": [
                {
                    "name": arm.name,
                    "overrides": arm.overrides,
                    "varied": arm.varied,
                    "config": fields.to_dict(arm.config),
                    "match": [match.described() for match in arm.matches],
                    "rung_of": arm.rung_of,
                }
                for arm in study.arms
            ],
        }
        for study in sweep.studies
    ]
    return {
        "schema": SCHEMA,
        "name": sweep.name,
        "title": sweep.title,
        "file": sweep.file,
        "text": sweep.text,
        "command_line": sweep.overrides,
        "created": created,
        "updated": updated,
        "studies": studies,
    }


def read(directory: Path) -> dict[str, Any]:
    """Returns sweep.json.

    Raises:
        UserError: it is missing or damaged.
    """
    path = directory / "sweep.json"
    if not path.exists():
        hint = ": no such folder" if not directory.is_dir() else ": is not a sweep directory (no sweep.json)"
        raise UserError(f"{directory}{hint}")
    value = read_json(path)
    if wrong := _wrong(value):
        raise UserError(f"{path}: is not a valid sweep.json: {wrong}")
    return value


def _wrong(value: Any) -> str:
    """Returns what is invalid among the parts that are read again; empty if nothing is."""
    if not isinstance(value, dict) or not isinstance(value.get("studies"), list):
        return "it has no list `studies`"
    for index, study in enumerate(value["studies"]):
        where = f"studies[{index}]"
        if not isinstance(study, dict) or not isinstance(study.get("name"), str):
            return f"{where} has no name"
        for key, kind in (("arms", dict), ("seeds", int), ("evals", str)):
            items = study.get(key) if key != "evals" else study.get(key) or []
            if not isinstance(items, list) or not all(type(item) is kind for item in items):
                return f"{where}.{key} is not a list of {'objects' if kind is dict else kind.__name__}"
        for number, arm in enumerate(study["arms"]):
            name, budget = arm.get("name"), _budget(arm.get("config"))
            if not isinstance(name, str) or {*name.split("/")} & {"", ".", ".."}:
                return f"{where}.arms[{number}].name = {name!r}"
            if not isinstance(budget.get("amount"), int | float) or not isinstance(budget.get("kind"), str):
                return f"{where}.arms[{number}].config has no budget"
    return ""


def _budget(config: Any) -> dict[str, Any]:
    budget = config.get("budget") if isinstance(config, dict) else None
    return budget if isinstance(budget, dict) else {}


def contradictions(directory: Path, runs: list[Run]) -> list[str]:
    """Returns a line for each arm whose runs on disk have another config, with the fields."""
    results: dict[tuple[str, str], list[int]] = {}
    plain: dict[str, Any] = {}  # the config of each arm as JSON
    same: dict[str, Any] = {}  # of each arm, the last config on disk that agrees, but for the seed
    for run in runs:
        path = run_dir(directory, run.arm, run.seed) / "config.json"
        if not path.exists() or _failed_at_once(path.parent):
            continue
        on_disk = read_json(path)
        if run.arm not in plain:
            plain[run.arm] = _plain(fields.to_dict(run.base))
        if run.select is None and _agrees(on_disk, {**plain[run.arm], "seed": run.seed, "name": run.arm}):
            continue
        # An older version's config lacks fields: the slow comparison is made once an arm, not once a run.
        unseeded = {**on_disk, "seed": None} if isinstance(on_disk, dict) and on_disk.get("seed") == run.seed else None
        if run.select is None and not run.base.init_from and unseeded is not None and unseeded == same.get(run.arm):
            continue
        changed = differences(on_disk, select.decided(directory, run))
        if not changed:
            same[run.arm] = unseeded
        if run.select is not None and select.read(directory, run.select, run.arm) is None:
            changed = [phrase for phrase in changed if not phrase.startswith(f"{run.select.field} was ")]
        if changed and (why := _not_longer(on_disk, path.parent, run, changed)) is not None:
            changed = [why] if why else []
        if changed:
            message = f"on disk with another config: {'; '.join(changed)}"
            results.setdefault((run.arm, message), []).append(run.seed)
    for run, line in _changed_parents(directory, runs):
        results.setdefault((run.arm, line), []).append(run.seed)
    return [
        f"runs/{arm} (seed {', '.join(map(str, seeds))}): {changed}. Give the arm another name, use another --out, or "
        "remove these runs"
        for (arm, changed), seeds in results.items()
    ]


def _not_longer(on_disk: Any, workdir: Path, run: Run, changed: list[str]) -> str | None:
    """Returns why a run cannot continue to its raised budget; empty: it can; None: something else changed."""
    before, amount = fields.flatten(fields.from_dict(on_disk)), run.base.budget.amount
    if len(changed) != 1 or not changed[0].startswith("budget.amount was ") or amount <= before["budget.amount"]:
        return None
    path = workdir / "run.json"
    values = read_json(path) if path.exists() else {}
    why = branches.not_longer(before, run_status.spent(values if isinstance(values, dict) else {}))
    return f"{changed[0]}: {why}" if why else ""


def _changed_parents(directory: Path, runs: list[Run]) -> Iterator[tuple[Run, str]]:
    """Yields each run on disk that started from another run than the sweep's, or from one that has changed."""
    started = [run for run in runs if run.base.init_from]
    names = {chains.parent(run) for run in started}
    parents = [run for run in runs if run.key in names]
    expected = {
        run.key: fields.to_dict(select.decided(directory, run))
        for run in parents
        if run.select is None or select.read(directory, run.select, run.arm) is not None
    }
    for run in started:
        workdir = run_dir(directory, run.arm, run.seed)
        if (workdir / "run.json").exists() and (changed := provenance.parent_problem(workdir, wanted=expected)):
            yield run, changed


def _failed_at_once(workdir: Path) -> bool:
    """Returns whether a run failed before its first step: nothing of it is kept, so its config may change."""
    return not begun(workdir) and run_status.read(workdir).status == "failed"


def differences(on_disk: Any, expected: ConfigDict) -> list[str]:
    """Returns the differences between a run's config.json and the sweep's config, one phrase per field.

    A field that the file lacks (of an older version) counts as its default. Fields that a resumed run may change are
    ignored, except `eval`: a sweep's evaluations are the same for every run. `model.vocab_size` is filled in from the
    tokenizer in training, so an unset one agrees with any. A run from before `eval.split` existed was scored on all of
    the validation text, and stays so.
    """
    try:
        before = fields.flatten(fields.from_dict(on_disk))
    except (ConfigError, AttributeError, TypeError) as error:
        return [f"config.json cannot be read: {' '.join(str(error).splitlines()[:1])}"]
    after = fields.flatten(expected)
    return [
        f"{name} was {_plain(before[name])!r}, now {_plain(value)!r}"
        for name, value in after.items()
        if _plain(before[name]) != _plain(value)
        and (name.startswith("eval.") or not fields.resumable(name))
        and not (name == "model.vocab_size" and value is None)
        and not (name == select.SPLIT and "split" not in _evaluation(on_disk))
        and not (name == "init_from" and chains.same(before[name], expected))
    ]


def _agrees(on_disk: Any, expected: dict[str, Any]) -> bool:
    """Returns quickly whether a config.json equals the sweep's config, apart from the tokenizer's size."""
    if not isinstance(on_disk, dict) or not isinstance(on_disk.get("model"), dict):
        return False
    if expected["model"]["vocab_size"] is None:
        expected = {**expected, "model": {**expected["model"], "vocab_size": on_disk["model"].get("vocab_size")}}
    return on_disk == expected


def _evaluation(on_disk: Any) -> dict[str, Any]:
    result = on_disk.get("eval")
    return result if isinstance(result, dict) else {}


def _plain(value: Any) -> Any:
    """Returns a value as JSON would return it, so that tuples and lists are equal."""
    return json.loads(json.dumps(value, default=lambda node: node.to_dict()))


def bound(directory: Path, config: ConfigDict, workdir: Path) -> dict[str, Any]:
    """Returns a run's config for its trainer: the run that it continues, if any, as a path.

    A run that has started keeps the path in its config.json, even if the sweep was moved: only its first step reads it.
    """
    values = fields.to_dict(config)
    run = chains.key(config)
    if run is not None:
        values["init_from"] = str(directory / "runs" / run)
        path = workdir / "config.json"
        before = read_json(path).get("init_from") if path.exists() else None
        values["init_from"] = before if chains.same(before, config) else values["init_from"]
    return values


def mark(workdir: Path, **values: Any) -> None:
    """Sets fields of a run's run.json, which need not exist yet; for what the trainer itself can no longer write.

    Where a sweep's run directory itself is missing, its error is kept in the sweep's private folder: a new directory in
    its place would be in the way when it is moved back, and `mv` would put it inside. If the disk cannot be written, a
    message is printed and the launcher continues.
    """
    path = workdir / "run.json"
    if not workdir.is_dir() and any((folder / PRIVATE).is_dir() for folder in workdir.parents[2:3]):
        _mark_missing(workdir, values)
        return
    try:
        before = json.loads(ordinary(path).read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            raise ValueError("no object")
    except (OSError, ValueError, RecursionError):
        before = {"schema": SCHEMA}
    try:
        write_json(path, redaction.clean({**before, **values}))
    except OSError as error:
        print(f"{path}: cannot be written ({error.strerror}): {redaction.redacted(str(values))}", file=sys.stderr)


def _mark_missing(workdir: Path, values: Mapping[str, Any]) -> None:
    errors = [values.get("error"), *dict(values.get("eval_errors") or {}).values()]
    if text := "\n".join(str(error) for error in errors if error):
        try:
            write_text(run_status.missing_file(workdir), redaction.redacted(text))
        except OSError as error:
            print(f"{workdir}: is missing ({error.strerror}): {redaction.redacted(text)}", file=sys.stderr)


def listed(directory: Path) -> list[tuple[str, str, int, tuple[str, ...], Mapping[str, Any]]]:
    """Returns (study, arm, seed, evaluations, the arm's config) of every run in sweep.json."""
    return [
        (study["name"], arm["name"], seed, tuple(study.get("evals") or ()), arm["config"])
        for study in read(directory)["studies"]
        for arm in study["arms"]
        for seed in study["seeds"]
    ]


def run_states(directory: Path) -> dict[str, run_status.RunState]:
    """Returns the state of every run of a sweep directory, by its key `<arm>/seed<k>`."""
    return {
        f"{arm}/seed{seed}": run_status.read(
            run_dir(directory, arm, seed), evals, total_steps(config), config["budget"]["amount"]
        )
        for _, arm, seed, evals, config in listed(directory)
    }


def unknown_runs(directory: Path, keys: Sequence[str]) -> list[str]:
    """Returns the runs on disk that are not in `keys`: of arms or seeds that the sweep no longer has."""
    result = (path.parent for path in (directory / "runs").glob("*/seed*/run.json"))
    return sorted(key for path in result if (key := f"{path.parent.name}/{path.name}") not in keys)


def total_steps(config: Mapping[str, Any]) -> int | None:
    """Returns the steps of a run whose budget is in steps."""
    budget = config["budget"]
    finite = math.isfinite(budget["amount"])
    return round(budget["amount"]) if budget["kind"] == "steps" and finite else None
