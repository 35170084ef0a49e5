"""Several sweeps as one: names, baselines, marks and what is written."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from configs.errors import UserError
from report.claims import words
from report.compare import combined
from report.statistics.intervals import paired
from tests.report import synthetic

A = {"h1": [1.80, 1.82, 1.81], "h4": [1.70, 1.73, 1.71]}
B = {"h4": [1.60, 1.61, 1.63], "h8": [1.65, 1.66, 1.67]}


@pytest.fixture
def sweeps(tmp_path: Path) -> tuple[Path, Path]:
    return synthetic.losses(tmp_path / "a", A), synthetic.losses(tmp_path / "b", B)


def test_arms_of_one_name_say_their_sweep_and_the_first_sweep_s_baseline_counts(sweeps) -> None:
    sweep = combined(list(sweeps))
    (study,) = sweep.studies
    assert [arm.name for arm in study.arms] == ["h1", "h4 (a)", "h4 (b)", "h8"]
    assert study.baseline == "h1" and sweep.name == "a, b"
    assert {run.directory.parent.parent.parent for arm in study.arms for run in arm.runs} == set(sweeps)
    said = [one.text for one in words.arms(study)]
    gap = paired(dict(enumerate(B["h4"])), dict(enumerate(A["h1"])))
    assert any(text.startswith(f"h4 (b) beats h1 by {-gap.mean:.4f}"[:22]) for text in said)


def test_another_baseline_can_be_named_and_an_unknown_one_gets_the_names(sweeps) -> None:
    assert combined(list(sweeps), "h4 (b)").studies[0].baseline == "h4 (b)"
    with pytest.raises(UserError, match=r"--baseline=h5: no such arm; there are h1, h4 \(a\), h4 \(b\), h8"):
        combined(list(sweeps), "h5")


def test_studies_of_one_name_go_together_where_there_are_several(tmp_path: Path) -> None:
    for name in ("x", "y"):
        synthetic.losses(tmp_path / name, {"h1": [1.8, 1.81]})
        raw = json.loads((tmp_path / name / "sweep.json").read_text())
        other = synthetic.study_json(f"only-{name}", {f"w-{name}": synthetic.config()}, [0])
        raw["studies"].append(other)
        (tmp_path / name / "sweep.json").write_text(json.dumps(raw))
    sweep = combined([tmp_path / "x", tmp_path / "y"])
    assert [(study.name, [arm.name for arm in study.arms]) for study in sweep.studies] == [
        ("heads", ["h1 (x)", "h1 (y)"]),
        ("only-x", ["w-x"]),
        ("only-y", ["w-y"]),
    ]


def test_other_data_in_the_other_sweep_are_not_compared(sweeps) -> None:
    for path in sweeps[1].glob("runs/*/*/run.json"):
        info = json.loads(path.read_text())
        info["data"]["fingerprint"] = "e" * 64
        path.write_text(json.dumps(info))
        synthetic.name_again(path.parent)
    said = {one.text.split(" ")[0] + one.verdict for one in words.arms(combined(list(sweeps)).studies[0])}
    assert "h8not comparable" in said and "h4resolved" in said


def test_two_runs_can_be_compared_and_one_directory_cannot(tmp_path: Path) -> None:
    for name, loss in (("first", 1.8), ("second", 1.7)):
        synthetic.write_run(tmp_path / name, evals={"loss": synthetic.loss_json(loss)})
    (study,) = combined([tmp_path / "first", tmp_path / "second"]).studies
    assert [arm.name for arm in study.arms] == ["first", "second"] and "one seed" in words.arms(study)[0].text
    with pytest.raises(UserError, match="two or more different directories"):
        combined([tmp_path / "first", tmp_path / "first"])


def test_the_command_prints_words_and_tables_or_writes_a_report(sweeps, tmp_path: Path) -> None:
    call = [sys.executable, "-m", "report.compare", *map(str, sweeps)]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert "12 runs: 12 done" in done.stdout and "- significant at 5%: h4 (b) beats h1 by" in done.stdout
    assert re.search(r"^h4 \(b\) +1\.613 ", done.stdout, re.MULTILINE)
    assert max(map(len, done.stdout.splitlines())) <= 100
    wrong = subprocess.run([*call, f"--out={sweeps[0]}"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and wrong.stderr.startswith(f"error: --out={sweeps[0]}: is itself a sweep or a run")
    out = tmp_path / "deep" / "both"
    done = subprocess.run([*call, f"--out={out}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(out / "index.html")
    page = (out / "index.html").read_text()
    assert 'href="../../a/runs/h1/seed0/run.json"' in page and (out / "train-loss.pdf").exists()
    assert (out / "../../a/runs/h1/seed0/run.json").resolve().exists()
    assert set(pd.read_parquet(out / "runs.parquet")["arm"]) == {"h1", "h4 (a)", "h4 (b)", "h8"}
