"""The page: one HTML file that contains its charts, styles and scripts, and must not access the network."""

import base64
import datetime
import functools
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from report.charts import emphasis, export, theme
from report.charts.figures import Figure, loggable
from report.claims import comparable, verdict, words
from report.claims.comparable import reference_arm
from report.claims.comparing import claims, shown
from report.claims.ladder import sentences
from report.page import methods
from report.page.formats import slug
from report.page.table import Table
from report.reading import reproduce
from report.reading.directories import Run, Study, Sweep
from report.reading.settings import Settings, settings

HERE = Path(__file__).parent / "files"
PREVIEW = 12  # up to this many arms' settings are shown side by side; with more, only the comparison of two


@dataclass(frozen=True)
class Image:
    """A picture in the page: `kind` is the subtype of its media type, image/kind."""

    kind: str
    content: bytes


Drawn = list[tuple[Figure, Image]]


def render(sweep: Sweep, tables: list[Table], drawn: list[Drawn], out: Path, reload: int = 0) -> str:
    """Returns index.html. All content from files is escaped by Jinja or as JSON.

    Args:
        tables: one per study.
        drawn: each study's figures with a picture of each, for paper and for readers without scripts.
        out: the page's folder, from which it links to the runs' files.
        reload: seconds between reloads of the page; 0: never.
    """
    scripts = [_bundle(), *((HERE / name).read_text(encoding="utf-8") for name in ("charts.js", "page.js"))]
    studies = [
        _study(sweep, table, figures, index, out)
        for index, (table, figures) in enumerate(zip(tables, drawn, strict=True))
    ]
    specs = {item["id"]: item["spec"] for study in studies for item in study["figures"]}
    colours = {"light": theme.config(), "dark": theme.config(dark=True)}
    facts = {study["id"]: study["facts"] for study in studies}
    return (
        _environment()
        .get_template("index.html.j2")
        .render(
            sweep=sweep,
            shown=shown,
            studies=studies,
            state=words.state(sweep),
            scripts=[Markup(script) for script in scripts],
            policy=_policy(scripts),
            style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
            data=Markup(_json({"specs": specs, "studies": facts, "reload": reload, **colours})),
            reload=reload,
            whole=reproduce.whole(sweep),
            palette=list(zip(theme.LIGHT, theme.DARK, strict=True)),
            unfinished=[_unfinished(run) for run in sweep.runs if run.status != "done"],
            built=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
    )


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )


@functools.cache
def _bundle() -> str:
    return f"(function () {{\n{export.bundle()}\n}})();"


def _policy(scripts: list[str]) -> str:
    """Returns the Content-Security-Policy: only these scripts run, and nothing is loaded from anywhere."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(value: Any) -> str:
    """Returns JSON for use inside a script element: no `<` ends it, no line separator breaks it."""
    dumped = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _study(sweep: Sweep, table: Table, drawn: Drawn, index: int, out: Path) -> dict[str, Any]:
    study = table.study
    name = f"s{index + 1}-{slug(study.name)}"
    first, rest = words.scalings(study)
    fields = settings(study)
    runs = [
        {"label": f"{arm.name}, seed {run.seed}", "lines": reproduce.commands(sweep, run, study.evals)}
        for arm in reproduce.all_arms(study)
        for run in arm.runs
        if run.info
    ]
    return {
        "id": name,
        "study": study,
        "heading": "" if sweep.single else study.title,
        "table": table,
        "preface": "One run: nothing is compared." if sweep.single else words.preface(study),
        "headline": verdict.headline(study),
        "groups": verdict.groups(study),
        "broken": [(one, _logs(one, out)) for one in verdict.broken(study)],
        "scalings": first,
        "more_scalings": rest,
        "differing": comparable.differing(study),
        "ladder": [] if (climbed := claims(study).ladder) is None else sentences(climbed),
        "arms": _switches(study),
        "methods": [(heading, methods.plain(said)) for heading, said in methods.paragraphs(study)],
        "reference": getattr(reference_arm(study), "name", ""),
        "figures": [_figure(name, figure, image) for figure, image in drawn],
        "settings": fields.differing if len(study.arms) <= PREVIEW else [],
        "fields": len(fields.differing),
        "sources": reproduce.sources(table),
        "commands": runs,
        "runs": reproduce.listed(study, out),
        "facts": {"settings": _settings(study, fields), "runs": runs},
    }


def _logs(result: verdict.Broken, out: Path) -> list[tuple[str, str]]:
    """Returns (path, address from the page) of each run's log, or of its folder if it has none."""
    paths = [next((p for p in (run.directory / "log.txt",) if p.is_file()), run.directory) for run in result.runs]
    names = [
        f"{run.directory.name}/{path.name}" if path != run.directory else path.name
        for run, path in zip(result.runs, paths, strict=True)
    ]
    return [(name, quote(Path(os.path.relpath(path, out)).as_posix())) for name, path in zip(names, paths, strict=True)]


def _settings(study: Study, fields: Settings) -> dict[str, Any]:
    values = {arm.name: [row[place] for _, row in fields.differing] for place, arm in enumerate(study.arms)}
    return {"fields": [field for field, _ in fields.differing], "values": values, "shared": fields.shared}


def _switches(study: Study) -> list[dict[str, Any]]:
    """Returns each arm's name with the colour and dash of its line; grey arms have neither."""
    places = {name: place for place, name in enumerate(emphasis.chosen(study))}
    return [_switch(arm.name, places.get(arm.name)) for arm in study.arms]


def _switch(name: str, place: int | None) -> dict[str, Any]:
    if place is None:
        return {"name": name, "colour": emphasis.GREY, "dash": ""}
    dashes = " ".join(str(part) for part in theme.dash(place))
    return {"name": name, "colour": f"var(--arm{place % len(theme.LIGHT)})", "dash": "" if dashes == "1 0" else dashes}


def _figure(study: str, figure: Figure, image: Image) -> dict[str, Any]:
    spec = figure.spec
    if figure.lines is not None:  # the page makes these two from the lines
        spec = spec | {"datasets": spec["datasets"] | {"seeds": [], "means": []}}
    item = {"spec": spec, "armsLegend": figure.arms_legend, "lines": figure.lines}
    return {
        "id": f"{study}-{figure.key}",
        "figure": figure,
        "image": f"data:image/{image.kind};base64,{base64.b64encode(image.content).decode()}",
        "spec": item | {"panelWidth": figure.panel_width, "panels": figure.panels},
        "log": loggable(figure.spec),
        "files": [(name.rsplit(".", 1)[-1].upper(), quote(name)) for name in figure.files],
    }


def _unfinished(run: Run) -> dict[str, Any]:
    step = run.info.get("step")
    return {"run": run, "step": step if isinstance(step, (int, float)) else "", "error": run.error}
