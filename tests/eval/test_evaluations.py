"""The registry of evaluations: everything that reads it agrees with what the evaluations are."""

import ast
import dataclasses
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from configs import fields
from configs.columns import COLUMNS
from configs.evaluations import EVALUATIONS, load, of_kind
from eval import run as command
from report import build
from report.page import formats, table
from report.reading.directories import Study, read
from tests.report import synthetic

ROOT = Path(__file__).parents[2]
DECLARED = [(name, column) for name, evaluation in EVALUATIONS.items() for column in evaluation.columns]


def test_every_evaluation_has_its_file_loads_and_is_described() -> None:
    files = {path.stem for path in (ROOT / "configs/evaluations").glob("*.py") if "\nEVALUATION = " in path.read_text()}
    assert files == {*EVALUATIONS}
    page = (ROOT / "docs/run_directory.md").read_text()
    for name, evaluation in EVALUATIONS.items():
        assert name == evaluation.name and callable(evaluation.load())
        assert f"| `{name}` |" in page
        assert {*evaluation.lists} <= {*fields.types()}
    assert set(command.DEFAULT) < set(EVALUATIONS)
    kinds = {evaluation.kind for evaluation in EVALUATIONS.values()}
    assert kinds == {"quality", "cost", "inspection", "check"}
    assert sorted(name for kind in kinds for name in of_kind(kind)) == sorted(EVALUATIONS)


def test_every_module_that_evaluates_is_declared() -> None:
    paths = [*(ROOT / "eval").glob("*/*.py")]
    made = {path for path in paths if "\ndef evaluate(run: Run, progress: Quiet)" in path.read_text(encoding="utf-8")}
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in made}
    assert modules == {evaluation.module for evaluation in EVALUATIONS.values()}


def test_what_the_report_reads_exists_and_every_chart_is_drawn() -> None:
    charts = {chart for evaluation in EVALUATIONS.values() for chart in evaluation.charts}
    shared = {one.read for evaluation in EVALUATIONS.values() for one in evaluation.shared}
    numbers = {name for _, one in DECLARED for name in (one.number, one.below) if name}
    assert all(callable(load(name)) for name in charts | shared | numbers)
    page = (ROOT / "report/build.py").read_text(encoding="utf-8")
    for path in (ROOT / "report/charts").glob("*.py"):
        for name in _drawing(path):
            declared = f"report.charts.{path.stem}:{name}" in charts
            assert declared or f"{path.stem}.{name}(study" in page, f"{path}: {name} is never drawn"


def _drawing(path: Path) -> list[str]:
    """Returns the public functions of a file that return a study's figures."""
    nodes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]
    returned = {node.name: ast.unparse(node.returns) for node in nodes if node.returns is not None}
    figures = ("Figure | None", "list[Figure]")
    return [name for name, kind in returned.items() if kind in figures and not name.startswith("_")]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return read(synthetic.demo(tmp_path_factory.mktemp("demo"))).studies[0]


def test_every_column_that_is_declared_is_a_cell_of_the_table(study: Study) -> None:
    keys = [column.key for _, column in DECLARED]
    assert not [key for key, count in Counter(keys).items() if count > 1] and {*keys} <= {*COLUMNS}
    whole = table.build(dataclasses.replace(study, columns=[*COLUMNS]))
    assert {column.key.split(" ")[0] for column in whole.columns} - {"arm"} <= {*COLUMNS}
    arm, shown = study.arms[0], {column.key: place for place, column in enumerate(whole.columns)}
    cells = table._cells(study, arm, [], None, [])
    assert {*keys} <= {*cells}
    for name, column in DECLARED:
        if not column.heading or name not in study.arms[0].runs[0].evals:
            continue  # drawn by a rule of its own, or not measured here
        cell = whole.rows[0][1][shown[column.key]]
        assert cell.text != formats.DASH and whole.columns[shown[column.key]].source.startswith(f"eval/{name}.json:")
        assert whole.raw[0][column.raw] == pytest.approx(cell.sort)


def test_a_column_off_by_default_is_there_where_a_study_asks_for_it(study: Study) -> None:
    hidden = {column.key for _, column in DECLARED if column.heading and not column.default}
    assert hidden == {"prefill"}
    assert not hidden & {column.key for column in table.build(study).columns}
    asked = table.build(dataclasses.replace(study, columns=["prefill"]))
    assert "prefill" in {asked.columns[place].key for place in asked.asked}


def test_figures_are_those_of_the_evaluations_that_were_done(study: Study) -> None:
    keys = [figure.key for figure in build.figures(study)]
    assert {"loss-by-length", "quality-decode-speed", "quality-memory", "profile", "attention-entropy"} <= {*keys}


def test_the_registry_is_read_without_jax() -> None:
    code = "import sys; from configs import evaluations; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
