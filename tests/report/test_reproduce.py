"""Commands that make numbers again stay one command each, whatever runs are called; settings compare."""

import shlex
from pathlib import Path

import pytest

from configs.errors import UserError
from report import build
from report.page import table
from report.reading import reproduce
from report.reading.directories import read
from report.reading.settings import settings
from tests.report import synthetic

NAME = "h $(touch x); 'q' \"d\" `b` &&"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    study = synthetic.study_json("heads", {NAME: synthetic.config(1), "h2": synthetic.config(2)}, [0, 1])
    for arm in (NAME, "h2"):
        info = synthetic.run_json(0, git_commit="abc; rm -rf /")
        synthetic.write_run(tmp_path / "runs" / arm / "seed0", info=info, evals={"loss": synthetic.loss_json(1.7)})
    return synthetic.write_sweep(tmp_path, [study], file="my sweeps/x.py; ls")


def test_commands_are_quoted_for_a_shell(sweep: Path) -> None:
    result = read(sweep)
    run = result.runs[0]
    train, evaluate = (shlex.split(line) for line in reproduce.commands(result, run, ["loss", "memory"]))
    place = f"runs/{NAME}/seed0"
    assert train[2:] == [f"--config=$SWEEP/{place}/config.json", f"--workdir=$AGAIN/{place}"]
    assert evaluate[3:] == [f"--workdir=$AGAIN/{place}", "--evals=loss"], "only what was measured"
    run.info["git_commit"] = "0123456789abcdef0123456789abcdef01234567"
    checkout, *_ = (shlex.split(line) for line in reproduce.commands(result, run, []))
    assert checkout == ["git", "checkout", run.info["git_commit"]], "what is no commit is never given to git"
    assert shlex.split(reproduce.whole(result))[3:] == ["--sweep=my sweeps/x.py; ls", "--out=$AGAIN"]


def test_every_number_of_the_table_has_its_file_and_links_lead_to_files_that_are_there(sweep: Path) -> None:
    result = read(sweep)
    table_ = table.build(result.studies[0])
    named = {heading: file for heading, file, _ in reproduce.sources(table_)}
    assert named["val. loss"] == "eval/loss.json: loss" and named["parameters"] == "run.json: parameters.total"
    silent = [column.heading for column in table_.columns if column.numeric and not column.source]
    assert silent == []
    links = dict(reproduce.links(result.runs[0], sweep / "report"))
    assert set(links) == {"config.json", "run.json", "metrics.jsonl", "eval/loss.json"}
    assert links["run.json"].startswith("../runs/h%20%24%28touch%20x%29%3B%20")


def test_settings_part_into_shared_and_differing(sweep: Path) -> None:
    result = settings(read(sweep).studies[0])
    assert result.differing == [("model.num_heads", ["1", "2"]), ("model.head_dim", ["64", "32"])]
    assert result.shared["model.width"] == "64" and "seed" not in result.shared


def test_options_that_would_do_nothing_are_refused(sweep: Path) -> None:
    with pytest.raises(UserError, match="--every: needs --live"):
        build.main([str(sweep), "--every=3"])
    with pytest.raises(UserError, match="--every=0: must be at least 1 second"):
        build.main([str(sweep), "--live", "--every=0"])
