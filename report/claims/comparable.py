"""Which arms may be compared with the baseline, and in what they differ beyond the varied fields."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from configs import provenance
from configs.environment import relevant
from configs.evaluations import EVALUATIONS, load
from report.page.formats import DASH, count, counted, listed, percent, plural
from report.reading import selecting
from report.reading.directories import Arm, Run, Study, dig, items, mapping, number, text
from report.reading.measures import from_info, median, timed_under_load
from report.reading.settings import NOT_IN_DIFFERENCES, config_of, flat

REFUSED = "not comparable"  # no claim is made
DIFFERS = "differs"  # the claim is made with its qualification
NOTE = "note"  # informative


@dataclass(frozen=True)
class Mark:
    """One way in which an arm differs from the baseline: `short` for a table, `words` for a sentence.

    `value` is the arm's value, for a cell. `asked`: it follows from the fields that the study varies, as parameters
    from the number of KV heads; else it is accidental.
    """

    level: str
    short: str
    words: str
    value: str = ""
    asked: bool = False


def marks(study: Study) -> dict[str, list[Mark]]:
    """Returns for every arm but the reference how it is not comparable; arms without finished runs have no marks."""
    reference = reference_arm(study)
    if reference is None or not reference.done:
        return {}
    others = [arm for arm in study.arms if arm is not reference and arm.done]
    doubts = {arm.name: selecting.warnings(study, arm) for arm in study.arms}
    return {
        arm.name: [
            *(replace(mark, asked=mark.asked or _follows(mark, arm, reference)) for mark in _marks(arm, reference)),
            *_doubtful([*doubts[arm.name], *doubts[reference.name]]),
        ]
        for arm in others
    }


# Config fields that explain a difference: if two arms differ in one of them, the mark is part of the question.
_FOLLOWS: dict[str, tuple[str, ...]] = {
    "parameters": ("model.", "data.tokenizer"),
    "FLOPs/token": ("model.", "data.length"),
    "KV bytes/token": ("model.",),
    "training tokens": ("data.batch_size", "data.length", "budget.", "optimizer.batch"),
    "data": ("data.",),
    "validation": ("data.",),
    "task": ("data.",),
    "budget": ("budget.",),
    "kernel": ("model.attention.kernel",),
    "dtype": ("dtype",),
}


def varied(arm: Arm, reference: Arm) -> set[str]:
    """Returns the config fields in which two arms differ."""
    own, other = (flat(config_of(one)) for one in (arm, reference))
    names = {name for name in {*own, *other} if own.get(name) != other.get(name)}
    return {name for name in names if name.split(".")[0] not in NOT_IN_DIFFERENCES}


def _follows(mark: Mark, arm: Arm, reference: Arm) -> bool:
    causes = _FOLLOWS.get(mark.short, ())
    return (
        mark.level != REFUSED and any(name.startswith(causes) for name in varied(arm, reference)) if causes else False
    )


@dataclass(frozen=True)
class Differing:
    """The differences between arms and the baseline as one table: a row per arm, a column per kind of difference.

    `asked` are the columns that are varied or follow from it, `accidents` all others; a cell is text, empty if the arm
    equals the baseline.
    """

    asked: list[str]
    accidents: list[str]
    reference: str
    rows: list[tuple[str, dict[str, str], dict[str, str]]]  # arm, its cells, and the sentences of each


def differing(study: Study, most: int = 6) -> Differing | None:
    """Returns the table of differences; None if no arm has a mark.

    Args:
        study: the study.
        most: config fields shown in the first columns; the settings list all.
    """
    reference = reference_arm(study)
    result = marks(study)
    alone = [] if reference is None else [replace(mark, asked=False) for mark in within(reference)]
    own = {reference.name: alone, **result} if reference is not None and alone else result
    if reference is None or not any(own.values()):
        return None
    arms = [arm for arm in study.arms if own.get(arm.name)]
    fields = {arm.name: varied(arm, reference) & set(swept(study)) for arm in arms}
    columns = [name for name in swept(study) if any(name in one for one in fields.values())][:most]
    rows, requested, accidents = [], dict.fromkeys(columns), dict[str, None]()
    for arm in arms:
        config = flat(config_of(arm))
        cells = {name: config.get(name, DASH) for name in columns if name in fields[arm.name]}
        full: dict[str, str] = {}
        for mark in own[arm.name]:
            (requested if mark.asked else accidents)[mark.short] = None
            cells.setdefault(mark.short, mark.value or mark.level)
            full[mark.short] = f"{mark.level}: {mark.words}"
        rows.append((arm.name, cells, full))
    return Differing(list(requested), [name for name in accidents if name not in requested], reference.name, rows)


def swept(study: Study) -> list[str]:
    """Returns the config fields that the study varies: those set by its arms to different values.

    How an arm is evaluated is no part of its question: marks say where evaluations differ.
    """
    given = dict.fromkeys(name for arm in study.arms for name in flat(arm.overrides) if not name.startswith("eval."))
    configs = [flat(config_of(arm)) for arm in study.arms]
    return [name for name in given if len({config.get(name) for config in configs}) > 1]


def _doubtful(results: list[tuple[str, str]]) -> list[Mark]:
    return [Mark(DIFFERS, short, words) for short, words in results]


def reference_arm(study: Study) -> Arm | None:
    """Returns the baseline, or the first arm if the study names none; None for fewer than two arms."""
    if len(study.arms) < 2:
        return None
    return study.arm(study.baseline) or study.arms[0]


def touches(mark: Mark, measure: str) -> bool:
    """Returns whether a mark concerns an evaluation's result: `loss`, `retrieval`."""
    return _ABOUT.get(mark.short, measure) == measure


def apart(study: Study, measure: str) -> list[str]:
    """Returns the arms for whose `measure` no claim is made against the baseline."""
    results = {
        name: [m for m in own if m.level == REFUSED and touches(m, measure)] for name, own in marks(study).items()
    }
    return [name for name, refusals in results.items() if refusals]


def within(arm: Arm) -> list[Mark]:
    """Returns how the arm's own seeds differ from one another in what they should share, or have changed since."""
    results = [
        Mark(REFUSED, f"{name} question", f"its seeds were evaluated with different settings ({listed(strict)})")
        for name in EVALUATIONS
        if (strict := _asked_otherwise(name, arm, arm)[0])
    ]
    for run in arm.done:
        results += [Mark(DIFFERS, "left out", line) for line in run.stale.values()]
        results += [Mark(REFUSED, "parent", f"seed {run.seed} {run.parent}")] if run.parent else []
    if busy := timed_under_load(arm):
        results.append(Mark(NOTE, "load", busy, busy.partition("(")[2].partition(",")[0]))
    unsaid = [
        name for name in EVALUATIONS if any(name in run.of and provenance.unknown(run.of[name]) for run in arm.done)
    ]
    if unsaid:
        words = f"its results of {listed(unsaid)} do not record their run and checkpoint"
        results.append(Mark(NOTE, "identity", words))
    for level, short, read in _SHARED:
        values = _values(arm, read)
        if len(values) > 1:
            words = f"its seeds have different {_NAMES[short]} ({', '.join(sorted(values))})"
            results.append(Mark(level if level == NOTE else DIFFERS, short, words))
    return results


def _asked_otherwise(name: str, arm: Arm, reference: Arm) -> tuple[list[str], list[str]]:
    """Returns the settings in which an evaluation differed between the runs of two arms: strict ones, and lists."""

    def distinct(one: Arm) -> list[tuple[dict[str, Any], bool]]:
        runs = [run for run in one.done if name in run.evals and name in run.of]
        known = [(run.of[name], provenance.as_configured(run.of[name], name, run.config)) for run in runs]
        keys = [json.dumps([of.get("question"), configured], sort_keys=True) for of, configured in known]
        return list(dict(zip(keys, known, strict=True)).values())

    strict: dict[str, None] = {}
    lists: dict[str, None] = {}
    for own, configured in distinct(arm):
        for other, others in distinct(reference):
            result = provenance.other_questions(name, own, other, configured and others)
            strict |= dict.fromkeys(result[0])
            lists |= dict.fromkeys(result[1])
    return list(strict), list(lists)


def _questions(arm: Arm, reference: Arm) -> list[Mark]:
    """Returns a mark for each evaluation whose settings differed between the arms."""
    results = []
    for name in EVALUATIONS:
        strict, lists = _asked_otherwise(name, arm, reference)
        if strict:
            results.append(Mark(REFUSED, f"{name} question", f"other settings of {name} ({listed(strict)})"))
        if lists:
            # Each arm was evaluated as its own config says: the sweep's choice, and what both have is compared.
            words = f"{name} was evaluated under other conditions ({listed(lists)}); shared ones are compared"
            fields = listed([one.partition(" = ")[0].rpartition(".")[2] for one in lists])
            results.append(Mark(NOTE, f"{name} conditions", words, value=f"other {fields}", asked=True))
    return results


def _marks(arm: Arm, reference: Arm) -> list[Mark]:
    result = _questions(arm, reference)
    for level, short, read in _SHARED:
        own, other = _values(arm, read), _values(reference, read)
        if short in _MEASURED and not (own and other):
            continue
        if own != other:
            words = f"other {_NAMES[short]} ({_listed(own)} against {_listed(other)})"
            result.append(Mark(level, short, words, _listed(own)))
    result += _ratio(arm, reference, "parameters", from_info("parameters", "total"), DIFFERS)
    # Arms with a common budget of time or FLOPs train on as many tokens as it allows, by design.
    bought = any(text(dig(run.info, "budget", "kind")) in ("seconds", "flops") for run in reference.done)
    result += _ratio(arm, reference, "training tokens", from_info("tokens"), NOTE if bought else DIFFERS)
    result += _ratio(arm, reference, "FLOPs/token", from_info("flops_per_token", "value"), NOTE)
    result += [
        Mark(DIFFERS, label, f"should have equal {label}, and is {percent(off)} off")
        for label, off in agreements(arm, reference)
        if off > 0.01
    ]
    own, other = ({str(run.seed) for run in one.done} for one in (arm, reference))
    if own != other:
        words = f"other seeds done ({_listed(own)} against {_listed(other)})"
        if len(own) != len(other):
            words = f"{plural(len(own), 'seed')} done against {len(other)}"
        result.append(Mark(DIFFERS, "seeds", words, f"{len(own)} of {len(other)}" if len(own) != len(other) else ""))
    theirs = [replace(m, words=f"{reference.name}: {m.words}") for m in within(reference) if m.level == REFUSED]
    return [*result, *within(arm), *theirs]


_COUNTS: dict[str, tuple[str, Callable[[Run], float]]] = {
    "parameters": ("parameters", from_info("parameters", "total")),
    "flops": ("FLOPs/token", from_info("flops_per_token", "value")),
    "kv_bytes": ("KV bytes/token", from_info("kv_bytes_per_token")),
}


def agreements(arm: Arm, reference: Arm) -> list[tuple[str, float]]:
    """Returns (what, relative difference) for each count in which the sweep matched the arm to the reference.

    The counts are those recorded by the runs, not the targets. Arms that were both matched to a third agree as well.
    """

    def root(one: Arm, equal: str) -> str:
        return next((text(match.get("to")) for match in one.matches if match.get("equal") == equal), one.name)

    results = []
    for equal, (label, read) in _COUNTS.items():
        own, other = median(arm, read), median(reference, read)
        if root(arm, equal) == root(reference, equal) and math.isfinite(own) and other > 0:
            results.append((label, abs(own / other - 1)))
    return results


def matched(results: Sequence[tuple[str, float]]) -> str:
    """Returns `agreements` in words, rounded up: `matched parameters within 0.1%`; empty for none."""
    near = [(label, off) for label, off in results if off <= 0.01]
    messages = [
        f"{label} " + (f"within {math.ceil(1e3 * off - 1e-9) / 10:g}%" if off else "exactly") for label, off in near
    ]
    return f"matched {listed(messages)}" if messages else ""


def _ratio(arm: Arm, reference: Arm, short: str, read: Callable[[Run], float], level: str) -> list[Mark]:
    own, other = median(arm, read), median(reference, read)
    if not (math.isfinite(own) and math.isfinite(other) and other > 0) or abs(own / other - 1) <= 0.01:
        return []
    direction = "more" if own > other else "fewer"
    words = f"{percent(abs(own / other - 1))} {direction} {short} ({count(own)} against {count(other)})"
    sign = "+" if own > other else "\N{MINUS SIGN}"
    return [Mark(level, short, words, f"{sign}{percent(abs(own / other - 1))}")]


def _values(arm: Arm, read: Callable[[Run], str]) -> set[str]:
    return {value for run in arm.done if (value := read(run))}


def _listed(values: set[str]) -> str:
    return ", ".join(sorted(values)) or "not recorded"


def _fingerprint(run: Run) -> str:
    return text(dig(run.info, "data", "fingerprint"))[:12]


def _budget(run: Run) -> str:
    raw = mapping(run.info.get("budget"))
    amount = number(raw.get("amount"))
    return f"{counted(amount)} {text(raw.get('kind'))}" if math.isfinite(amount) else ""


def _devices(run: Run) -> str:
    results = [mapping(device) for device in items(run.info, "devices")]
    return " + ".join(_device(device) for device in results)


def _device(raw: dict[str, Any]) -> str:
    amount = text(raw.get("count"))
    return f"{amount + ' x ' if amount else ''}{text(raw.get('kind')) or text(raw.get('platform'))}"


def _commit(run: Run) -> str:
    commit = text(run.info.get("git_commit"))[:10]
    return f"{commit} with uncommitted changes" if commit and run.info.get("git_dirty") is True else commit


def _settings(run: Run) -> str:
    if "jax_settings" not in run.info:  # from an earlier version
        return ""
    result = relevant(run.info["jax_settings"])
    return ", ".join(f"{name}={value}" for name, value in result.items()) or "the defaults"


_OF_EVALUATIONS = {one: name for name, evaluation in EVALUATIONS.items() for one in evaluation.shared}
_SHARED: list[tuple[str, str, Callable[[Run], str]]] = [
    (REFUSED, "data", _fingerprint),
    *((REFUSED, one.name, load(one.read)) for one in _OF_EVALUATIONS),
    (DIFFERS, "budget", _budget),
    (DIFFERS, "kernel", lambda run: text(run.info.get("attention_kernel"))),
    (DIFFERS, "dtype", lambda run: text(run.info.get("dtype"))),
    (DIFFERS, "devices", _devices),
    (DIFFERS, "settings", _settings),
    (NOTE, "commit", _commit),
    (NOTE, "JAX", lambda run: text(dig(run.info, "versions", "jax"))),
]
# Marks that concern one evaluation; all others concern every measure.
_ABOUT = {one.name: name for one, name in _OF_EVALUATIONS.items()} | {f"{name} question": name for name in EVALUATIONS}
_MEASURED = tuple(one.name for one in _OF_EVALUATIONS)  # known only if the evaluation ran
_NAMES = {
    "data": "data",
    **{one.name: one.words for one in _OF_EVALUATIONS},
    "budget": "budget",
    "kernel": "attention kernel",
    "dtype": "dtype",
    "devices": "devices",
    "settings": "settings of JAX and XLA",
    "commit": "git commit",
    "JAX": "JAX version",
}
