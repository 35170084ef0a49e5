"""Results of a ladder of budgets: each arm's compute gain at each rung, and whether rankings survive scale."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from report.claims.comparable import REFUSED, marks, reference_arm, touches
from report.page.formats import MINUS, TIMES, count, counted, listed, plural
from report.reading.directories import Arm, Ladder, Run, Study, dig, number, text
from report.reading.measures import from_eval, from_info
from report.statistics import gains
from report.statistics.gains import Curve, Fit, Gain, Lead

SURVIVES, CROSSES, OPEN, UNRESOLVED = "yes", "no", "open", "not resolved"


@dataclass(frozen=True)
class Level:
    """One rung of one arm: the value of the ladder's field, the gain, and the gain in wall time (nan: unknown)."""

    value: float
    gain: Gain
    time: float = math.nan  # factor on the gain: the arm's FLOPs per second over the baseline's
    speed: float = math.nan  # training tokens per second


@dataclass(frozen=True)
class Result:
    """The result of one arm. `refused` is the reason if nothing is claimed, else empty.

    Attributes:
        levels: by increasing value.
        leads: arm minus baseline at equal compute, per rung.
        survives: whether the ranking survives scale: yes, no, open or not resolved; with `words`.
    """

    arm: str
    seeds: tuple[int, ...] = ()
    levels: tuple[Level, ...] = ()
    leads: tuple[Lead, ...] = ()
    survives: str = ""
    words: str = ""
    refused: str = ""

    @property
    def head(self) -> Level | None:
        """The highest rung within the baseline's ladder."""
        return next((level for level in reversed(self.levels) if not level.gain.refused), None)


@dataclass(frozen=True)
class Results:
    """The results of a study's ladder; `refused` is the reason if there are none."""

    study: str
    by: str
    baseline: str
    arms: dict[str, Result] = field(default_factory=dict)
    curves: dict[str, tuple[list[float], Curve]] = field(default_factory=dict)  # arm -> (values of its rungs, curve)
    fit: Fit = field(default_factory=Fit)
    orders: dict[float, list[str]] = field(default_factory=dict)  # value -> arms by mean loss, the best first
    speeds: str = ""  # source of the speeds
    refused: str = ""


def tested(result: Results | None) -> list[float]:
    """Returns p of every claim of a ladder: of each arm but the baseline at each rung, nan where nothing is claimed."""
    return [lead.p for _, lead in _claims(result)]


def corrected(result: Results, adjusted: Iterable[float]) -> Results:
    """Returns the results with p of `tested` after Holm's correction, by which alone an arm is ahead or behind."""
    by_arm: dict[str, list[Lead]] = {}
    for (name, lead), p in zip(_claims(result), adjusted, strict=True):
        by_arm.setdefault(name, []).append(dataclasses.replace(lead, p_holm=p))
    arms = dict(result.arms)
    for name, leads in by_arm.items():
        values = [level.value for level in arms[name].levels]
        survives, words = survival(name, result.baseline, result.by, values, tuple(leads))
        arms[name] = dataclasses.replace(arms[name], leads=tuple(leads), survives=survives, words=words)
    return dataclasses.replace(result, arms=arms)


def _claims(result: Results | None) -> list[tuple[str, Lead]]:
    if result is None or result.refused:
        return []
    return [(name, lead) for name, one in result.arms.items() if name != result.baseline for lead in one.leads]


def results(study: Study) -> Results:
    """Returns what a study with a ladder shows, each claim by itself; `comparing.claims` corrects them."""
    ladder, reference = study.ladder, reference_arm(study)
    assert ladder is not None
    if reference is None:
        return Results(study.name, ladder.by, "", refused="the study has one arm; a gain needs a baseline")
    base = reference.name
    result = Results(study.name, ladder.by, base)
    refused = _edge(ladder, base) or _short(ladder, base, base)
    if refused:
        return dataclasses.replace(result, refused=refused)
    differing = marks(study)
    arms, curves = {}, {}
    for arm in study.arms:
        refusals = [m.words for m in differing.get(arm.name, []) if m.level == REFUSED and touches(m, "loss")]
        refused = "; ".join(refusals) or _edge(ladder, arm.name) or _short(ladder, arm.name, base)
        if refused:
            arms[arm.name] = Result(arm.name, refused=refused)
            continue
        seeds = _seeds(ladder, arm.name, base)
        values, curve = _curve(ladder, arm.name, seeds)
        arms[arm.name] = _result(ladder, arm.name, base, seeds, values, curve)
        curves[arm.name] = (values, curve)
    shared = tuple(sorted(set.intersection(*(set(one.seeds) for one in arms.values() if one.seeds))))
    fitted = Fit(refused=f"{plural(len(shared), 'seed')} in all arms; needs {gains.SEEDS}")
    if len(shared) >= gains.SEEDS:
        fitted = gains.fit({name: _curve(ladder, name, shared)[1] for name in curves}, base)
    return dataclasses.replace(
        result, arms=arms, curves=curves, fit=fitted, orders=_orders(ladder, curves), speeds=_source(ladder, curves)
    )


def _loss(run: Run) -> float:
    return from_eval("loss", "loss")(run)


def _by_seed(arm: Arm) -> dict[int, float]:
    usable = {run.seed: _loss(run) for run in arm.done if from_info("flops")(run) > 0}
    return {seed: loss for seed, loss in usable.items() if math.isfinite(loss)}


def _rungs(ladder: Ladder, name: str) -> list[float]:
    """Returns the rungs at which an arm has a measured run."""
    return [value for value, arms in ladder.rungs.items() if name in arms and _by_seed(arms[name])]


def _seeds(ladder: Ladder, name: str, base: str) -> tuple[int, ...]:
    """Returns the seeds that an arm and the baseline have at all of their rungs."""
    expected = [(value, one) for one in (name, base) for value in _rungs(ladder, one)]
    sets = [set(_by_seed(ladder.rungs[value][one])) for value, one in expected]
    return tuple(sorted(set.intersection(*sets))) if sets else ()


def _short(ladder: Ladder, name: str, base: str) -> str:
    for one in (name, base):
        if len(_rungs(ladder, one)) < 2:
            return f"{one}: {plural(len(_rungs(ladder, one)), 'rung')} measured; a curve needs at least 2"
    seeds = _seeds(ladder, name, base)
    if len(seeds) >= gains.SEEDS:
        return ""
    who = name if name == base else f"{name} and {base}"
    return f"{who}: {plural(len(seeds), 'seed')} done at every rung; an interval needs at least {gains.SEEDS}"


def _edge(ladder: Ladder, name: str) -> str:
    """Returns why an arm's hyperparameter is not tuned: a rung's best value was at the grid's edge; else empty."""
    for value, selection in ladder.selections.items():
        own = getattr(ladder.rungs[value].get(name), "name", name)
        choice = selection.choices.get(own, {})
        if edge := text(choice.get("edge")):
            return (
                f"{name} at {rung_label(ladder.by, value)}: its {selection.field} of {number(choice.get('value')):g} "
                f"is the {edge} tried, so a better one may be outside; widen the grid"
            )
    return ""


def _curve(ladder: Ladder, name: str, seeds: tuple[int, ...]) -> tuple[list[float], Curve]:
    values = _rungs(ladder, name)
    rows, flops = [], []
    for value in values:
        arm = ladder.rungs[value][name]
        losses = _by_seed(arm)
        rows.append([losses[seed] for seed in seeds])
        spent = [from_info("flops")(run) for run in arm.done if run.seed in seeds]
        flops.append(sum(spent) / len(spent))
    order = np.argsort(flops)
    return [values[i] for i in order], Curve(np.array(flops)[order], np.array(rows).T[:, order])


def _result(ladder: Ladder, name: str, base: str, seeds: tuple[int, ...], values: list[float], curve: Curve) -> Result:
    _, baseline = _curve(ladder, base, seeds)
    levels = []
    for rung, value in enumerate(values):
        gain = gains.at_rung(baseline, curve, rung)
        speed, per_second = _speed(ladder.rungs[value][name])
        factor = speed / _speed_at(ladder, base, gain.flops * gain.gain) if not gain.refused else math.nan
        levels.append(Level(value, gain, factor, per_second))
    leads = tuple(gains.leads(baseline, curve))
    return Result(name, seeds, tuple(levels), leads)


def _speed(arm: Arm) -> tuple[float, float]:
    """Returns training (FLOPs, tokens) per second, median over seeds: measured by eval.throughput, else in training."""
    pairs = []
    for run in arm.done:
        per_token = from_info("flops_per_token", "value")(run)
        tokens = number(dig(run.evals.get("throughput"), "train", "tokens_per_second"))
        if not math.isfinite(tokens):
            tokens = from_info("tokens")(run) / (from_info("wall_time", "train")(run) or math.nan)
        if math.isfinite(tokens * per_token):
            pairs.append((tokens * per_token, tokens))
    return (math.nan, math.nan) if not pairs else tuple(np.median(np.array(pairs), axis=0).tolist())  # type: ignore[return-value]


def _speed_at(ladder: Ladder, name: str, flops: float) -> float:
    """Returns an arm's FLOPs per second at a budget, between its rungs interpolated in ln C."""
    known = []
    for value in _rungs(ladder, name):
        arm = ladder.rungs[value][name]
        speed, _ = _speed(arm)
        spent = [from_info("flops")(run) for run in arm.done]
        if math.isfinite(speed) and speed > 0:
            known.append((math.log(sum(spent) / len(spent)), math.log(speed)))
    if not known or not flops > 0:
        return math.nan
    x, y = zip(*sorted(known), strict=True)
    return math.exp(float(np.interp(math.log(flops), x, y)))


def _source(ladder: Ladder, names: Mapping[str, Any]) -> str:
    runs = [run for rung in ladder.rungs.values() for name in names for run in rung[name].done]
    timed = [math.isfinite(number(dig(run.evals.get("throughput"), "train", "tokens_per_second"))) for run in runs]
    if runs and all(timed):
        return "eval/throughput.json"
    return "eval/throughput.json if measured, else the speed in training" if any(timed) else "the speed in training"


def _orders(ladder: Ladder, curves: Mapping[str, tuple[list[float], Curve]]) -> dict[float, list[str]]:
    collected = {}
    for value in ladder.rungs:
        losses = {name: float(curve.losses.mean(axis=0)[values.index(value)])
                  for name, (values, curve) in curves.items() if value in values}  # fmt: skip
        if losses:
            collected[value] = sorted(losses, key=lambda name: (losses[name], name))
    return collected


def survival(name: str, base: str, by: str, values: list[float], leads: tuple[Lead, ...]) -> tuple[str, str]:
    """Returns whether the ranking of an arm against the baseline survives scale, and the sentence for it."""
    known = [(value, lead) for value, lead in zip(values, leads, strict=True) if lead.sign]
    resolved = sum(lead.resolved for _, lead in known)
    if not resolved:
        return UNRESOLVED, f"{name} against {base}: no rung resolves which is ahead, so there is no ranking to lose."
    turns = [i for i in range(1, len(known)) if known[i][1].sign != known[i - 1][1].sign]
    side = {-1: "ahead of", 1: "behind"}
    if not turns:
        words = (
            f"{name} is {side[known[0][1].sign]} {base} at every rung ({resolved} of {len(known)} resolved): "
            f"the ranking survives scale from {rung_label(by, known[0][0])} to {rung_label(by, known[-1][0])}."
        )
        return SURVIVES, words
    for turn in turns:
        before, after = known[:turn], known[turn:]
        sides = (known[turn - 1][1].sign, known[turn][1].sign)
        left = any(lead.resolved and lead.sign == sides[0] for _, lead in before)
        right = any(lead.resolved and lead.sign == sides[1] for _, lead in after)
        if left and right:
            (value, one), (other, two) = known[turn - 1], known[turn]
            return CROSSES, (
                f"{name} crosses {base} between {rung_label(by, value)} and {rung_label(by, other)} (near "
                f"{count(_crossing(one, two))} FLOPs): {side[sides[0]]} it below, {side[sides[1]]} it above; the "
                "ranking does not survive scale."
            )
    value, other = known[turns[0] - 1][0], known[turns[0]][0]
    return OPEN, (
        f"{name} against {base}: the sign turns between {rung_label(by, value)} and {rung_label(by, other)}, and the "
        "rungs on one or both sides do not resolve it; whether the ranking survives scale is open."
    )


def _crossing(one: Lead, two: Lead) -> float:
    share = one.difference / (one.difference - two.difference)
    return math.exp(math.log(one.flops) + share * (math.log(two.flops) - math.log(one.flops)))


def rung_label(by: str, value: float) -> str:
    """Returns `amount 400`, `width 128`."""
    return f"{by.rsplit('.', 1)[-1]} {counted(value)}"


def as_json(result: Results) -> dict[str, Any]:
    """Returns a study's results for --json; values that are not finite are null."""
    arms = {}
    for name, one in result.arms.items():
        head = one.head
        interval = (result.fit.intervals or {}).get(name, (math.nan, math.nan))
        arms[name] = {
            "study": result.study,
            "baseline": result.baseline,
            **(_level(head) if head else {"gain": None, "low": None, "high": None}),
            "refused": one.refused or ("" if head else "no rung is within the baseline's losses"),
            "seeds": list(one.seeds),
            "rungs": [_level(level) | _lead(lead) for level, lead in zip(one.levels, one.leads, strict=True)],
            "fit": {"gain": (result.fit.gains or {}).get(name), "low": interval[0], "high": interval[1]},
            "ranking_survives": one.survives,
            "words": one.words,
        }
    study = {
        "by": result.by,
        "baseline": result.baseline,
        "refused": result.refused,
        "speeds": result.speeds,
        "orders": [{"value": value, "arms": order} for value, order in result.orders.items()],
        "fit": {
            "floor": result.fit.floor,
            "alpha": result.fit.alpha,
            "lack_of_fit_p": result.fit.lack,
            "refused": result.fit.refused,
        },
    }
    return {"arms": _plain(arms), "study": _plain(study)}


def _level(level: Level) -> dict[str, Any]:
    gain, time = level.gain, level.time
    return {
        "gain": gain.gain,
        "low": gain.low,
        "high": gain.high,
        "beyond": list(gain.beyond),
        "value": level.value,
        "flops": gain.flops,
        "loss": gain.loss,
        "refused": gain.refused,
        "time": {"gain": gain.gain * time, "low": gain.low * time, "high": gain.high * time},
        "tokens_per_second": level.speed,
    }


def _lead(lead: Lead) -> dict[str, Any]:
    return {
        "difference": lead.difference,
        "difference_interval": [lead.low, lead.high],
        "p": lead.p,
        "p_holm": lead.p_holm,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def end_label(gain: Gain, name: str) -> str:
    """Returns an end of an interval: with a star if it is beyond the ladder, `none` if there is none."""
    value = getattr(gain, name)
    return ("none" if not 0 < value < math.inf else f"{value:.3g}") + ("*" if name in gain.beyond else "")


def sentences(result: Results) -> list[str]:
    """Returns the results in sentences: gains at the highest rung within the ladder, refusals, and the ranking."""
    if result.refused:
        return [f"{result.study}: refused: {result.refused}."]
    said = []
    for name, one in result.arms.items():
        if one.refused:
            said.append(f"{name}: refused: {one.refused}.")
        elif name != result.baseline:
            said += [_headline(result, one), one.words]
    said += _fit_words(result)
    if len(result.orders) > 1:
        (first, before), *_, (last, after) = result.orders.items()
        same = "the same" if before == after else "another"
        said.append(
            f"By mean loss, best first: {', '.join(before)} at {rung_label(result.by, first)}; {same} order at "
            f"{rung_label(result.by, last)}" + ("." if before == after else f": {', '.join(after)}.")
        )
    return said


def _headline(result: Results, one: Result) -> str:
    level = one.head
    if level is None:
        reasons = {each.gain.refused for each in one.levels}
        return f"{one.arm}: refused at every rung: {'; '.join(sorted(reasons))}."
    gain, lead = level.gain, one.leads[one.levels.index(level)]
    time = f"; in wall time {gain.gain * level.time:.3g}{TIMES}" if math.isfinite(level.time) else ""
    missing = [rung_label(result.by, each.value) for each in one.levels if each.gain.refused]
    return (
        f"{one.arm} at {rung_label(result.by, level.value)}: {result.baseline} needs {gain.gain:.3g}{TIMES} its "
        f"compute for the same loss, [{end_label(gain, 'low')}, {end_label(gain, 'high')}] over "
        f"{plural(len(one.seeds), 'seed')}"
        + _resolved(gain, lead)
        + time
        + (f". Refused at {listed(missing)}: outside of the baseline's losses." if missing else ".")
    )


def _resolved(gain: Gain, lead: Lead) -> str:
    """Returns whether a gain differs from 1, and why one does not whose own interval excludes 1."""
    if not gain.low > 1 and not gain.high < 1:
        return " (not resolved from 1)"
    if math.isnan(lead.p):
        return " (not tested: its compute lies outside of the baseline's ladder)"
    if lead.resolved:
        return "; significant at 5%"
    return f" (not resolved from 1: after Holm's correction p = {lead.p_holm:.2g})"


def _fit_words(result: Results) -> list[str]:
    fit = result.fit
    if fit.refused:
        return [f"Joint fit L = E + A C^{MINUS}alpha: none: {fit.refused}."]
    messages = [
        f"{name} {value:.3g}{TIMES} [{fit.intervals[name][0]:.3g}, {fit.intervals[name][1]:.3g}]"
        for name, value in (fit.gains or {}).items()
        if name != result.baseline and fit.intervals
    ]
    if not messages:
        return []
    lack = ""
    if math.isfinite(fit.lack):
        verdict = "the form does not fit, use the gains above" if fit.lack < 0.05 else "no lack of fit seen"
        lack = f"; lack of fit p = {fit.lack:.2g}: {verdict}"
    return [
        f"Joint fit L = E + A C^{MINUS}alpha (E {fit.floor:.3g}, alpha {fit.alpha:.3g}), one gain for all rungs: "
        f"{listed(messages)}{lack}."
    ]
