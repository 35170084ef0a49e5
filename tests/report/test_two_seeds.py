"""A sweep of two seeds that scatter: page, tables and terminal hold no number that a loss or a share cannot have."""

import csv
import html
import math
import re
from pathlib import Path
from typing import Any

import pytest

from report import build, compare
from report.statistics.intervals import over_seeds
from tests.report import synthetic

LOSSES = {"h1": (2.0, 2.1), "h4": (2.0, 5.0), "h8": (1.2, 2.6)}
SHARES = {"h1": (0.99, 0.98), "h4": (0.987, 0.119), "h8": (0.3, 0.95)}
LARGEST = 5.0 + 2.0 * math.log2(4) ** 1.3  # no loss of these runs is higher, at any length


def write(directory: Path) -> Path:
    arms = {name: synthetic.config(heads) for heads, name in ((1, "h1"), (4, "h4"), (8, "h8"))}
    for name, configuration in arms.items():
        for seed, (loss, share) in enumerate(zip(LOSSES[name], SHARES[name], strict=True)):
            synthetic.write_run(
                directory / "runs" / name / f"seed{seed}",
                info=synthetic.run_json(seed),
                configuration=configuration,
                lines=synthetic.metrics(loss, seed, lines=20),
                evals={
                    "loss": synthetic.loss_json(loss, ("linear", "yarn"), wobble=float(seed)),
                    "retrieval": synthetic.retrieval_json(share, ("linear", "yarn")),
                },
            )
    study = synthetic.study_json("heads", arms, [0, 1], baseline="h1", evals=["loss", "retrieval"], care=0.01)
    return synthetic.write_sweep(directory, [study])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write(tmp_path_factory.mktemp("two") / "sweep")
    build.build(directory)
    return directory / "report"


def impossible(text: str) -> list[str]:
    """Returns the numbers of a text that no loss, no share and no difference of either can be."""
    faults = []
    for found in re.finditer(r"(?:±|a true )(\d[\d,]*\.?\d*)\s*(points|nats|%)?", text):
        value, bound = float(found[1].replace(",", "")), 100.0 if found[2] in ("points", "%") else LARGEST
        faults += [found[0]] if value > bound else []
    for low, high, unit in re.findall(r"\[([−-]?\d+\.\d+)%?, ([−-]?\d+\.\d+)%?\]( n=| points)?", text):
        ends = [float(end.replace("−", "-")) for end in (low, high)]
        bound = 100.0 if unit else 2 * LARGEST
        least = -100.0 if unit == " points" else 0.0 if unit else -LARGEST
        faults += [f"[{low}, {high}]{unit}"] if not least <= ends[0] <= ends[1] <= max(bound, 100.0) else []
    return faults


def visible(page: str) -> str:
    """Returns what a reader sees of a page."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.S)
    return html.unescape(re.sub(r"<[^>]+>", " ", body))


def test_the_search_finds_what_a_report_once_said() -> None:
    assert impossible("recall -44.3 points ±555.3 points; a true 3565.6 points would have been seen 4 times in 5")
    assert impossible("loss 3.500 [-15.558, 22.560] nats") and not impossible("55.3% [11.0, 98.0] n=640")


def test_page_tables_and_terminal_hold_no_impossible_number(folder: Path) -> None:
    said = {
        "page": visible((folder / "index.html").read_text()),
        "markdown": (folder / "table.md").read_text(),
        "latex": (folder / "table.tex").read_text(),
        "terminal": compare.summary(build.read(folder.parent)),
    }
    assert {name: impossible(text) for name, text in said.items()} == {name: [] for name in said}
    for name in ("page", "markdown", "terminal"):
        assert "too few seeds" in said[name], name
    assert "h4 against h1, loss: too few seeds (+1.450 nats in 2 seeds)" in said["page"]
    assert "see any difference that is possible" not in said["page"]


def finite(row: dict[str, Any], key: str) -> list[float]:
    return [float(row[key])] if row[key] and math.isfinite(float(row[key])) else []


def test_csv_files_hold_no_impossible_number(folder: Path) -> None:
    table = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    rows = list(csv.DictReader((folder / "comparisons.csv").read_text().splitlines()))
    assert len(table) == 3 and len(rows) == 4
    for row in table:
        assert all(value >= 0 for value in finite(row, "loss_low") + finite(row, "bits_per_byte_low"))
        assert row["arm"] == "h1" or not finite(row, "loss_low"), "an interval that reaches below 0 is none"
        shares = [key for key in row if re.fullmatch(r"retrieval_\d+(_low|_high)?", key)]
        assert shares and all(0 <= value <= 1 for key in shares for value in finite(row, key))
    for row in rows:
        bound = 1.0 if row["measure"] == "retrieval" else 2.05
        assert all(abs(value) <= bound for value in finite(row, "low") + finite(row, "smallest_seen"))
        assert row["verdict"] == "not resolved"


def test_an_interval_that_would_reach_below_zero_is_none() -> None:
    few, enough = over_seeds([1.2, 2.6]), over_seeds([2.0, 2.1])
    assert few.over == "few" and math.isnan(few.low) and few.mean == pytest.approx(1.9)
    assert enough.over == "seeds" and enough.low > 0
