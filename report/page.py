"""The page: one HTML file that carries its charts, styles and scripts, and is forbidden to ask the network anything."""

import base64
import datetime
import functools
import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from report import export, theme, words
from report.comparable import reference_arm
from report.figures import Figure
from report.formats import slug
from report.reading import Arm, Run, Study, Sweep
from report.table import Table

HERE = Path(__file__).parent / "page_files"
NOT_IN_DIFFERENCES = ("name", "seed")


def render(sweep: Sweep, tables: list[Table], drawn: list[list[tuple[Figure, str]]]) -> str:
    """Returns index.html. Everything that comes from files goes through Jinja's escaping or JSON's."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    scripts = [_bundle(), (HERE / "page.js").read_text(encoding="utf-8")]
    studies = [
        _study(sweep, table, figures, index) for index, (table, figures) in enumerate(zip(tables, drawn, strict=True))
    ]
    specs = {item["id"]: item["spec"] for study in studies for item in study["figures"]}
    return environment.get_template("index.html.j2").render(
        sweep=sweep,
        studies=studies,
        state=words.state(sweep),
        scripts=[Markup(script) for script in scripts],
        policy=_policy(scripts),
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        data=Markup(_json({"specs": specs, "light": theme.config(), "dark": theme.config(dark=True)})),
        palette=list(zip(theme.LIGHT, theme.DARK, strict=True)),
        unfinished=[_unfinished(run) for run in sweep.runs if run.status != "done"],
        built=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


@functools.cache
def _bundle() -> str:
    return f"(function () {{\n{export.bundle()}\n}})();"


def _policy(scripts: list[str]) -> str:
    """Returns the Content-Security-Policy: these scripts and no others run, and nothing is loaded from anywhere."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(value: Any) -> str:
    """Returns JSON that can stand inside a script element: no `<` ends it, no line separator breaks it."""
    dumped = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _study(sweep: Sweep, table: Table, drawn: list[tuple[Figure, str]], index: int) -> dict[str, Any]:
    study = table.study
    name = f"s{index + 1}-{slug(study.name)}"
    first, rest = words.scalings(study)
    return {
        "id": name,
        "study": study,
        "heading": "" if sweep.single else study.title,
        "table": table,
        "preface": "One run: nothing is compared." if sweep.single else words.preface(study),
        "claims": words.arms(study),
        "scalings": first,
        "more_scalings": rest,
        "comparability": words.comparability(study),
        "arms": [_switch(arm, place) for place, arm in enumerate(study.arms)],
        "reference": getattr(reference_arm(study), "name", ""),
        "figures": [_figure(name, figure, image) for figure, image in drawn],
        "settings": settings(study),
    }


def _switch(arm: Arm, place: int) -> dict[str, Any]:
    dashes = " ".join(str(part) for part in theme.dash(place))
    colour = place % len(theme.LIGHT)
    return {"name": arm.name, "colour": colour, "dash": "" if dashes == "1 0" else dashes}


def _figure(study: str, figure: Figure, image: str) -> dict[str, Any]:
    panels = {"panelWidth": figure.panel_width, "panels": figure.panels}
    source = base64.b64encode(image.encode("utf-8")).decode()
    return {
        "id": f"{study}-{figure.key}",
        "figure": figure,
        "image": f"data:image/svg+xml;base64,{source}",
        "spec": {"spec": figure.spec, "armsLegend": figure.arms_legend, **panels},
        "files": [(name.rsplit(".", 1)[-1].upper(), quote(name)) for name in figure.files],
    }


def _unfinished(run: Run) -> dict[str, Any]:
    step = run.info.get("step")
    return {"run": run, "step": step if isinstance(step, (int, float)) else "", "error": run.error}


def settings(study: Study) -> list[tuple[str, list[str]]]:
    """Returns (field, its value in each arm) for every config field in which the arms differ."""
    flat = [_flat(arm.config or next((run.config for run in arm.runs if run.config), {})) for arm in study.arms]
    fields = list(dict.fromkeys(field for config in flat for field in config if field not in NOT_IN_DIFFERENCES))
    rows = [(field, [config.get(field, "\N{EM DASH}") for config in flat]) for field in fields]
    return [(field, values) for field, values in rows if len(set(values)) > 1]


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return found
