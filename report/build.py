"""`python -m report.build DIR`: reads a sweep or a run, writes DIR/report/ with the page, the plots and the tables.

With --live it runs beside the sweep: it rebuilds when files have changed, and the open page reloads itself. It opens no
port; Ctrl-C ends it.
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m report.build")

import csv
import hashlib
import io
import itertools
import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
from altair.utils import schemapi

from configs import cli
from configs.documents import ordinary
from configs.errors import UserError
from configs.evaluations import EVALUATIONS, Evaluation, load
from configs.folders import own
from report import live, options
from report.charts import effects, emphasis, export, ladder, selection, training
from report.charts.figures import Figure
from report.claims import comparisons
from report.claims.comparing import claims
from report.files import write
from report.options import EVERY
from report.page import html, latex, methods, table
from report.page.formats import inert, slug
from report.reading import frames
from report.reading.directories import Study, Sweep, read

SMALL = 200_000  # bytes up to which a picture in the page is always SVG
_DRAWN: dict[str, tuple[str, html.Image]] = {}  # a plot's path -> (digest of its spec, its picture)
MADE = (".bib", ".csv", ".html", ".md", ".parquet", ".pdf", ".png", ".svg", ".tex")  # suffixes of files in a report
MANIFEST = "files.json"  # the files of the last build, so that the next one can remove those it no longer writes


def build(directory: str | Path, reload: int = 0) -> Path:
    """Writes the report of a sweep directory or of a single run directory to DIR/report.

    Args:
        directory: of the sweep or run.
        reload: seconds between reloads of the page; 0: never.

    Returns:
        The path of index.html.

    Raises:
        UserError: the directory is neither a sweep nor a run, or its `report` is a symlink to elsewhere.
    """
    sweep = read(directory)
    own(Path(directory), "report")
    return write_report(sweep, Path(directory) / "report", reload)


def write_report(sweep: Sweep, out: Path, reload: int = 0) -> Path:
    """Writes the report of a sweep into a folder, created if absent; returns the path of its page."""
    out.mkdir(parents=True, exist_ok=True)
    before = _manifest(out)
    tables = [table.build(study) for study in sweep.studies]
    drawn = [_draw(study, name, out) for study, name in zip(sweep.studies, _file_names(sweep), strict=True)]
    files = [name for figures in drawn for figure, _ in figures for name in figure.files]
    files += _write_tables(tables, out) + _write_methods(sweep, out) + _write_frames(sweep, out)
    write(out / "index.html", html.render(sweep, tables, drawn, out, reload))
    files.append("index.html")
    write(out / MANIFEST, json.dumps(sorted(files), indent=1) + "\n")
    for name in set(before) - set(files):
        if (out / name).is_file():
            (out / name).unlink()
    return out / "index.html"


def _manifest(out: Path) -> list[str]:
    try:
        names = json.loads(ordinary(out / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    plain = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return [name for name in plain if Path(name).name == name and name.isprintable() and name.endswith(MADE)]


def _file_names(sweep: Sweep) -> list[str]:
    """Returns a file name prefix per study for its plots: empty for a single study, else its name, made unique."""
    if len(sweep.studies) == 1:
        return [""]
    results: list[str] = []
    for study in sweep.studies:
        name = slug(study.name)
        same = sum(one == name or one.startswith(f"{name}~") for one in results)
        results.append(f"{name}~{same + 1}" if same else name)
    return [f"{name}-" for name in results]


def figures(study: Study) -> list[Figure]:
    """Returns the study's figures in page order, without those that have no data.

    Altair would check every part of every chart against Vega-Lite's schema, which takes nearly half of their time, for
    an error that only a programmer can make. The tests check the finished specs.
    """
    with schemapi.debug_mode(False):
        return [emphasis.emphasised(figure, study) for figure in _figures(study) if figure is not None]


def _figures(study: Study) -> list[Figure | None]:
    return [
        effects.differences(study),
        *effects.against_fields(study),
        effects.chains(study),
        training.curves(study, "train_loss", "training loss", smooth=True),
        training.curves(study, "val_loss", "validation loss", smooth=False),
        *itertools.chain.from_iterable(_charts(study, evaluation) for evaluation in EVALUATIONS.values()),
        *training.sizes(study),
        selection.loss_by_value(study),
        *ladder.figures(study, claims(study).ladder),
    ]


def _charts(study: Study, evaluation: Evaluation) -> Iterator[Figure | None]:
    for name in evaluation.charts:
        result = load(name)(study)
        yield from result if isinstance(result, list) else [result]


def _draw(study: Study, prefix: str, out: Path) -> list[tuple[Figure, html.Image]]:
    """Writes the study's plots and returns each figure with its picture."""
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda figure: (figure, _write_plots(figure, prefix, out)), figures(study)))


def _write_plots(figure: Figure, prefix: str, out: Path) -> html.Image:
    """Writes a plot as SVG, PDF and PNG; returns the smaller of SVG and PNG (with a thousand lines, PNG).

    Plots already drawn by this process are not drawn again: in a live report few figures change at a time.
    """
    names = {suffix: f"{prefix}{figure.key}.{suffix}" for suffix in ("svg", "pdf", "png")}
    figure.files += names.values()
    place = str((out / names["svg"]).absolute())
    said = hashlib.sha256(json.dumps(figure.spec, sort_keys=True).encode()).hexdigest()
    known = _DRAWN.get(place)
    if known and known[0] == said and all((out / name).exists() for name in names.values()):
        return known[1]
    drawing = export.svg(figure.spec)
    pixels, vectors = export.png(drawing), drawing.encode("utf-8")
    for suffix, content in (("svg", vectors), ("pdf", export.pdf(drawing)), ("png", pixels)):
        write(out / names[suffix], content)
    many = len(vectors) > max(SMALL, len(pixels))
    image = html.Image("png", pixels) if many else html.Image("svg+xml", vectors)
    _DRAWN[place] = (said, image)
    return image


def _write_tables(tables: list[table.Table], out: Path) -> list[str]:
    rows = [row for one in tables for row in one.raw]
    write(out / "table.csv", as_csv(rows))
    write(out / "table.md", table.markdown(tables))
    write(out / "table.tex", latex.latex(tables))
    return ["table.csv", "table.md", "table.tex"]


def _write_methods(sweep: Sweep, out: Path) -> list[str]:
    made = {"methods.md": methods.markdown, "methods.tex": methods.latex, "references.bib": methods.bibtex}
    for name, make in made.items():
        write(out / name, make(sweep))
    return list(made)


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Returns rows as CSV: full precision, empty if not finite, and no cell that a spreadsheet would execute."""
    columns = list(dict.fromkeys(key for row in rows for key in row)) or ["study", "arm"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([inert(column) for column in columns])
    writer.writerows([[_csv_cell(row.get(column, "")) for column in columns] for row in rows])
    return text.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    return inert(value)


def _write_frames(sweep: Sweep, out: Path) -> list[str]:
    files = []
    made = {"comparisons": comparisons.frame, "metrics": frames.metrics, "results": frames.results, "runs": frames.runs}
    for name, frame in ((name, make(sweep)) for name, make in made.items()):
        write(out / f"{name}.csv", _inert(frame).to_csv(index=False))
        buffer = io.BytesIO()
        _typed(frame).to_parquet(buffer, index=False)
        write(out / f"{name}.parquet", buffer.getvalue())
        files += [f"{name}.csv", f"{name}.parquet"]
    return files


def _inert(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the frame without text, including headings, that a spreadsheet would execute."""
    texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    return frame.assign(**{name: frame[name].map(inert) for name in texts}).rename(columns=inert)


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the frame with one type per column, as Parquet requires: text if a column is not all numbers."""
    mixed = [name for name in frame.columns if frame[name].dtype == object]
    return frame.astype(dict.fromkeys(mixed, "string"))


def main(argv: list[str]) -> None:
    """Builds the report and prints its path."""
    args = options.build(__doc__ or "").parse_args(argv)
    if args.every is not None and not args.live:
        raise UserError("--every: needs --live")
    if args.every is not None and args.every < 1:
        raise UserError(f"--every={args.every}: must be at least 1 second")
    if args.live:
        live.follow(Path(args.directory), args.every or EVERY, build)
    else:
        print(build(args.directory))


if __name__ == "__main__":
    cli.main(main)
