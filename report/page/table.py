"""The table of arms: as rows of raw numbers (CSV), and as formatted cells for the page, Markdown and LaTeX."""

import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from configs import fields
from configs.errors import ConfigError
from configs.evaluations import EVALUATIONS, evaluation
from configs.rules import tasks
from report.claims.comparable import Mark, agreements, marks, matched, reference_arm
from report.claims.comparing import Comparison, comparisons, confidence, shown
from report.page import formats
from report.page.formats import DASH, PLUS_MINUS, decimals, fixed, interval, percent
from report.reading import distance, settings, target
from report.reading.directories import Arm, Study, dig
from report.reading.measures import (
    TRAINED,
    Number,
    answers,
    bits_per_byte,
    by_seed,
    effective_lengths,
    from_eval,
    from_info,
    has_scalings,
    loss,
    loss_sources,
    loss_unit,
    median,
    memory_source,
    names,
    pooled,
    retrieval_lengths,
    retrieval_points,
    skipped,
    source_loss,
    spread,
    timed_under_load,
)
from report.statistics.intervals import Estimate


@dataclass(frozen=True)
class Cell:
    """One cell: `text`, a smaller second line `sub`, its sort key, and for a dash the reason."""

    text: str
    sub: str = ""
    sort: float | str = math.nan
    why: str = ""


@dataclass(frozen=True)
class Column:
    """One column. `note` explains the heading; `source` is "file: key" of a run."""

    key: str
    heading: str
    note: str = ""
    numeric: bool = True
    source: str = ""


# Columns that evaluations declare, each with its evaluation; those without a heading are drawn here.
MEASURED = [(name, one) for name, declared in EVALUATIONS.items() for one in declared.columns if one.heading]
LOSS = "eval/loss.json:loss"
MOST_SOURCES = 8  # maximum texts of a mixture with a column
AT_MOST = "\N{LESS-THAN OR EQUAL TO}"
AT_LEAST = "\N{GREATER-THAN OR EQUAL TO}"
RETRIEVAL = "eval/retrieval.json:by_length"
EFFECTIVE = "eval/retrieval.json:effective_length.accuracy"


@dataclass(frozen=True)
class Table:
    """The arms of one study: columns, a row of cells per arm, notes below, and the raw numbers."""

    study: Study
    columns: list[Column]
    rows: list[tuple[Arm, list[Cell]]]
    raw: list[dict[str, Any]]

    def keys(self, name: str) -> list[str]:
        """Returns the keys of the columns for a name in `columns`: for `retrieval` one per length."""
        if name == "retrieval":
            return [column.key for column in self.columns if column.key.split(" ")[0] == "retrieval"]
        return [name.replace("@", " ") if name.startswith("retrieval@") else name]

    @property
    def asked(self) -> list[int]:
        """The indices of the requested columns, with the arm's first; of all if the study requests none."""
        places = {column.key: place for place, column in enumerate(self.columns)}
        wanted = [key for name in self.study.columns for key in self.keys(name) if key in places]
        return [places[key] for key in dict.fromkeys(["arm", *wanted])] if wanted else list(range(len(places)))

    @property
    def reasons(self) -> list[str]:
        """The reasons for dashes, and the conditions that evaluations skipped; each reason once."""
        results = [cell.why for _, cells in self.rows for cell in cells if cell.why]
        for arm, _ in self.rows:
            results += [f"{arm.name}: no {left}: {reason}" for reason, left in skipped(arm).items()]
        return list(dict.fromkeys(results))


def build(study: Study) -> Table:
    """Returns the study's table."""
    by_arm = {one.arm: one for one in comparisons(study) if one.measure == "loss"}
    differing = marks(study)
    lengths = retrieval_lengths(study)
    columns = _columns(study, lengths, bool(by_arm))
    rows, raw = [], []
    for arm in study.arms:
        cells = _cells(study, arm, lengths, by_arm.get(arm.name), differing.get(arm.name, []))
        rows.append((arm, [cells[column.key] for column in columns]))
        raw.append(_raw(study, arm, lengths, by_arm.get(arm.name), differing.get(arm.name, [])))
    return Table(study, columns, rows, raw)


def _columns(study: Study, lengths: list[float], compared: bool) -> list[Column]:
    columns = [Column("arm", "arm", numeric=False)]
    if _asked(study, "loss"):
        columns += [Column("loss", "val. loss", f"{loss_unit(study)}, 95% interval", source=LOSS)]
        if compared:
            note = f"nats, paired by seed, {confidence(study)}"
            columns += [Column("difference", f"{formats.DELTA} baseline", note, source=LOSS)]
        if compared and "p" in study.columns:
            columns += [Column("p", "p (Holm)", "of the difference", source=LOSS)]
        columns += [
            Column(f"loss {name}", f"loss on {name}", "a text of the mixture", source="eval/loss.json:by_source")
            for name in loss_sources(study)[:MOST_SOURCES]
        ]
    if math.isfinite(study.target):
        goal = f"tokens to a loss of {study.target:g}, median"
        columns += [Column("target", "to target", goal, source="metrics.jsonl:val_loss")]
    if len(study.arms) > 1:
        columns += [Column("comparable", "like for like", numeric=False)]
    if _asked(study, "loss") and not answers(study):
        columns += [Column("bits", "bits/byte", source="eval/loss.json:bits_per_byte")]
    if _asked(study, "retrieval"):
        own = ", own scaling" if has_scalings(study) else ""
        columns += [
            Column(
                f"retrieval {length:g}",
                f"retrieval @{length:g}",
                f"right{own}, 95%{_back(study, length)}",
                source=RETRIEVAL,
            )
            for length in lengths
        ] or [Column("retrieval", "retrieval", "right", source=RETRIEVAL)]
        if any(effective_lengths(arm)[0] for arm in study.arms):
            columns += [Column("effective", "effective length", _threshold(study), source=EFFECTIVE)]
    columns += [
        Column(one.key, one.heading, one.note, source=f"eval/{name}.json:{one.source}")
        for name, one in MEASURED
        if _asked(study, name) and (one.default or one.key in study.columns)
    ]
    columns += [
        Column("parameters", "parameters", source="run.json:parameters.total"),
        Column("flops", "FLOPs/token", _formula(study), source="run.json:flops_per_token.value"),
        Column("kv", "KV cache", "bytes/token", source="run.json:kv_bytes_per_token"),
        Column("kernel", "kernel", "attention, as run", numeric=False, source="run.json:attention_kernel"),
        Column("seeds", "seeds", "done/ failed/ diverged", numeric=False),
    ]
    return columns + [
        Column(name, name.rsplit(".", 1)[-1].replace("_", " "), numeric=False, source=f"config.json:{name}")
        for name in study.columns
        if name in fields.types()
    ]


def _formula(study: Study) -> str:
    """Returns the formula by which the runs' FLOPs were counted, if there is only one; N is the parameters."""
    given = [names(arm, lambda run: dig(run.info, "flops_per_token", "formula")) for arm in study.arms]
    formulas = list(dict.fromkeys(itertools.chain(*given)))
    return f"training, {formulas[0]}" if len(formulas) == 1 else "training, by arm: see run.json" if formulas else ""


def _back(study: Study, length: float) -> str:
    message = distance.back(study.arms, length)
    return f"; {message}" if message else ""


def _asked(study: Study, name: str) -> bool:
    return name in study.evals or any(name in run.evals for arm in study.arms for run in arm.runs)


def _cells(
    study: Study, arm: Arm, lengths: list[float], compared: Comparison | None, differing: list[Mark]
) -> dict[str, Cell]:
    cells = {
        "arm": Cell(arm.name, sort=arm.name),
        "loss": _estimate(loss(arm), _why(arm, "loss")),
        "difference": _difference(study, arm, compared),
        "target": _target(study, arm),
        "bits": _estimate(bits_per_byte(arm), _why(arm, "loss")),
        **{f"loss {name}": _estimate(source_loss(arm, name), _why(arm, "loss")) for name in loss_sources(study)},
        "retrieval": Cell(DASH, why=_why(arm, "retrieval")),
        "effective": _effective(arm),
        **{one.key: _measured(arm, name, one) for name, one in MEASURED},
        "parameters": _plain(arm, from_info("parameters", "total"), formats.count),
        "flops": _plain(arm, from_info("flops_per_token", "value"), formats.count),
        "kv": _plain(arm, from_info("kv_bytes_per_token"), formats.memory),
        "kernel": _name(arm, "attention_kernel"),
        "seeds": _seeds(arm),
        "comparable": _comparable(study, arm, differing),
        "p": Cell(DASH) if compared is None or not math.isfinite(compared.p_holm) else _p(compared.p_holm),
    }
    config = settings.flat(settings.config_of(arm))
    cells |= {name: Cell(config.get(name, DASH), sort=config.get(name, "")) for name in study.columns if "." in name}
    for length in lengths:
        points = [p for p in retrieval_points(arm) if p.length == length and p.scaling == TRAINED]
        share = pooled(points)
        elsewhere = f"{arm.name}: retrieval not evaluated at {length:g} tokens"
        cell = _share(share, elsewhere if retrieval_points(arm) else _why(arm, "retrieval"))
        beside = distance.shown(arm, length)
        cells[f"retrieval {length:g}"] = replace(cell, sub=f"{cell.sub}; {beside}") if beside and points else cell
    return cells


def _p(value: float) -> Cell:
    return Cell("< 0.001" if value < 0.001 else f"{value:.3f}", "", value)


def _target(study: Study, arm: Arm) -> Cell:
    """Returns the median tokens to the target loss, with the steps and the number of runs that reached it below."""
    if not math.isfinite(study.target):
        return Cell(DASH)
    result = target.of_arm(arm, study.target)
    if not result:
        return Cell(DASH, why=_why(arm, "") if not arm.done else f"{arm.name}: no val_loss in metrics.jsonl")
    reached = sum(not one.censored for one in result)
    counts = f"{reached} of {len(result)} reached"
    tokens, steps = target.median(result, "tokens"), target.median(result, "steps")
    if math.isinf(tokens):
        until = min(one.until for one in result if one.censored)
        return Cell("not reached", f"by step {until:g}, {counts}", sys.float_info.max)
    at_most = AT_MOST if all(one.first for one in result if not one.censored) else ""
    return Cell(f"{at_most}{formats.count(tokens)}", f"{steps:,.0f} steps, {counts}", tokens)


def _median_to(results: list[target.Reached], what: str) -> float | str:
    value = target.median(results, what)
    return "not reached" if math.isinf(value) else value


def _threshold(study: Study) -> str:
    """Returns the definition of the effective length, if all arms have one threshold."""
    results = {effective_lengths(arm)[1] for arm in study.arms if effective_lengths(arm)[0]}
    given = results.pop() if len(results) == 1 else ""
    try:
        value, above = tasks.threshold(given)
    except ConfigError:
        return "tokens"
    named = f" ({given})" if given in tasks.THRESHOLDS else ""
    return f"tokens, accuracy {'above' if above else 'at least'} {100 * value:g}%{named}"


def _effective(arm: Arm) -> Cell:
    """Returns the median effective length over seeds, with the minimum and maximum below."""
    result, _ = effective_lengths(arm)
    if not result:
        return Cell(DASH, why=_why(arm, "retrieval"))
    length, bounded = result[(len(result) - 1) // 2]  # of two middle values the lower one
    at_least = "" if bounded else AT_LEAST  # the longest evaluated length still passed
    low, high = result[0][0], result[-1][0]
    over = (
        f"{low:g}\N{EN DASH}{high:g} over {len(result)} seeds" if low != high else formats.plural(len(result), "seed")
    )
    return Cell(f"{at_least}{length:g}", over, length)


def _estimate(one: Estimate, why: str) -> Cell:
    if not math.isfinite(one.mean):
        return Cell(DASH, why=why)
    places = decimals(one.half, most=4) if one.over == "seeds" else 3
    ends = "too few seeds" if one.over == "few" else interval(one.low, one.high, places)
    sub = f"{ends} tokens only" if one.over == "tokens" else ends or "1 seed"
    return Cell(fixed(one.mean, places), sub, one.mean)


def _share(one: Estimate, why: str) -> Cell:
    if not math.isfinite(one.mean):
        return Cell(DASH, why=why)
    ends = "too few seeds" if one.over == "few" else f"[{100 * one.low:.1f}, {100 * one.high:.1f}]"
    seeds = f", {one.count} seeds" if one.count > 1 else ", rows only"
    return Cell(percent(one.mean), f"{ends} n={one.examples}{seeds}", one.mean)


def _difference(study: Study, arm: Arm, one: Comparison | None) -> Cell:
    if one is None:
        return Cell("baseline" if study.baseline else "reference", sort=0.0)
    if not math.isfinite(one.difference.mean) or one.verdict == "not comparable":
        return Cell(DASH, why=f"{arm.name}: {one.why}" if one.why else "")
    places = decimals(one.difference.half, most=4)
    sign = "+" if one.difference.mean > 0 else ""
    if one.few:
        return Cell(
            f"{sign}{fixed(one.difference.mean, 3)}", f"too few seeds, {shown(one.verdict)}", one.difference.mean
        )
    half = f"{PLUS_MINUS}{fixed(one.difference.half, places)}" if math.isfinite(one.difference.half) else "1 seed"
    return Cell(f"{sign}{fixed(one.difference.mean, places)}", f"{half}, {shown(one.verdict)}", one.difference.mean)


def _number(name: str, column: evaluation.Column) -> Number:
    return evaluation.load(column.number) if column.number else from_eval(name, *column.source.split("."))


def _over_seeds(arm: Arm, name: str, column: evaluation.Column) -> float:
    number = _number(name, column)
    if not column.mean:
        return median(arm, number)
    values = by_seed(arm, number).values()
    return statistics.fmean(values) if values else math.nan


def _measured(arm: Arm, name: str, column: evaluation.Column) -> Cell:
    """Returns a cell of a column that an evaluation declares."""
    value = _over_seeds(arm, name, column)
    if not math.isfinite(value):
        return Cell(DASH, why=_why(arm, name))

    def show(number: float) -> str:
        return column.show.format(number) if "{" in column.show else getattr(formats, column.show)(number)

    if EVALUATIONS[name].timed and timed_under_load(arm, name):
        return Cell(show(value), "under load, not ranked")
    below = evaluation.load(column.below)(arm) if column.below else ""
    if column.ends:
        low, high = spread(arm, _number(name, column), lambda run: dig(run.evals.get(name), *column.ends))
        below = f"{show(low)}\N{EN DASH}{show(high)}" if math.isfinite(low + high) else ""
    return Cell(show(value), below, value)


def _plain(arm: Arm, measure: Number, show: Callable[[float], str]) -> Cell:
    value = median(arm, measure)
    why = f"{arm.name}: not in run.json" if arm.done else _why(arm, "")
    return Cell(show(value), "", value) if math.isfinite(value) else Cell(DASH, why=why)


def _name(arm: Arm, key: str) -> Cell:
    result = ", ".join(names(arm, lambda run: run.info.get(key)))
    return Cell(result, sort=result) if result else Cell(DASH, why=_why(arm, ""))


def _seeds(arm: Arm) -> Cell:
    def amount(*statuses: str) -> int:
        return sum(run.status in statuses for run in arm.runs)

    done, failed, diverged = amount("done"), amount("failed", "unreadable"), amount("diverged")
    rest = len(arm.runs) - done - failed - diverged
    sub = f"of {len(arm.runs)}, {rest} to come" if rest else f"of {len(arm.runs)}"
    return Cell(f"{done} / {failed} / {diverged}", sub, f"{done:06d}")


def _comparable(study: Study, arm: Arm, differing: list[Mark]) -> Cell:
    if arm is reference_arm(study):
        return Cell("baseline" if study.baseline else "reference")
    if not arm.done:
        return Cell(DASH, why=_why(arm, ""))
    equal = matched(agreements(arm, reference)) if (reference := reference_arm(study)) else ""
    if not differing:
        return Cell("yes", equal)
    levels = {mark.level for mark in differing}
    shorts = ", ".join(dict.fromkeys(mark.short for mark in differing))
    head = "no" if "not comparable" in levels else "differs" if "differs" in levels else "yes, note"
    return Cell(head, f"{shorts}; {equal}" if equal else shorts, head)


def _why(arm: Arm, evaluation: str) -> str:
    """Returns why the arm has no result of an evaluation: its runs' states, or what finished runs lack."""
    if not arm.done:
        states = formats.listed(list(dict.fromkeys(run.status for run in arm.runs))) or "absent"
        return f"{arm.name}: no finished run ({states})"
    reasons = [run.missing[evaluation] for run in arm.done if evaluation in run.missing]
    return f"{arm.name}: {reasons[0]}" if reasons else f"{arm.name}: no finite value"


def _raw(
    study: Study, arm: Arm, lengths: list[float], compared: Comparison | None, differing: Iterable[Mark]
) -> dict[str, Any]:
    one, bits = loss(arm), bits_per_byte(arm)
    row: dict[str, Any] = {
        "study": study.name,
        "arm": arm.name,
        "baseline": study.baseline or "",
        "loss": one.mean,
        "loss_low": one.low,
        "loss_high": one.high,
        "loss_interval_over": one.over,
        "bits_per_byte": bits.mean,
        "bits_per_byte_low": bits.low,
        "bits_per_byte_high": bits.high,
        "loss_difference": compared.difference.mean if compared else math.nan,
        "loss_difference_low": compared.difference.low if compared else math.nan,
        "loss_difference_high": compared.difference.high if compared else math.nan,
        "loss_difference_p": compared.difference.p if compared else math.nan,
        "loss_difference_p_holm": compared.p_holm if compared else math.nan,
        "loss_difference_family": compared.family if compared else math.nan,
        "loss_difference_pooled_arms": compared.difference.pooled if compared else math.nan,
        "loss_difference_text_error": compared.difference.text_error if compared else math.nan,
        "loss_difference_smallest_seen": compared.smallest_seen if compared else math.nan,
        "verdict": compared.verdict if compared else "",
    }
    for length in lengths:
        share = pooled(p for p in retrieval_points(arm) if p.length == length and p.scaling == TRAINED)
        row[f"retrieval_{length:g}"] = share.mean
        row[f"retrieval_{length:g}_low"] = share.low
        row[f"retrieval_{length:g}_high"] = share.high
        row[f"retrieval_{length:g}_examples"] = share.examples
        row[f"retrieval_{length:g}_interval_over"] = share.over
        row[f"retrieval_{length:g}_local"] = pooled(p for p in distance.controls(arm) if p.length == length).mean
        row[f"retrieval_{length:g}_distance"] = distance.copies([arm], length)[0]
        row[f"retrieval_{length:g}_mark"] = distance.mark(arm, length)
    if math.isfinite(study.target):
        reached = target.of_arm(arm, study.target)
        row |= {
            "target_loss": study.target,
            "target_reached": sum(not one.censored for one in reached),
            "target_not_reached": sum(one.censored for one in reached),
            **{f"{what}_to_target": _median_to(reached, what) for what in ("steps", "tokens")},
        }
    lasting = effective_lengths(arm)[0]
    row["effective_length"] = lasting[(len(lasting) - 1) // 2][0] if lasting else math.nan
    row |= {one.raw: _over_seeds(arm, name, one) for name, one in MEASURED}
    states = [run.status for run in arm.runs]
    return row | {
        "speeds_under_load": timed_under_load(arm),
        "train_memory_source": memory_source(arm),
        "parameters": median(arm, from_info("parameters", "total")),
        "parameters_non_embedding": median(arm, from_info("parameters", "non_embedding")),
        "flops_per_token": median(arm, from_info("flops_per_token", "value")),
        "kv_bytes_per_token": median(arm, from_info("kv_bytes_per_token")),
        "attention_kernel": ", ".join(names(arm, lambda run: run.info.get("attention_kernel"))),
        "dtype": ", ".join(names(arm, lambda run: run.info.get("dtype"))),
        "seeds": len(arm.runs),
        "seeds_done": states.count("done"),
        "seeds_failed": states.count("failed") + states.count("unreadable"),
        "seeds_diverged": states.count("diverged"),
        "marks": "; ".join(f"{mark.level}: {mark.words}" for mark in differing),
    }


def markdown(tables: list[Table]) -> str:
    """Returns the tables as Markdown, one heading per study."""
    parts = []
    for table in tables:
        columns = [table.columns[place] for place in table.asked]
        head = [formats.markdown(_heading(column)) for column in columns]
        lines = [f"| {' | '.join(head)} |"]
        lines += [f"|{'|'.join('---:' if column.numeric else ':---' for column in columns)}|"]
        for _, cells in table.rows:
            kept = [cells[place] for place in table.asked]
            shown = [formats.markdown(f"{cell.text} {cell.sub}".strip()) for cell in kept]
            lines += [f"| {' | '.join(shown)} |"]
        notes = "".join(f"\n- {formats.markdown(reason)}" for reason in table.reasons)
        notes = f"\n\n{DASH} means not available:\n{notes}" if notes else ""
        body = "\n".join(lines)
        parts.append(f"## {formats.markdown(table.study.title)}\n\n{body}{notes}\n")
    return "\n".join(parts) or "No arms.\n"


def _heading(column: Column) -> str:
    return f"{column.heading} ({column.note})" if column.note else column.heading
