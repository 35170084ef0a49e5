"""The files of a report: all there, valid, whole, escaped, and asking nothing of any network."""

import csv
import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
import zlib
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from configs.errors import UserError
from report import build as building
from report import compare, files
from report.build import as_csv, build
from report.charts import export
from report.page import formats, table
from report.reading import reproduce
from report.reading.directories import read
from tests.report import synthetic

EVIL = "<script>alert(1)</script>"
QUOTED = '"><img src=x onerror=alert(2)>'


class Page(HTMLParser):
    """Collects every element with its attributes, and the text of scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, str]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        last = self.elements[-1][0] if self.elements else ""
        if last in ("script", "style"):
            self.raw.append((last, data))
        else:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = synthetic.demo(tmp_path_factory.mktemp("demo") / "sweep")
    assert build(directory) == directory / "report" / "index.html"
    return directory


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep in which every text that a file can hold is hostile."""
    directory = tmp_path_factory.mktemp("evil")
    arms = {f"plain{QUOTED}": synthetic.config(1), f"x{EVIL}_&%$#{{}}~^\\": synthetic.config(2, kind=EVIL)}
    for name in arms:
        for seed in (0, 1):
            info = synthetic.run_json(seed, attention_kernel=EVIL, dtype=QUOTED)
            if name.startswith("x") and seed == 1:
                info |= {"status": "failed", "error": f"{EVIL}\n]]> --> {QUOTED}"}
            evals = {
                "loss": synthetic.loss_json(1.8 + 0.01 * seed, ("yarn",)),
                "retrieval": synthetic.retrieval_json(0.9),
            }
            synthetic.write_run(directory / "runs" / name / f"seed{seed}", info=info, evals=evals)
    (directory / "runs" / f"plain{QUOTED}" / "seed0" / "eval" / "memory.json").write_text(EVIL)
    study = synthetic.study_json(
        EVIL, arms, [0, 1], title=f"T{EVIL}", question=QUOTED, evals=["loss", "retrieval", "memory"]
    )
    build(synthetic.write_sweep(directory, [study], name=EVIL, title=QUOTED, file=EVIL))
    return directory


def chunks(raw: bytes) -> list[tuple[bytes, bytes]]:
    result, place = [], 8
    while place < len(raw):
        size = int.from_bytes(raw[place : place + 4], "big")
        kind, data = raw[place + 4 : place + 8], raw[place + 8 : place + 8 + size]
        assert zlib.crc32(kind + data) == int.from_bytes(raw[place + 8 + size : place + 12 + size], "big")
        result.append((kind, data))
        place += 12 + size
    return result


def test_every_figure_is_there_as_valid_svg_pdf_and_png(demo: Path) -> None:
    out = demo / "report"
    keys = [
        "heads-train-loss",
        "heads-val-loss",
        "heads-loss-by-position",
        "heads-loss-by-length",
        "heads-loss-by-scaling",
    ]
    keys += [
        "heads-attention-entropy",
        "heads-quality-train-speed",
        "heads-quality-decode-speed",
        "heads-quality-memory",
        "heads-profile",
    ]
    keys += ["recall-retrieval-by-length", "recall-retrieval-by-scaling", "recall-heat-map"]
    for key in keys:
        root = ElementTree.parse(out / f"{key}.svg").getroot()
        assert root.tag.endswith("svg") and float(root.get("width") or 0) > 200
        assert (out / f"{key}.pdf").read_bytes().startswith(b"%PDF-")
        assert b"%%EOF" in (out / f"{key}.pdf").read_bytes()[-32:]
        raw = (out / f"{key}.png").read_bytes()
        assert raw.startswith(b"\x89PNG\r\n\x1a\n")
        parts = dict(chunks(raw))
        width, height = (int.from_bytes(parts[b"IHDR"][place : place + 4], "big") for place in (0, 4))
        assert width >= 900 and len(zlib.decompress(parts[b"IDAT"])) == height * (4 * width + 1)


def test_plots_are_as_wide_as_a_paper_s_column_or_text_and_their_type_is_legible(demo: Path) -> None:
    for path in sorted((demo / "report").glob("*.svg")):
        root = ElementTree.parse(path).getroot()
        width, unscaled = float(root.get("width") or 0), float((root.get("viewBox") or "").split()[2])
        panels = path.stem.endswith(("by-scaling", "heat-map", "attention-entropy", "profile"))
        assert width == pytest.approx(3.25 * 96, abs=1) or (panels and width <= 6.75 * 96), (path.name, width)
        sizes = [float(one) for one in re.findall(r'font-size="([\d.]+)px"', path.read_text())]
        smallest = min(sizes) * width / unscaled * 72 / 96
        assert smallest >= (6.5 if "heat-map" in path.stem else 7), (path.name, smallest)
        box = re.search(rb"/MediaBox \[0 0 ([\d.]+) ", path.with_suffix(".pdf").read_bytes())
        assert box and float(box.group(1)) == pytest.approx(width * 72 / 96, abs=1), "the PDF is of the same size"


def test_a_drawing_wider_than_the_text_is_shrunk_as_a_whole() -> None:
    wide = '<svg class="marks" width="1296" height="100" viewBox="0 0 1296 100"></svg>'
    assert export._narrowed(wide) == '<svg class="marks" width="648" height="50" viewBox="0 0 1296 100"></svg>'
    assert export._narrowed(wide.replace("1296", "640")) == wide.replace("1296", "640")


def test_compressing_a_png_again_keeps_every_pixel() -> None:
    import vl_convert

    drawn = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="30"><circle cx="9" cy="9" r="7" fill="red"/></svg>'
    )
    raw = bytes(vl_convert.svg_to_png(drawn))
    before, after = dict(chunks(raw)), dict(chunks(export.packed(raw)))
    assert zlib.decompress(before.pop(b"IDAT")) == zlib.decompress(after.pop(b"IDAT"))
    assert before == after


def test_the_heat_map_spans_zero_to_one_and_deepens_downwards(demo: Path) -> None:
    figure = next(one for one in building.figures(read(demo).studies[1]) if one.key == "heat-map")
    inner = figure.spec["spec"]["layer"]
    assert inner[0]["encoding"]["color"]["scale"]["domain"] == [0, 1]
    assert inner[0]["encoding"]["y"]["sort"] == ["10%", "30%", "50%", "70%", "90%"]
    cells = {(row["panel"], row["column"], row["row"]): row for row in figure.spec["datasets"]["cells"]}
    cell = cells["recall, linear", "504 (8×)", "50%"]
    assert cell["count"] == "n=192" and cell["value"] == pytest.approx(cell["correct"] / 192, rel=1e-5)


def test_every_head_has_a_cell_and_dead_ones_a_cross(demo: Path) -> None:
    figure = next(one for one in building.figures(read(demo).studies[0]) if one.key == "attention-entropy")
    rows = figure.spec["datasets"]["heads"]
    assert sorted({row["panel"] for row in rows}) == ["h1", "h2", "h4", "h8"] and len(rows) == 2 * (1 + 2 + 4 + 8)
    assert [row["why"] for row in rows].count("uniform") == 4 and "cross" in figure.caption
    written = json.loads((demo / "runs/h4/seed0/eval/heads.json").read_text())["heads"]
    drawn = [row["value"] for row in rows if row["panel"] == "h4"]
    assert drawn == pytest.approx([one["entropy_share"] for one in written], rel=1e-5), (
        "of one seed: heads of two are others"
    )
    table = {row["arm"]: row for row in csv.DictReader((demo / "report" / "table.csv").read_text().splitlines())}
    assert float(table["h4"]["heads_dead"]) == 1 and float(table["h4"]["heads_apart"]) == pytest.approx(0.2)
    assert table["recall"]["heads_dead"] == ""


def test_the_bars_of_a_profile_are_whole_and_say_what_binds_each_arm(demo: Path) -> None:
    figure = next(one for one in building.figures(read(demo).studies[0]) if one.key == "profile")
    rows = figure.spec["datasets"]["profile"]
    bars = {(row["arm"], row["program"]) for row in rows}
    assert bars == {(arm, program) for arm in ("h1", "h2", "h4", "h8") for program in ("train", "decode")}
    for arm, program in bars:
        pieces = [row for row in rows if (row["arm"], row["program"]) == (arm, program)]
        assert sum(row["share"] for row in pieces) == pytest.approx(1, abs=1e-5)
        assert pieces[0]["start"] == 0 and pieces[-1]["end"] == pytest.approx(1, abs=1e-5)
        for before, after in itertools.pairwise(pieces):
            assert after["start"] == pytest.approx(before["end"], abs=1e-5)
    mlp = next(row for row in rows if (row["arm"], row["program"], row["label"]) == ("h8", "train", "mlp"))
    assert mlp["share"] == pytest.approx(0.45) and mlp["forward"] == mlp["backward"] == pytest.approx(0.225)
    assert "Most of train: MLP (h1 30%, h2 35%, h4 40%, h8 45%)." in figure.caption
    assert "KV read and write (h1 62%, h2 50%, h4 38%)" in figure.caption and "Means over seeds" in figure.caption


def test_the_tables_hold_what_was_measured(demo: Path) -> None:
    rows = {row["arm"]: row for row in csv.DictReader((demo / "report" / "table.csv").read_text().splitlines())}
    measured = [json.loads((demo / f"runs/h1/seed{seed}/eval/loss.json").read_text())["loss"] for seed in range(3)]
    assert float(rows["h1"]["loss"]) == pytest.approx(sum(measured) / 3, abs=1e-12)
    assert (rows["h1"]["seeds_done"], rows["h1"]["attention_kernel"], rows["h1"]["kv_bytes_per_token"]) == (
        "3",
        "blocked",
        "1024.0",
    )
    correct = [
        one["correct"]
        for seed in range(3)
        for one in json.loads((demo / f"runs/recall/seed{seed}/eval/retrieval.json").read_text())["by_length"]
        if one["length"] == 504 and one["scaling"] == "trained"
    ]
    assert float(rows["recall"]["retrieval_504"]) == pytest.approx(sum(correct) / 960)
    assert rows["h1"]["retrieval_504"] == ""
    text = (demo / "report" / "table.md").read_text()
    assert re.search(r"^\| h1 \| 1\.798 ", text, re.M) and text.count("\n## ") + text.startswith("## ") == 2


def test_the_tidy_frames_hold_every_line_and_every_number(demo: Path) -> None:
    metrics = pd.read_parquet(demo / "report" / "metrics.parquet")
    assert len(metrics) == 15 * 100 and set(metrics["arm"]) == {"h1", "h2", "h4", "h8", "recall"}
    results = pd.read_parquet(demo / "report" / "results.parquet")
    one = results.query(
        "arm == 'h2' and seed == 1 and measure == 'loss_by_length' and multiple == 8 and scaling == 'yarn'"
    )
    stored = json.loads((demo / "runs/h2/seed1/eval/loss.json").read_text())["by_length"]
    entry = next(raw for raw in stored if (raw["multiple"], raw["scaling"]) == (8, "yarn"))
    assert one["value"].item() == entry["loss"]
    assert [one["low"].item(), one["high"].item()] == entry["interval"]
    assert len(pd.read_csv(demo / "report" / "results.csv")) == len(results)


@pytest.mark.parametrize("name", ["demo", "evil"])
def test_the_page_loads_nothing_and_forbids_it(name: str, request: pytest.FixtureRequest) -> None:
    page = Page(request.getfixturevalue(name) / "report" / "index.html")
    for tag, attributes in page.elements:
        for key, value in attributes.items():
            assert not key.startswith("on"), (tag, key)
            if key in ("src", "srcset", "data", "poster", "action", "xlink:href", "background") or (key, tag) == (
                "href",
                "link",
            ):
                assert (value or "").startswith("data:"), (tag, key, value)
            elif key == "href":
                assert not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//", value or ""), value
    styles = "".join(text for kind, text in page.raw if kind == "style")
    assert "url(" not in styles and "@import" not in styles
    policy = next(
        meta["content"] or "" for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ") and "http" not in policy and "unsafe-eval" not in policy
    assert "connect-src" not in policy and "'unsafe-inline'" not in policy.split("style-src")[0]


def test_hostile_text_is_shown_as_text(evil: Path) -> None:
    page = Page(evil / "report" / "index.html")
    assert [one.get("type") for one in page.all("script")] == ["application/json", None, None, None]
    assert len(page.all("img")) == len(page.all("figure")) > 3
    assert f"T{EVIL}" in page.text and QUOTED in page.text and f"{EVIL}\n]]> --> {QUOTED}" in page.text
    source = (evil / "report" / "index.html").read_text().split('id="data">')[1].split("</script>")[0]
    assert "<" not in source and "alert(1)" in source
    data = json.loads("".join(text for kind, text in page.raw if kind == "script" and text.startswith('{"specs"')))
    arms = {row["arm"] for spec in data["specs"].values() for row in spec["spec"]["datasets"].get("rows", [])}
    assert f"plain{QUOTED}" in arms
    for drawing in (evil / "report").glob("*.svg"):
        tags = {element.tag.rsplit("}", 1)[-1] for element in ElementTree.parse(drawing).iter()}
        assert not tags & {"script", "image", "foreignObject", "img"}, drawing


def test_latex_escapes_what_is_special(evil: Path) -> None:
    text = (evil / "report" / "table.tex").read_text()
    assert r"\_\&\%\$\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}" in text
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    columns = len(re.search(r"tabular\}\{@\{\}(\w+)@\{\}", text).group(1))  # type: ignore[union-attr]
    for row in body.strip().splitlines():
        assert not re.search(r"(?<!\\)[%#_]", row)
        if r"\multicolumn" in row:  # a long name, on a line of its own
            assert row.endswith(r"} \\") and not re.search(r"(?<!\\)&", row)
            continue
        assert re.search(r" \\\\\[-?\dpt\]$", row) and len(re.findall(r"(?<!\\)&", row)) == columns - 1
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert text.count(rule) == 1
    assert formats.latex("[x]") == "{[}x{]}", (
        "a row must not begin with a bracket: it would be the line break's argument"
    )


def test_markdown_cells_cannot_break_out(evil: Path) -> None:
    text = (evil / "report" / "table.md").read_text()
    assert "<script" not in text and "<img" not in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert formats.markdown("a|b\n*c*") == r"a\|b \*c\*"


def test_csv_holds_no_formula_and_no_nan() -> None:
    text = as_csv([{"arm": "=1+1", "loss": math.nan, "n": 3}, {"arm": "-x,y", "loss": 0.1 + 0.2, "n": 4}])
    assert text == "arm,loss,n\n'=1+1,,3\n\"'-x,y\",0.30000000000000004,4\n"


FORMULAS = ['=HYPERLINK("http://x","y")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1"]


@pytest.mark.parametrize("formula", FORMULAS)
def test_no_csv_of_a_report_holds_a_formula(tmp_path: Path, formula: str) -> None:
    arms = {formula: synthetic.config(1, kind=formula), "-0.5": synthetic.config(2)}
    for index, name in enumerate(arms):
        info = synthetic.run_json(0, attention_kernel=formula, error=formula, git_commit="-f", devices=5)
        directory = tmp_path / "runs" / name.replace("/", "_") / "seed0"
        synthetic.write_run(directory, info=info, evals={"loss": synthetic.loss_json(1.8 + index)})
    study = synthetic.study_json(formula, arms, [0], evals=["loss"])
    out = build(synthetic.write_sweep(tmp_path, [study], name=formula, title=formula, file=formula)).parent
    read_back = {}
    for name in ("table", "runs", "results", "metrics"):
        with (out / f"{name}.csv").open(newline="") as file:
            rows = list(csv.reader(file))
        cells = [cell for row in rows for cell in row]
        bad = [
            cell for cell in cells if cell.startswith(formats.FORMULA) and not re.fullmatch(r"-?[\d.]+(e-?\d+)?", cell)
        ]
        assert not bad, name
        read_back[name] = cells
    if (tmp_path / "runs" / formula).exists():  # a name that can be a folder's
        assert "'" + formula.replace("\r", "\n") in read_back["runs"] and "-0.5" in read_back["runs"]
    assert "git checkout" not in (out / "index.html").read_text()


def test_a_commit_that_is_none_is_no_option_of_git(tmp_path: Path) -> None:
    for commit, there in (("-f", False), ("--orphan=x", False), ("0123456789abcdef", True), ("HEAD; rm", False)):
        folder = tmp_path / str(len(commit))
        run = synthetic.write_run(folder, info=synthetic.run_json(0, git_commit=commit), evals={})
        sweep = read(run)
        lines = reproduce.commands(sweep, sweep.studies[0].arms[0].runs[0], [])
        assert (f"git checkout {commit}" in lines) is there


@pytest.mark.parametrize("devices", [5, "cpu", [], [None], [7], {"0": 1}, None, [{"kind": ["x"]}]])
def test_devices_that_are_none_are_left_out(tmp_path: Path, devices: object) -> None:
    run = synthetic.write_run(tmp_path / "mine", info=synthetic.run_json(0, devices=devices), evals={})
    assert build(run).exists()


@pytest.mark.parametrize("name", ["nul\0.svg", "../victim.svg", ".", "..", "", "mine.txt", "folder.svg", "[" * 99999])
def test_what_the_last_build_is_said_to_have_written_is_not_believed(tmp_path: Path, name: str) -> None:
    run = synthetic.write_run(tmp_path / "mine", info=synthetic.run_json(0), evals={})
    out = build(run).parent
    (run / "victim.svg").write_text("kept")
    (out / "mine.txt").write_text("kept")
    (out / "folder.svg").mkdir()
    (out / "old.svg").write_text("")
    (out / "files.json").write_text(name if name.startswith("[") else json.dumps([name, "old.svg"]))
    build(run)
    assert (run / "victim.svg").exists() and (out / "mine.txt").exists() and (out / "folder.svg").is_dir()
    assert (out / "old.svg").exists() is name.startswith("[")


def test_a_report_is_not_written_through_a_link(tmp_path: Path) -> None:
    run = synthetic.write_run(tmp_path / "mine", info=synthetic.run_json(0), evals={})
    (tmp_path / "outside").mkdir()
    (run / "report").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="report: is a symlink to"):
        build(run)
    assert not list((tmp_path / "outside").iterdir())


def test_a_comparison_printed_steers_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steering = "\x1b[31m\u202egpj"
    for name in ("a", "b"):
        study = synthetic.study_json("s", {name: synthetic.config(1)}, [0], title=steering, question=steering)
        synthetic.write_run(
            tmp_path / name / "runs" / name / "seed0", info=synthetic.run_json(0, dtype=steering), evals={}
        )
        synthetic.write_sweep(tmp_path / name, [study], name=steering, title=steering)
    compare.main([str(tmp_path / "a"), str(tmp_path / "b")])
    shown = capsys.readouterr().out
    assert not {"\x1b", "\u202e"} & set(shown) and r"\u202egpj" in shown


def test_runs_that_are_not_done_are_listed_with_their_error(evil: Path) -> None:
    page = Page(evil / "report" / "index.html")
    listed = page.text.split("Runs that are not done")[1]
    assert "failed" in listed and "alert(1)" in listed
    assert "seed0/eval/memory.json: line 1 column 1: Expecting value" in page.text


@pytest.mark.parametrize(
    "studies",
    [[], [synthetic.study_json("s", {}, [0])], [synthetic.study_json("s", {"a": {"model": {"num_heads": 1}}}, [])]],
)
def test_an_empty_sweep_gives_a_page_that_says_so(tmp_path: Path, studies: list[dict]) -> None:
    path = build(synthetic.write_sweep(tmp_path, studies))
    assert "This sweep is empty" in Page(path).text
    assert sorted(one.name for one in path.parent.glob("table.*")) == ["table.csv", "table.md", "table.tex"]


def test_a_sweep_that_has_not_begun_lists_its_runs_as_waiting(tmp_path: Path) -> None:
    path = build(synthetic.write_sweep(tmp_path, [synthetic.study_json("s", {"a": synthetic.config()}, [0, 1])]))
    text = Page(path).text
    assert "2 runs: 2 waiting" in text and "a: no finished run (waiting)" in text


def test_one_run_alone_has_a_report(tmp_path: Path) -> None:
    evals = {"loss": synthetic.loss_json(1.7, ("yarn",)), "throughput": synthetic.throughput_json()}
    run = synthetic.write_run(tmp_path / "mine", info=synthetic.run_json(7), evals=evals)
    path = build(run)
    text = Page(path).text
    assert "One run: nothing is compared." in text and "1.700" in text and "tokens only" in text
    assert (run / "report" / "train-loss.pdf").exists()
    assert next(csv.DictReader((run / "report" / "table.csv").read_text().splitlines()))["arm"] == "mine"


def test_building_again_replaces_and_takes_away_what_is_no_longer_drawn(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.81], "h4": [1.5, 1.52]})
    out = build(directory).parent
    (out / "mine.txt").write_text("kept")
    assert (out / "loss-by-position.png").exists()
    for path in directory.glob("runs/*/*/eval/loss.json"):
        path.unlink()
    build(directory)
    left = {path.name for path in out.iterdir()}
    assert "loss-by-position.png" not in left and {"mine.txt", "train-loss.png"} <= left
    assert not [name for name in left if name.startswith(".")]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    files.write(path, "old")
    synced: list[int] = []
    monkeypatch.setattr(files.os, "fsync", synced.append)

    def refuse(source: str, target: Path) -> None:
        assert Path(source).read_text() == "new" and len(synced) == 1
        raise OSError("no space")

    monkeypatch.setattr(files.os, "replace", refuse)
    with pytest.raises(OSError, match="no space"):
        files.write(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["page.html"]


def test_the_command_prints_the_page_and_refuses_what_is_no_sweep(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path / "sweep", {"h1": [1.8]})
    call = [sys.executable, "-m", "report.build"]
    done = subprocess.run([*call, str(directory)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(directory / "report" / "index.html") and done.stderr == ""
    wrong = subprocess.run([*call, str(tmp_path / "none")], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr == f"error: {tmp_path / 'none'}: no such directory\n"


def test_building_imports_no_jax(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.9]})
    code = (
        f"import sys; from report.build import build; build({str(directory)!r}); "
        "loaded = {name.split('.')[0] for name in sys.modules}; "
        "print(sorted(loaded & {'jax', 'jaxlib', 'flax', 'optax', 'orbax', 'tensorflow', 'models', 'training'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_hundred_runs_build_in_reasonable_time(tmp_path: Path) -> None:
    values = {f"arm{index}": [1.7 + 0.001 * index + 0.01 * seed for seed in range(4)] for index in range(25)}
    directory = synthetic.losses(tmp_path, values)
    build(directory)  # the second build leaves out what is done once a process
    begun = time.process_time()
    path = build(directory)
    assert time.process_time() - begun < 30
    assert path.stat().st_size < 8 << 20
    assert len(table.build(read(directory).studies[0]).rows) == 25


def test_the_script_of_charts_is_made_once_and_only_read_where_nobody_else_can_write(tmp_path, monkeypatch) -> None:
    made = []
    monkeypatch.setattr(export, "_bundled", lambda: made.append(1) or f"let number = {len(made)};")
    monkeypatch.setenv("ABLAX_CACHE", str(tmp_path / "cache"))
    first = export.bundle()
    assert first == export.bundle() == "let number = 1;"
    (kept,) = (tmp_path / "cache" / "scripts").iterdir()
    assert kept.parent.stat().st_mode & 0o077 == 0
    whole = kept.read_bytes()
    for damage in (whole[:-1], whole.replace(b"number", b"Number"), b""):
        kept.write_bytes(damage)
        assert export.bundle() == f"let number = {len(made)};" and kept.read_bytes() != damage
    assert len(made) == 4
    kept.parent.chmod(0o777)
    assert export.bundle() == "let number = 5;" and export.bundle() == "let number = 6;"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ABLAX_CACHE", str(tmp_path / "file"))
    assert export.bundle() == "let number = 7;"
