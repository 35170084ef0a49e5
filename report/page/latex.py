"""table.tex: the columns requested by the study, or its kind's default, with a caption for a paper.

The tables need only booktabs. None is shrunk: a table is at most WIDTH points wide, the text width of a plain
one-column article; further columns become a second table, which repeats the arms' names.
"""

import math
from dataclasses import dataclass

from configs.columns import COLUMNS
from configs.evaluations import EVALUATIONS
from report.claims.comparable import swept
from report.claims.comparing import RESOLVED, comparisons, confidence
from report.page import formats
from report.page.formats import plural
from report.page.table import Cell, Column, Table
from report.reading.directories import Arm, Study
from report.reading.measures import timed_under_load

WIDTH = 345.0  # points: \textwidth of a 10 pt article
COLUMN = 240.0  # points: a column of a two-column paper
LETTER, SMALL_LETTER = 4.7, 3.7  # average points of a letter in \small and in \scriptsize
GAP = 8.0  # points between two columns
LONGEST_NAME = 105.0  # points of the arms' column; longer names have a line of their own
# Columns that a busy machine shapes, with their evaluation.
SPEEDS = {column.key: name for name, one in EVALUATIONS.items() if one.timed for column in one.columns}
SAME = ("parameters", "flops", "kv", "kernel", "seeds", "effective")  # left out by default if all arms are equal


@dataclass(frozen=True)
class Kind:
    """A kind of study: it varies a field with this prefix, and its paper table has these columns by default."""

    name: str
    fields: tuple[str, ...]
    columns: tuple[str, ...]


KINDS = (
    Kind("kernels", ("model.attention.kernel", "model.attention.qkv", "model.attention.kv_storage", "model.remat",
                     "model.dtype", "mesh."), ("train", "decode", "memory", "loss", "difference")),
    Kind("positions", ("model.position.",), ("loss", "difference", "retrieval", "effective", "train")),
    Kind("heads", ("model.num_", "model.head_dim", "model.attention."),
         ("loss", "difference", "retrieval", "decode", "kv", "parameters", "seeds")),
    Kind("training", ("optimizer.", "budget.", "data.", "init_from"), ("loss", "difference", "target", "seeds")),
    Kind("other", ("",), ("loss", "difference", "retrieval", "parameters", "flops", "train", "seeds")),
)  # fmt: skip


def kind(study: Study) -> Kind:
    """Returns the kind of a study, by the first field that it varies."""
    first = next(iter(swept(study)), "")
    return next(one for one in KINDS if first.startswith(one.fields))


def chosen(table: Table) -> list[Column]:
    """Returns the columns of a study's paper table: the requested ones, else its kind's that differ between arms."""
    study = table.study
    by_key = {column.key: column for column in table.columns}
    if study.columns:
        return [table.columns[place] for place in table.asked]
    columns = [by_key["arm"]]
    for name in kind(study).columns:
        for key in _ends(table.keys(name)):
            if key in by_key and not (name in SAME and _equal(table, key)):
                columns.append(by_key[key])
    while len(columns) > 2 and sum(_widths(table, columns)) > WIDTH:
        columns.pop()
    return columns


def _ends(keys: list[str]) -> list[str]:
    return keys if len(keys) <= 2 else [keys[0], keys[-1]]


def _equal(table: Table, key: str) -> bool:
    """True if a column has the same value for every arm that has one."""
    place = [column.key for column in table.columns].index(key)
    values = {(cells[place].text, cells[place].sub) for arm, cells in table.rows if arm.done}
    return len(values) <= 1 or (key != "seeds" and len({text for text, _ in values}) <= 1)


def latex(tables: list[Table]) -> str:
    """Returns the tables as LaTeX (booktabs), one table environment per study."""
    parts = ["% needs \\usepackage{booktabs}; references.bib has the entries cited by methods.tex"]
    return "\n\n".join([*parts, *map(_table, tables)]) + "\n"


def _table(table: Table) -> str:
    columns = chosen(table)
    widths = _widths(table, columns)
    floats = []
    for number, block in enumerate(_blocks(widths)):
        environment = "table*" if sum(widths[place] for place in block) > COLUMN else "table"
        more = f"{table.study.title.rstrip('.')}: further columns of the previous table."
        floats += [
            rf"\begin{{{environment}}}[t]",
            r"  \centering\small\setlength{\tabcolsep}{4pt}",
            rf"  \caption{{{formats.latex(more if number else caption(table, columns))}}}",
            rf"  \label{{tab:{formats.slug(table.study.name)}{f'-{number + 1}' if number else ''}}}",
            r"  \smallskip",
            _tabular(table, [columns[place] for place in block]),
            rf"\end{{{environment}}}",
        ]
    return "\n".join(floats)


def _widths(table: Table, columns: list[Column]) -> list[float]:
    """Returns the approximate width of each column in points."""
    keys = [column.key for column in table.columns]
    results = []
    for column in columns:
        place = keys.index(column.key)
        cells = [_paper(table.study, arm, column, cells[place]) for arm, cells in table.rows]
        text = max([len(column.heading), *(len(cell.text) for cell in cells)])
        small = max([len(_unit(column)), *(len(cell.sub) for cell in cells)])
        width = max(LETTER * text, SMALL_LETTER * small) + GAP
        results.append(LETTER * 5 + GAP if column.key == "arm" and _long(table) else width)
    return results


def _blocks(widths: list[float]) -> list[list[int]]:
    """Returns the column indices of each block; the first column is in all of them."""
    blocks: list[list[int]] = [[0]]
    for place in range(1, len(widths)):
        if len(blocks[-1]) > 1 and sum(widths[one] for one in blocks[-1]) + widths[place] > WIDTH:
            blocks.append([0])
        blocks[-1].append(place)
    return blocks


def _tabular(table: Table, columns: list[Column]) -> str:
    keys = [column.key for column in table.columns]
    align = "".join("r" if column.numeric else "l" for column in columns[1:])
    tops = " & ".join(formats.latex(column.heading) for column in columns)
    units = " & ".join(_small(_unit(column)) for column in columns)
    longest = max((LETTER * len(arm.name) for arm, _ in table.rows), default=0.0)
    room = min(WIDTH, max(longest, sum(_widths(table, columns)))) - GAP
    rows = []
    for arm, cells in table.rows:
        shown = [_paper(table.study, arm, column, cells[keys.index(column.key)]) for column in columns]
        above = [formats.latex(cell.text) for cell in shown]
        if _long(table):
            wide = rf"\multicolumn{{{len(columns)}}}{{@{{}}p{{{room:.0f}pt}}@{{}}}}"
            rows.append(rf"{wide}{{\raggedright {_breakable(arm.name)}}} \\")
            above[0] = ""
        below = [_small(cell.sub) for cell in shown]
        rows += (
            [rf"{' & '.join(above)} \\[-2pt]", rf"{' & '.join(below)} \\[1pt]"]
            if any(below)
            else [rf"{' & '.join(above)} \\[1pt]"]
        )
    lines = [
        rf"  \begin{{tabular}}{{@{{}}l{align}@{{}}}}",
        r"    \toprule",
        rf"    {tops} \\",
        rf"    {units} \\",
        r"    \midrule",
        *[f"    {row}" for row in rows],
        r"    \bottomrule",
        r"  \end{tabular}",
    ]
    return "\n".join(lines)


def _long(table: Table) -> bool:
    """True if arms' names need lines of their own."""
    return any(LETTER * len(arm.name) > LONGEST_NAME for arm, _ in table.rows)


def _breakable(name: str) -> str:
    """Returns an arm's name with allowed line breaks after punctuation."""
    escaped = formats.latex(name)
    for mark in (",", "=", r"\_"):
        escaped = escaped.replace(mark, rf"{mark}\allowbreak{{}}")
    return escaped


def _small(text: str) -> str:
    return rf"{{\scriptsize {formats.latex(text)}}}" if text else ""


def _unit(column: Column) -> str:
    """Returns a column's unit: its note up to the first comma; the rest goes to the caption."""
    if column.key.startswith("retrieval"):
        return "% right"
    return "" if column.key in ("flops", "effective", "target", "seeds") else column.note.split(",")[0]


def _paper(study: Study, arm: Arm, column: Column, cell: Cell) -> Cell:
    """Returns a cell in paper style: a difference with its interval, and a star if it is significant."""
    if column.key == "difference":
        one = next((one for one in comparisons(study) if one.arm == arm.name and one.measure == "loss"), None)
        if one is None or not math.isfinite(one.difference.mean) or cell.text == formats.DASH:
            return Cell(cell.text)
        star = "*" if one.verdict == RESOLVED else ""
        places = formats.decimals(one.difference.half, most=4)
        ends = "too few seeds" if one.few else formats.interval(one.difference.low, one.difference.high, places)
        return Cell(f"{cell.text}{star}", ends or "1 seed")
    if column.key.startswith("retrieval"):
        return Cell(cell.text.removesuffix("%"), cell.sub.split("] ")[0] + "]" if "] " in cell.sub else cell.sub)
    if column.key in SPEEDS and timed_under_load(arm, SPEEDS[column.key]):
        return Cell(cell.text, "under load")
    return Cell(cell.text, cell.sub)


def caption(table: Table, columns: list[Column]) -> str:
    """Returns the caption: the measures, number of seeds, intervals and correction, and excluded runs."""
    study, keys = table.study, {column.key for column in columns}
    sentences = [f"{study.title.rstrip('.')}."]
    sentences += [_seeds(study)]
    notes = {column.key: column.note for column in columns}
    if "loss" in keys:
        sentences.append(
            f"Validation loss in {notes['loss'].split(',')[0]}, lower is better: mean over seeds with its 95% "
            "t-interval (one seed: over tokens)."
        )
    if "bits" in keys:
        sentences.append("Bits/byte: the same loss by byte of text, mean over seeds with its 95% t-interval.")
    family = max((one.family for one in comparisons(study) if one.measure == "loss"), default=0)
    if "difference" in keys and study.baseline:
        sentences.append(
            f"{formats.DELTA} baseline: difference of loss from {study.baseline}, paired by seed, with its "
            f"{confidence(study)} interval; * significant at 5% after Holm's correction over "
            f"{plural(family, 'comparison')}."
        )
    if "p" in keys:
        sentences.append(f"p: of the paired t-test, after Holm's correction over {plural(family, 'comparison')}.")
    if any(key.startswith("retrieval") for key in keys):
        sentences.append(
            "Retrieval @N: correct answers at N tokens, teacher-forced, in percent, with a 95% interval over seeds and "
            f"rows{_examples(table, columns)}."
        )
    if "effective" in keys:
        sentences.append(f"Effective length: {notes['effective']}, median over seeds.")
    if "target" in keys:
        sentences.append(f"To target: {notes['target']} over seeds.")
    if keys & {*SPEEDS, "memory", "kv", "parameters", "flops"}:
        sentences.append("Speeds, memory and sizes are medians over seeds; ranges are of the slowest and the fastest.")
    if "flops" in keys and notes["flops"]:
        sentences.append(f"FLOPs/token: {notes['flops']}.")
    if "seeds" in keys:
        sentences.append("Seeds: done / failed / diverged.")
    return " ".join([*sentences, *_shared(table, keys), *_broken(study)])


def _seeds(study: Study) -> str:
    counts = sorted({len(arm.done) for arm in study.arms if arm.done})
    if not counts:
        return "No run is finished."
    amount = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"n = {amount} {'seed' if counts == [1] else 'seeds'} per arm."


def _examples(table: Table, columns: list[Column]) -> str:
    keys = [column.key for column in table.columns]
    asked = [keys.index(column.key) for column in columns if column.key.startswith("retrieval")]
    subs = [cells[place].sub for _, cells in table.rows for place in asked]
    counts = {sub.split("n=")[1].split(",")[0] for sub in subs if "n=" in sub}
    return f" (n = {counts.pop()} answers per cell)" if len(counts) == 1 else ""


def _shared(table: Table, shown: set[str]) -> list[str]:
    """Returns the kind's columns that were left out because all arms are equal in them."""
    if table.study.columns:
        return []
    place = {column.key: index for index, column in enumerate(table.columns)}
    parts = []
    for name in kind(table.study).columns:
        if name in SAME and name not in ("seeds", "effective") and name in place and name not in shown:
            values = {cells[place[name]].text for arm, cells in table.rows if arm.done}
            if len(values) == 1:
                parts.append(f"{COLUMNS[name].meaning}: {values.pop()}")
    return [f"Equal in all arms: {'; '.join(parts)}."] if parts else []


def _broken(study: Study) -> list[str]:
    """Returns the arms with runs that failed or diverged, which are in no statistic."""
    parts = []
    for arm in study.arms:
        for status in ("failed", "diverged"):
            count = sum(run.status == status for run in arm.runs)
            if count:
                parts.append(f"{count} of {len(arm.runs)} of {arm.name} {status}")
    return [f"Runs left out: {'; '.join(parts)}."] if parts else []
