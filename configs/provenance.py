"""What a result is of, and whether that is this run in its present state and this question.

Every result file holds `of`:

    run         hash of the settings that make the run, `run_hash`
    step        of the checkpoint that was evaluated
    checkpoint  hash of that checkpoint's checksums; null where it has none
    parents     of a run that started from another one: [{run, step, data, checkpoint}], the nearest first
    data        what the run was trained on: {fingerprint, documents, split, tokenizer}
    question    every setting that shapes the number, by its dotted name, and what unset ones resolved to

`directory` returns the same, but for the question, of a run directory's present state. `difference` compares two of
them and says in one line what differs; it is the one function that every reader asks. Two results of different runs are
compared by `other_questions`. A setting shapes every number unless its `compare` in the schema says otherwise, so that
a new one makes results incomparable until it is declared. Files of earlier versions have no `of`: they are judged by
the step and the settings they hold, and what they do not hold is unknown, which is not a difference but can be asked
for (`unknown`).

Only files are read here; no JAX.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs import base, fields
from configs.documents import ordinary
from configs.evaluations import RESULTS

PARTS = ("run", "parents", "data", "step", "checkpoint", "question")
RUN = PARTS[:-1]  # what makes a result one of this run, whatever it was asked

# Where files lie: what they hold counts, and is known by the data's fingerprint and by `parents`.
PLACES = (
    "init_from",
    "data.path",
    "data.validation_path",
    "data.mixture",
    "data.tokenizer",
    "data.tfds.data_dir",
    "data.retrieval.questions",
)

PLAIN = frozenset((str, float, bool, type(None), list))  # types of JSON that are no object


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Returns {dotted name: value} of a config as JSON has it; nothing for what is no object.

    A whole number is returned as the float that its field is. (A launch calls this some eight times a run.)
    """
    results: dict[str, Any] = {}
    floats = _floats()
    for name, value in values.items() if isinstance(values, Mapping) else ():
        key = f"{prefix}{name}"
        if type(value) is int:
            results[key] = float(value) if key in floats and abs(value) < 2**53 else value
        elif type(value) not in PLAIN and isinstance(value, Mapping):
            results |= flat(value, f"{key}.")
        else:
            results[key] = value
    return results


@functools.cache
def _floats() -> frozenset[str]:
    return frozenset(name for name, kind in fields.types().items() if kind is float)


@functools.cache
def _defaults() -> dict[str, Any]:
    return flat(fields.to_dict(base.get_config()))


def settings(config: Any) -> dict[str, Any]:
    """Returns the settings that make a run, of its config.json: those that are not the schema's defaults.

    A field that an older file lacks has its default, so that the hash outlives new fields.
    """
    nothing, defaults = object(), _defaults()
    return {
        name: value
        for name, value in sorted(flat(config).items())
        if not _beside(name) and name not in PLACES and value != defaults.get(name, nothing)
    }


def _beside(name: str) -> bool:
    """Tells whether a setting changes what is written beside a run, or where it is computed, and not the run."""
    return name in fields.types() and fields.resumable(name)


def run_hash(config: Any) -> str:
    """Returns the hash of the settings that make a run, of its config.json: 32 hex digits."""
    return digest(settings(config))


def digest(value: Any) -> str:
    """Returns 32 hex digits over a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def identity(config: Any, parents: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Returns run.json's `identity`: the run's hash, the settings it covers, its parents (None: not known)."""
    return {"run": run_hash(config), "settings": settings(config), "parents": parents}


def parents_of(source: str | Path, step: int) -> list[dict[str, Any]]:
    """Returns the `parents` of a run that starts from `source` at a step: that run and its own parents."""
    there = directory(source, step)
    info = read(Path(source) / "run.json")
    nearest = {name: there[name] for name in ("run", "step", "checkpoint")}
    nearest |= {"from": str(source), "data": _part(there["data"], "fingerprint"), "status": info.get("status")}
    nearest["settings"] = settings(read(Path(source) / "config.json"))
    return [nearest, *(there["parents"] or [])]


def directory(workdir: str | Path, step: int | None = None) -> dict[str, Any]:
    """Returns the present state of a run directory: run, step, checkpoint, parents, data; None for what is not known.

    Args:
        workdir: the run directory.
        step: None: that of a finished run, else its newest checkpoint's.
    """
    workdir = Path(workdir)
    config, info = read(workdir / "config.json"), read(workdir / "run.json")
    step = _step(workdir, info) if step is None else step
    parents = _part(info.get("identity"), "parents")
    return {
        "run": run_hash(config) if config else None,
        "step": step,
        "checkpoint": _checkpoint(workdir, step),
        "parents": [dict(one) for one in parents if isinstance(one, Mapping)] if isinstance(parents, list) else None,
        "data": data(info.get("data")),
    }


def data(about: Any) -> dict[str, Any] | None:
    """Returns what `of` holds of run.json's `data`."""
    if not isinstance(about, Mapping):
        return None
    keys = {"fingerprint": "fingerprint", "documents": "documents_sha256", "split": "split", "tokenizer": "tokenizer"}
    return {name: about.get(key) for name, key in keys.items()}


def _step(workdir: Path, info: Mapping[str, Any]) -> int | None:
    step = info.get("step")
    step = step if isinstance(step, int) else None
    if info.get("status") == "done":
        return step
    folder = workdir / "checkpoints"
    saved = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []
    return max(saved, default=step)


def _checkpoint(workdir: Path, step: int | None) -> str | None:
    sums = read(workdir / "checkpoints" / str(step) / "checksums" / "sha256.json")
    results = {name: value for name, value in sums.items() if name.startswith("params/")}
    return digest(results) if results else None


def read(path: Path) -> dict[str, Any]:
    """Returns a file's JSON object; an empty one where there is none that can be read."""
    return _object(path) or {}


def _object(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(ordinary(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def shapes(setting: str, evaluation: str) -> bool:
    """Tells whether a setting shapes an evaluation's numbers: as the schema declares in `compare`, else it does."""
    compare = base.SCHEMA[setting].compare if setting in base.SCHEMA else None
    return compare is None or evaluation in compare


def question(evaluation: str, config: Any, result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every setting that shapes an evaluation's numbers, and what the result says unset ones resolved to.

    Args:
        evaluation: its name.
        config: as JSON, the evaluation's settings as they were used.
        result: what the evaluation found.
    """
    requested = {name: value for name, value in flat(config).items() if name.startswith(("eval.", "data."))}
    results = {name: value for name, value in requested.items() if shapes(name, evaluation)}
    return results | {name: result[name] for name in RESULTS[evaluation].resolved if name in result}


def of_result(workdir: Path, evaluation: str, config: Any, result: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Returns `of` for a result that was just measured of a checkpoint in a run directory."""
    value = directory(workdir, step)
    brief = ("run", "step", "data", "checkpoint")
    parents = value["parents"] and [{name: one.get(name) for name in brief} for one in value["parents"]]
    return {**value, "parents": parents, "question": question(evaluation, config, result)}


def of(result: Any, evaluation: str, config: Any) -> dict[str, Any]:
    """Returns what a result file says it is of; of an earlier version's file as much as it holds.

    Args:
        result: the file's content.
        evaluation: its name.
        config: the run's config.json, for what an earlier version's file leaves out.
    """
    value = result.get("of") if isinstance(result, Mapping) else None
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(result, Mapping):
        return {}
    step = result.get("step")
    return {"step": step if isinstance(step, int) else None, "question": _earlier_question(evaluation, config, result)}


def _earlier_question(evaluation: str, config: Any, result: Mapping[str, Any]) -> dict[str, Any] | None:
    used = flat({"eval": result.get("settings")})
    requested = flat(config) | {name: value for name, value in used.items() if name in fields.types()}
    results = {n: v for n, v in requested.items() if n.startswith(("eval.", "data.")) and shapes(n, evaluation)}
    return results | {name: result[name] for name in RESULTS[evaluation].resolved if name in result} or None


def unknown(results: Mapping[str, Any]) -> bool:
    """Tells whether a result does not say which run it is of."""
    return not results.get("run")


def difference(result: Mapping[str, Any], now: Mapping[str, Any], parts: Sequence[str] = PARTS) -> str:
    """Returns in one line what a result is of that is not so now; empty where nothing differs that both know.

    Args:
        result: a result's `of`.
        now: `directory`'s of its run; for `question` the setting's that is asked now.
        parts: what is compared, of PARTS.
    """
    for part in parts:
        own, other = result.get(part), now.get(part)
        if own is None or other is None:
            continue
        if line := _DIFFERENCES[part](own, other):
            return line
    return ""


def _run(own: Any, other: Any) -> str:
    return "" if own == other else f"is of another config (run {str(own)[:8]}, the run here is {str(other)[:8]})"


def _other_step(own: Any, other: Any) -> str:
    return "" if own == other else f"is of step {own}, the run is at step {other}"


def _other_checkpoint(own: Any, other: Any) -> str:
    return "" if own == other else "is of another checkpoint of this step, which has been rewritten since"


def _parents(own: Any, other: Any) -> str:
    pairs = [[(_part(one, "run"), _part(one, "step")) for one in chain or []] for chain in (own, other)]
    return "" if pairs[0] == pairs[1] else "is of a run that started from another parent"


def _data(own: Any, other: Any) -> str:
    for name in ("documents", "split", "fingerprint"):
        one, two = _part(own, name), _part(other, name)
        if None not in (one, two) and one != two:
            shown = one if name == "split" else str(one)[:12]
            return f"is of other data ({name} {shown}, the run's are {two if name == 'split' else str(two)[:12]})"
    return ""


def _question(own: Any, other: Any) -> str:
    differing = list(_settings_that_differ(own, other))
    message = ", ".join(f"{name} = {one} there, {two} here" for name, one, two in differing[:3])
    return f"asks another question: {message}" if differing else ""


_DIFFERENCES = {
    "run": _run,
    "parents": _parents,
    "data": _data,
    "step": _other_step,
    "checkpoint": _other_checkpoint,
    "question": _question,
}


def _settings_that_differ(own: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields (setting, one's, the other's); a field that an older file lacks has its default."""
    if not (isinstance(own, Mapping) and isinstance(other, Mapping)):
        return
    defaults = _defaults()
    for name in sorted({*own, *other}):
        one, two = (side.get(name, defaults.get(name)) for side in (own, other))
        if one != two and (name in defaults or None not in (one, two)):
            yield name, one, two


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def problem(workdir: Path, evaluation: str, now: Mapping[str, Any] | None = None) -> str:
    """Returns why WORKDIR/eval/NAME.json is no result of this run's present state and of its config's question, or "".

    Args:
        workdir: the run directory.
        evaluation: its name.
        now: `directory(workdir)`, where that is known.
    """
    path = workdir / "eval" / f"{evaluation}.json"
    if not path.is_file():
        return f"no {path.name}"
    if (result := _object(path)) is None:
        return f"{path.name} cannot be read"
    config = read(workdir / "config.json")
    now = directory(workdir) if now is None else now
    requested = {name: value for name, value in question(evaluation, config, {}).items()} if config else None
    line = difference(of(result, evaluation, config), {**now, "question": requested})
    return f"{path.name} {line}" if line else ""


def other_questions(
    evaluation: str, own: Mapping[str, Any], other: Mapping[str, Any], as_configured: bool
) -> tuple[list[str], list[str]]:
    """Returns the settings in which two results of different runs were asked otherwise, a phrase each.

    Args:
        evaluation: its name.
        own, other: the `of` of both.
        as_configured: whether each run was asked what its own config says.

    Returns:
        (those that make the numbers incomparable, those of `Evaluation.lists`: only what both were asked is compared).
    """
    one, two = (_canonical(result.get("question")) for result in (own, other))
    strict: list[str] = []
    lists: list[str] = []
    for name, left, right in _settings_that_differ(one, two):
        into = lists if as_configured and name in RESULTS[evaluation].lists else strict
        into.append(f"{name} = {left} against {right}")
    return strict, lists


def as_configured(results: Mapping[str, Any], evaluation: str, config: Any) -> bool:
    """Tells whether a result's lists of conditions are those that its run's config.json asks for."""
    requested, expected = results.get("question"), question(evaluation, config, {})
    return isinstance(requested, Mapping) and all(
        requested.get(n) == expected.get(n) for n in RESULTS[evaluation].lists
    )


def _canonical(requested: Any) -> Any:
    """Returns a question with what it resolved to in the place of what was unset."""
    if not isinstance(requested, Mapping):
        return requested
    result = dict(requested)
    if "eval.retrieval.needles" in result and not result["eval.retrieval.needles"] and result.get("pairs") is not None:
        result["eval.retrieval.needles"] = [result["pairs"]]
    if result.get("eval.retrieval.haystack") == "auto":
        result["eval.retrieval.haystack"] = result.get("data.retrieval.haystack")
    if result.get("task") is not None:
        result["eval.retrieval.task"] = result["task"]
    return result


def changed(workdir: str | Path) -> str:
    """Returns how a run's config.json differs from what it was trained with, in one line; "" where it does not."""
    known = read(Path(workdir) / "run.json").get("identity")
    before, now = _part(known, "settings"), settings(read(Path(workdir) / "config.json"))
    if not isinstance(before, Mapping) or _part(known, "run") == digest(now):
        return ""
    return f"config.json is not what the run was trained with: {_changes(before, now)}"


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    differing = [line for line in _settings_that_differ(before, now)]
    return ", ".join(f"{name} was {one!r}, is now {two!r}" for name, one, two in differing[:3]) or "nothing"


def parent_directory(workdir: Path, parent: Mapping[str, Any], *, siblings_only: bool) -> Path | None:
    """Returns where a run's nearest parent lies: in the same sweep, if it is a run of one, else where it lay then.

    Args:
        workdir: the run directory.
        parent: an entry of run.json's `identity.parents`.
        siblings_only: look in no other place than the sweep's own directory.
    """
    source = Path(str(parent.get("from") or ""))
    here = workdir.absolute()
    if source.parts[-3:-2] == ("runs",) and here.parts[-3:-2] == ("runs",) and ".." not in source.parts:
        sibling = here.parents[1] / Path(*source.parts[-2:])
        if sibling.is_dir():
            return sibling
    return source if not siblings_only and source.is_absolute() and source.is_dir() else None


def parent_problem(
    workdir: str | Path, *, siblings_only: bool = False, wanted: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """Returns how the run that this one started from has changed since, naming it, in one line; "" where it has not.

    A parent that is gone has not changed.

    Args:
        workdir: the run directory.
        siblings_only: look for the parent in the same sweep's directory alone.
        wanted: {run's key in a sweep: its config.json as the sweep asks for it now}, for parents not yet trained again.
    """
    workdir = Path(workdir)
    parents = _part(read(workdir / "run.json").get("identity"), "parents")
    for parent in parents if isinstance(parents, list) else ():
        if not isinstance(parent, Mapping):
            continue
        name = "/".join(Path(str(parent.get("from") or "")).parts[-2:])
        requested = (wanted or {}).get(name)
        if requested is not None and (line := _other_settings(parent, settings(requested))):
            return _told(name, line)
        where = parent_directory(workdir, parent, siblings_only=siblings_only)
        if where is not None and (where / "config.json").is_file() and (line := _parent_changed(parent, where)):
            return _told(name, line)
    return ""


def _told(name: str, line: str) -> str:
    return f"started from {name}, which has changed since: {line}"


def _other_settings(parent: Mapping[str, Any], now: dict[str, Any]) -> str:
    before = parent.get("settings")
    if not isinstance(before, Mapping):
        return ""
    size = "model.vocab_size"
    if size not in now:  # it is not known before the data are read
        before = {name: value for name, value in before.items() if name != size}
    return "" if dict(before) == now else _changes(before, now)


def _parent_changed(parent: Mapping[str, Any], where: Path) -> str:
    now = directory(where)
    if line := _other_settings(parent, settings(read(where / "config.json"))):
        return line
    before, after = parent.get("data"), _part(now["data"], "fingerprint")
    if None not in (before, after) and before != after:
        return f"its data were {str(before)[:12]}, are now {str(after)[:12]}"
    if parent.get("status") == "done" and now["step"] != parent.get("step"):
        return f"it was at step {parent.get('step')}, is now at {now['step']}"
    # Training gives the same again; what was converted or cut from another checkpoint has no step to tell it by.
    sums = parent.get("checkpoint"), now["checkpoint"]
    if parent.get("step") == 0 and None not in sums and sums[0] != sums[1]:
        return "it was rewritten"
    return ""
