"""report.load gives tidy frames, and the notebook in docs/ runs over any sweep."""

import json
import os
import sys
from pathlib import Path

import pytest

import report
from configs.errors import UserError
from tests.report import synthetic

NOTEBOOK = Path(__file__).parent.parent.parent / "docs" / "report.ipynb"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.demo(tmp_path_factory.mktemp("load") / "demo")


def test_load_gives_results_metrics_and_runs(sweep: Path) -> None:
    results = report.load(sweep)
    stored = json.loads((sweep / "runs/h2/seed1/eval/loss.json").read_text())["loss"]
    assert results.query("arm == 'h2' and seed == 1 and measure == 'loss'")["value"].item() == stored
    metrics = report.load(sweep, "metrics")
    assert len(metrics) == 15 * 100 and metrics["train_loss"].notna().all()
    runs = report.load(sweep, "runs").set_index(["arm", "seed"])
    assert len(runs) == 15 and runs.loc[("h4", 2), "model.num_heads"] == 4
    assert runs.loc[("recall", 0), "parameters"] == 120000 and set(runs["status"]) == {"done"}
    with pytest.raises(UserError, match="must be comparisons, results, metrics, runs"):
        report.load(sweep, "all")


def test_runs_that_are_not_done_stand_among_the_runs_only(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.9]})
    synthetic.write_run(directory / "runs/h1/seed1", info=synthetic.run_json(1, status="failed", error="out of memory"))
    assert set(report.load(directory)["seed"]) == {0}
    runs = report.load(directory, "runs")
    assert runs["error"].tolist() == ["", "out of memory"] and runs["status"].tolist() == ["done", "failed"]


@pytest.mark.filterwarnings("ignore")  # of the kernel's own packages
def test_the_notebook_runs_from_top_to_bottom(sweep: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from nbclient import NotebookClient

    monkeypatch.setenv("ABLAX_SWEEP", str(sweep))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert "python3" in KernelSpecManager().find_kernel_specs()
    assert all(not cell.get("outputs") for cell in notebook.cells), "figures in it would be of some other sweep"
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}  # where Jupyter starts a kernel
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    data = [one["data"] for cell in notebook.cells for one in cell.get("outputs", []) if "data" in one]
    tables = [one["text/plain"] for one in data if "text/html" in one]
    assert len(tables) == 4 and "h4" in tables[1]
    assert sum("image/svg+xml" in one for one in data) == 1
