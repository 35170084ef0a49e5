"""A live report: built when files change, ended when runs have ended, and its page reads itself again until then."""

import json
from pathlib import Path

import pytest

from report.build import build
from report.live import follow
from report.reading.directories import read
from tests.report import synthetic


def state(directory: Path, run: str, **changes: object) -> None:
    path = directory / "runs" / run / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_it_builds_when_files_change_and_ends_with_the_last_evaluation(tmp_path: Path, capsys) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8], "h4": [1.7]})
    state(directory, "h1/seed0", status="running")
    evaluation = directory / "runs/h4/seed0/eval/loss.json"
    kept = evaluation.read_text()
    evaluation.unlink()
    built: list[int] = []
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            state(directory, "h1/seed0", status="diverged", error="at step 3")
        if len(looks) == 4:
            evaluation.write_text(kept)

    def write(path: Path, reload: int) -> Path:
        built.append(reload)
        return path / "page"

    assert follow(directory, 7, write, wait) == directory / "page"
    assert built == [7, 7, 0] and looks == [7] * 4
    assert capsys.readouterr().out.count("\n") == 3


def test_an_interrupted_one_leaves_a_page_that_stays_as_it_is(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8]})
    state(directory, "h1/seed0", status="running")
    built: list[int] = []

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(directory, 5, lambda path, reload: built.append(reload) or path, interrupt)
    assert built == [5, 0]


def test_a_failed_evaluation_does_not_keep_it_waiting(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8]})
    (directory / "runs/h1/seed0/eval/loss.json").unlink()
    state(directory, "h1/seed0", eval_errors={"loss": "no memory"})
    assert follow(directory, 5, lambda path, reload: path / str(reload), lambda _: None).name == "0"


def test_only_a_live_page_reads_itself_again_and_only_changed_plots_are_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from report.charts import export

    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.9], "h4": [1.7, 1.6]})
    drawn: list[str] = []
    original = export.svg
    monkeypatch.setattr(export, "svg", lambda spec: drawn.append("x") or original(spec))
    page = build(directory, reload=9)
    assert 'content="9"' in page.read_text() and '"reload":9' in page.read_text()
    first = len(drawn)
    metrics = read(directory).runs[0].directory / "metrics.jsonl"
    metrics.write_text("".join(f"{line}\n" for line in metrics.read_text().splitlines()[:-3]))
    again = build(directory)
    assert 'http-equiv="refresh"' not in again.read_text() and '"reload":0' in again.read_text()
    assert 0 < len(drawn) - first < first
