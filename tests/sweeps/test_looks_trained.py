"""Planned looks on models that are trained: launched, stopped at the right look, and worded by the report."""

import html
import re
from pathlib import Path

import pytest

from report.claims.comparing import RESOLVED, UNRESOLVED, comparisons
from report.reading.directories import read
from sweeps import launch, status
from sweeps.spec import expand
from sweeps.store import state

CHECKOUT = Path(__file__).resolve().parents[2]
SWEEP = """
def get_sweep():
    return dict(
        name="looks", title="Looks", question="Which rate learns?", base="configs/tiny.py",
        fixed={{
            "model.width": 16, "model.num_layers": 1, "data.length": 32, "data.batch_size": 8, "budget.amount": 60,
            "data.split": "first", "optimizer.warmup_steps": 5, "checkpoint.every_steps": 0, "eval.every_steps": 0,
            "eval.multiples": (1,), "eval.bootstrap": 10, "log.tensorboard": False,
        }},
        axes=[{{"optimizer.learning_rate": {rates}}}], arm="lr{{optimizer.learning_rate}}", baseline="lr0.003",
        seeds=dict(looks={looks}, care={care}), evals=["loss"],
    )
"""


def run(folder: Path, rates: tuple[float, ...], looks: tuple[int, ...], care: float) -> Path:
    """Trains a sweep by plan and returns its directory."""
    text = "\n".join(path.read_text() for path in sorted((CHECKOUT / "models").glob("*.py")))
    (folder / "text.txt").write_text(text)
    (folder / "sweep.py").write_text(SWEEP.format(rates=list(rates), looks=looks, care=care))
    sweep = expand.load(folder / "sweep.py", {"data.path": str(folder / "text.txt")})
    assert launch.launch(sweep, folder / "out", workers=1, report=launch.build_report).code == 0
    return folder / "out"


def page(directory: Path) -> str:
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", (directory / "report/index.html").read_text(), flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


@pytest.mark.slow
def test_trained_arms_stop_at_the_first_look_that_decides_and_the_report_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = run(tmp_path, (0.003, 0.00003, 0.0030001), (3, 5), 0.3)
    said = capsys.readouterr().out
    assert "after look 1 of 2, 3 seeds: every comparison is decided" in said
    (study,) = read(directory).studies
    compared = {one.arm: one for one in comparisons(study)}
    print({name: (one.difference.mean, one.difference.low, one.difference.high) for name, one in compared.items()})
    assert compared["lr3e-05"].verdict == RESOLVED and compared["lr3e-05"].level == pytest.approx(0.05 / 4)
    assert compared["lr0.0030001"].verdict == UNRESOLVED and compared["lr0.0030001"].within_care
    assert state.read(directory)["studies"][0]["seeds"] == [0, 1, 2]
    assert len(list(directory.glob("runs/*/*/checkpoints"))) == 9
    shown = page(directory)
    assert "looks at 3 and 5 seeds, tested at 1.25%, 3.75%" in shown
    assert "After look 1 of 2, 3 seeds, every comparison of losses is resolved or smaller than that." in shown
    assert "smaller than 0.3 nats either way" in shown and "lr0.003 beats lr3e-05" in shown
    status.main([str(directory)])
    assert "after look 1 of 2, 3 seeds: every comparison is decided" in capsys.readouterr().out


@pytest.mark.slow
def test_trained_arms_that_the_first_look_leaves_open_go_on_to_the_second_and_are_decided_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = run(tmp_path, (0.003, 0.0031), (2, 3), 1e-7)
    said = capsys.readouterr().out
    assert "after look 1 of 2, 2 seeds: open: lr0.0031; going on to 3 seeds" in said
    assert "after look 2 of 2, 3 seeds: every comparison is decided" in said
    assert state.read(directory)["studies"][0]["seeds"] == [0, 1, 2]
    (study,) = read(directory).studies
    (one,) = comparisons(study)
    print(one.difference.mean, one.difference.low, one.difference.high)
    assert one.verdict == RESOLVED and one.better and one.level == pytest.approx(0.05 * 3 / 4)
    assert "After look 2 of 2, 3 seeds, every comparison of losses is resolved or smaller than that." in page(directory)
