"""Text of exported figures, as Chromium sets it: all of it inside the canvas, and none over another."""

import html
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import report
from report.build import figures
from report.charts import effects, export, theme
from report.claims.comparing import comparisons
from report.reading.directories import read
from tests.report import synthetic
from tests.report.test_browser import CHROMIUM, QUIET

MEASURE = """
const found = [];
for (const svg of document.querySelectorAll("svg.marks")) {
  const frame = svg.getBoundingClientRect();
  const texts = Array.from(svg.querySelectorAll("text")).filter((one) => one.textContent.trim());
  const boxes = texts.map((one) => one.getBoundingClientRect());
  boxes.forEach((box, index) => {
    const [wide, high] = [box.left < frame.left - 1 || box.right > frame.right + 1, box.bottom > frame.bottom + 1];
    if (wide || high || box.top < frame.top - 1)
      found.push([svg.parentElement.id, "outside", texts[index].textContent]);
    boxes.slice(index + 1).forEach((other, further) => {
      const [across, down] = [Math.min(box.right, other.right) - Math.max(box.left, other.left),
        Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top)];
      const both = texts[index].textContent + " | " + texts[index + 1 + further].textContent;
      if (across > 2 && down > 3) found.push([svg.parentElement.id, "over", both]);
    });
  });
}
document.body.dataset.outcome = JSON.stringify(found);
"""


def faults(drawn: dict[str, str], folder: Path) -> list[list[str]]:
    """Returns [figure, "outside" or "over", text] for each text that is not where it should be."""
    page = folder / "figures.html"
    body = "".join(f'<div id="{key}">{svg}</div>' for key, svg in drawn.items())
    page.write_text(f"<!doctype html><meta charset=utf-8><body>{body}<script>{MEASURE}</script></body>")
    call = [CHROMIUM or "", *QUIET.split(), f"--user-data-dir={folder / 'profile'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=True)
    result = re.search(r'data-outcome="([^"]*)"', done.stdout)
    assert result, done.stderr
    return list(json.loads(html.unescape(result.group(1))))


def two_axes(directory: Path, seeds: int = 5) -> Path:
    """Writes 12 arms with long names over two fields, of which one failed in all seeds and one diverged."""
    arms = {}
    for heads in (1, 2, 4, 8):
        for kind in ("rope", "nope", "alibi"):
            arms[f"num_heads={heads},position.kind={kind}"] = synthetic.config(heads, kind=kind)
    for index, (name, config) in enumerate(arms.items()):
        for seed in range(seeds):
            value = 1.74 + 0.012 * (index % 3) + 0.004 * (index // 3) + 0.003 * ((7 * index + 3 * seed) % 5)
            info = synthetic.run_json(seed, parameters={"total": 139584 + 8192 * (index // 3)})
            if index in (7, 10):
                info |= {"status": "failed" if index == 7 else "diverged", "error": "loss is nan at step 170"}
            evals = {
                "loss": synthetic.loss_json(value, ("yarn",)),
                "throughput": synthetic.throughput_json(31000 - 900 * index, 950 - 31 * (index % 5)),
                "memory": synthetic.memory_json((44 + 2 * index) << 20),
                "retrieval": synthetic.retrieval_json(1.0 - 0.004 * seed),
            }
            run = directory / "runs" / name / f"seed{seed}"
            lines = synthetic.metrics(value, seed, lines=20)
            synthetic.write_run(run, info=info, configuration=config | {"seed": seed}, lines=lines, evals=evals)
    study = synthetic.study_json("grid", arms, list(range(seeds)), title="Heads and positions", care=0.01)
    for arm in study["arms"]:
        arm["overrides"]["model.position.kind"] = arm["config"]["model"]["position"]["kind"]
    return synthetic.write_sweep(directory, [study | {"evals": ["loss", "throughput", "memory", "retrieval"]}])


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian: apt-get install chromium)")
def test_all_text_of_exported_figures_is_inside_and_apart(tmp_path: Path) -> None:
    (study,) = read(two_axes(tmp_path / "sweep", 3)).studies
    drawn = {figure.key: export.svg(figure.spec) for figure in figures(study)}
    assert {"differences", "against-field", "against-fields"} < set(drawn)
    assert faults(drawn, tmp_path) == []
    # The control: a legend of four columns does not fit these names, and a text moved onto another is seen.
    wide = drawn["train-loss"].replace('width="312"', 'width="250"', 1)
    cut = wide.replace('viewBox="0 0 312', 'viewBox="0 0 250')
    assert any(kind == "outside" for _, kind, _ in faults({"cut": cut}, tmp_path))


def test_arms_without_results_are_in_no_legend_and_pairs_of_colour_and_marker_differ(tmp_path: Path) -> None:
    (study,) = read(two_axes(tmp_path / "sweep", 2)).studies
    for figure in figures(study):
        if figure.key in ("train-loss", "val-loss") or figure.key.startswith("quality"):
            drawn = export.svg(figure.spec)
            assert "num_heads=1,position.kind=rope" in drawn, figure.key
            assert "num_heads=4,position.kind=nope" not in re.sub(r"<path[^>]*>", "", drawn), figure.key
    pairs = {(index % len(theme.LIGHT), theme.marker(index)) for index in range(24)}
    assert len(pairs) == 24


def test_the_forest_plot_holds_what_the_comparisons_say(tmp_path: Path) -> None:
    directory = two_axes(tmp_path / "sweep")
    (study,) = read(directory).studies
    figure = effects.differences(study)
    assert figure is not None
    rows = {row["arm"]: row for row in figure.spec["datasets"]["rows"]}
    assert list(rows) == sorted(rows, key=lambda name: rows[name]["mean"]) and len(rows) == 9
    frame = report.load(directory, "comparisons").query("measure == 'loss'").set_index("arm")
    assert len(frame) == 11
    for one in comparisons(study):
        if one.measure == "loss" and one.arm in rows:
            assert rows[one.arm]["low"] == pytest.approx(one.difference.low, rel=1e-4)
            assert frame.loc[one.arm, "p_holm"] == one.p_holm and frame.loc[one.arm, "verdict"] == one.verdict
    dots = [row["difference"] for row in figure.spec["datasets"]["dots"] if row["arm"] == next(iter(rows))]
    assert sum(dots) / 5 == pytest.approx(next(iter(rows.values()))["mean"], rel=1e-3)


def test_the_measure_stands_against_the_fields_that_the_study_varies(tmp_path: Path) -> None:
    (study,) = read(two_axes(tmp_path / "sweep", 2)).studies
    assert effects.axes(study) == ["model.num_heads", "model.position.kind"]
    lines, cells = effects.against_fields(study)
    x = next(layer["encoding"]["x"] for layer in lines.spec["layer"])
    assert x["type"] == "quantitative" and x["scale"]["type"] == "log" and x["axis"]["values"] == [1, 2, 4, 8]
    assert all(row["below"].endswith("n=2") for row in cells.spec["datasets"]["cells"])


PDFTOTEXT = shutil.which("pdftotext")
WORD = re.compile(r'<word xMin="([-\d.]+)" yMin="([-\d.]+)" xMax="([-\d.]+)" yMax="([-\d.]+)">(.*?)</word>')


def beyond(pdf: bytes, folder: Path) -> tuple[list[str], str]:
    """Returns the words of a PDF's page that are not inside it, and all of its letters."""
    (folder / "figure.pdf").write_bytes(pdf)
    call = [PDFTOTEXT or "", "-bbox", str(folder / "figure.pdf"), "-"]
    text = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    size = re.search(r'<page width="([\d.]+)" height="([\d.]+)">', text)
    assert size
    wide, high = map(float, size.groups())
    outside, letters = [], ""
    for *ends, raw in WORD.findall(text):
        left, top, right, bottom = map(float, ends)
        letters += html.unescape(raw)
        if left < -1 or top < -1 or right > wide + 1 or bottom > high + 1:
            outside.append(html.unescape(raw))
    return outside, letters


def missing(svg: str, folder: Path) -> list[str]:
    """Returns the words of a figure's PDF that leave its page, and the labels of the SVG that are not whole in it."""
    outside, letters = beyond(export.pdf(svg), folder)
    labels = [html.unescape(one).replace(" ", "") for one in re.findall(r"<text[^>]*>([^<]+)</text>", svg)]
    return outside + [label for label in labels if len(label) > 2 and label not in letters]


def inked(png: bytes) -> bool:
    """True where a pixel of the picture's frame, two pixels wide, is not white."""
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("L"))
    frame = [pixels[:2].ravel(), pixels[-2:].ravel(), pixels[:, :2].ravel(), pixels[:, -2:].ravel()]
    return bool((np.concatenate(frame) < 250).any())


@pytest.mark.slow
@pytest.mark.skipif(PDFTOTEXT is None, reason="no pdftotext (Debian: apt-get install poppler-utils)")
def test_pdf_and_png_hold_all_text_of_the_svg(tmp_path: Path) -> None:
    (study,) = read(two_axes(tmp_path / "sweep", 2)).studies
    drawn = {figure.key: export.svg(figure.spec) for figure in figures(study)}
    for key, svg in drawn.items():
        assert missing(svg, tmp_path) == [], key
        assert not inked(export.png(svg)), key
    # The control: a figure whose canvas ends before its text is seen in both.
    wide = drawn["train-loss"].replace('width="312"', 'width="250"', 1)
    cut = wide.replace('viewBox="0 0 312', 'viewBox="0 0 250')
    assert cut != drawn["train-loss"] and inked(export.png(cut))
    assert missing(cut, tmp_path)
