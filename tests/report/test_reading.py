"""Whatever lies in the files, the report is built, and what could not be read is named."""

import copy
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

import report
from configs.errors import UserError
from report import build
from report.charts import lengths, training
from report.claims import words
from report.page import latex, table
from report.page.html import settings
from report.reading import frames
from report.reading.directories import Sweep, read
from tests.report import synthetic


def everything(sweep: Sweep) -> str:
    """Goes through all that a page is made of, drawing left out, and returns its words."""
    said = [words.state(sweep)]
    for study in sweep.studies:
        first, rest = words.scalings(study)
        said += [one.text for one in words.arms(study) + words.comparability(study) + first + rest]
        said += [table.markdown([table.build(study)]), latex.latex([table.build(study)]), str(settings(study))]
        said += [figure.key for figure in build.figures(study)]
    frames.metrics(sweep), frames.results(sweep)
    return "\n".join(said)


def test_a_torn_last_line_is_ignored(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.81], "h4": [1.5, 1.51]})
    path = directory / "runs/h1/seed0/metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 9999, "train_lo')
    sweep = read(directory)
    assert sweep.faults == []
    assert [line["step"] for line in sweep.runs[0].metrics] == [10 * (index + 1) for index in range(20)]


def test_a_broken_line_further_up_is_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8]})
    path = directory / "runs/h1/seed0/metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = lines[3][:10]
    path.write_text("\n".join(lines) + "\n")
    sweep = read(directory)
    assert len(sweep.runs[0].metrics) == 19
    (fault,) = sweep.faults
    assert fault.startswith("runs/h1/seed0/metrics.jsonl: line 4: ")


def test_lines_written_again_after_a_resume_count_once(tmp_path: Path) -> None:
    rows = [{"step": 1, "train_loss": 3.0}, {"step": 2, "train_loss": 9.0}, {"step": 2, "train_loss": 2.0}]
    run = synthetic.write_run(tmp_path, lines=rows)
    assert [line["train_loss"] for line in read(run).runs[0].metrics] == [3.0, 2.0]


def test_a_corrupt_evaluation_is_named_with_its_place_and_its_cell_is_a_dash_with_the_reason(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8], "h4": [1.5]})
    (directory / "runs/h4/seed0/eval/loss.json").write_text('{"loss": 1.5,\n "loss_interval": [1.4,,')
    sweep = read(directory)
    assert sweep.faults == ["runs/h4/seed0/eval/loss.json: line 2 column 24: Expecting value"]
    cell = table.build(sweep.studies[0]).rows[1][1][1]
    assert cell.text == "\N{EM DASH}" and "runs/h4/seed0/eval/loss.json: line 2 column 24" in cell.why


def test_a_missing_evaluation_is_a_dash_with_the_reason(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8], "h4": [1.5]}, evals=["loss", "throughput"])
    (directory / "runs/h4/seed0/eval/loss.json").unlink()
    failed = synthetic.run_json(eval_errors={"throughput": "Traceback\nMemoryError: too large"})
    (directory / "runs/h4/seed0/run.json").write_text(json.dumps(failed))
    built = table.build(read(directory).studies[0])
    cells = dict(zip([column.key for column in built.columns], built.rows[1][1], strict=True))
    assert cells["loss"].why == "h4: no runs/h4/seed0/eval/loss.json"
    assert cells["train"].why.endswith("the evaluation failed: MemoryError: too large")
    assert set(built.reasons) >= {cells["loss"].why, cells["train"].why}


def test_conditions_that_evaluations_left_out_are_told(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8]})
    path = directory / "runs/h1/seed0/eval/loss.json"
    content = json.loads(path.read_text())
    reason = "the learned table has 128 positions"
    content["by_length"].append({"length": 512, "multiple": 4, "scaling": "trained", "factor": 1.0, "reason": reason})
    path.write_text(json.dumps(content))
    more = {"length": 1024, "multiple": 8, "scaling": "yarn", "factor": 1.0, "reason": reason}
    content["by_length"].append(more)
    path.write_text(json.dumps(content))
    left = "h1: no loss at 512 tokens; loss at 1024 tokens (yarn)"
    assert f"{left}: {reason}" in table.build(read(directory).studies[0]).reasons


def test_losses_of_recall_answers_are_called_so_and_have_no_bits_per_byte(tmp_path: Path) -> None:
    evals = {"loss": synthetic.loss_json(0.4) | {"source": "mqar", "bits_per_byte": None}}
    study = read(synthetic.write_run(tmp_path, evals=evals)).studies[0]
    columns = {column.key: column for column in table.build(study).columns}
    assert columns["loss"].note.startswith("nats/answer") and "bits" not in columns
    specs = json.dumps([figure.spec for figure in build.figures(study)])
    assert "nats/answer" in specs and "nats/token" not in specs


def test_speeds_show_how_far_they_scatter(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"a": [1.8, 1.8], "b": [1.7, 1.7]}, evals=["loss", "throughput"])
    (directory / "runs/a/seed1/run.json").unlink()
    for arm, seed, rate in (("a", 0, 30000.0), ("b", 0, 20000.0), ("b", 1, 40000.0)):
        evals = {"loss": synthetic.loss_json(1.8), "throughput": synthetic.throughput_json(rate)}
        synthetic.write_run(directory / f"runs/{arm}/seed{seed}", info=synthetic.run_json(seed), evals=evals)
    built = table.build(read(directory).studies[0])
    place = [column.key for column in built.columns].index("train")
    one, two = (cells[place] for _, cells in built.rows)
    assert (one.text, one.sub) == ("30.0k", "29.1k–30.6k"), "quartiles over repeats"
    assert (two.text, two.sub) == ("30.0k", "20.0k–40.0k"), "least and largest over seeds"


def test_seeds_that_no_float_tells_apart_are_two_runs(tmp_path: Path) -> None:
    seeds = [2**63 - 2, 2**63 - 1]
    directory = synthetic.losses(tmp_path, {"a": [1.8, 1.9], "b": [1.7, 1.6]})
    written = directory / "sweep.json"
    written.write_text(written.read_text().replace('"seeds": [0, 1]', f'"seeds": {seeds}'))
    for arm in ("a", "b"):
        for short, seed in enumerate(seeds):
            (directory / f"runs/{arm}/seed{short}").rename(directory / f"runs/{arm}/seed{seed}")
    study = read(directory).studies[0]
    assert [run.seed for run in study.arms[0].done] == seeds
    frame = report.load(directory)
    assert frame[(frame["arm"] == "b") & (frame["measure"] == "loss")].set_index("seed")["value"].to_dict() == {
        seeds[0]: 1.7, seeds[1]: 1.6,
    }  # fmt: skip
    lines = next(figure.lines for figure in build.figures(study) if figure.lines)
    assert {line["seed"] for line in lines["runs"]} == set(map(str, seeds)), "a script's numbers are floats"


def test_generated_answers_are_among_the_results(tmp_path: Path) -> None:
    content = synthetic.retrieval_json(0.9, (), (1,))
    content["by_length"][0]["exact_match"] = {"examples": 50, "correct": 40, "accuracy": 0.8, "interval": [0, 1]}
    frame = report.load(synthetic.write_run(tmp_path, evals={"retrieval": content}))
    row = frame[frame["measure"] == "exact_match_by_length"].iloc[0]
    assert (row["value"], row["examples"], row["length"]) == (0.8, 50, 63)


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "NaN", "oops", [], True])
def test_a_loss_that_is_no_number_is_a_dash_and_enters_no_mean(tmp_path: Path, value: Any) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.9], "h4": [1.5, 1.6]})
    path = directory / "runs/h4/seed0/eval/loss.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"loss": value}))
    built = table.build(read(directory).studies[0])
    assert built.raw[1]["loss"] == 1.6
    (directory / "runs/h4/seed1/eval/loss.json").unlink()
    assert table.build(read(directory).studies[0]).rows[1][1][1].text == "\N{EM DASH}"


def test_runs_that_are_not_done_enter_no_statistic(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.9, 7.0, 8.0, 9.0]})
    for seed, status in ((2, "diverged"), (3, "running"), (4, "failed")):
        path = directory / f"runs/h1/seed{seed}/run.json"
        path.write_text(json.dumps(synthetic.run_json(seed, status=status)))
    sweep = read(directory)
    assert table.build(sweep.studies[0]).raw[0]["loss"] == pytest.approx(1.85)
    assert words.state(sweep) == "5 runs: 2 done, 1 diverged, 1 running, 1 failed"
    assert set(frames.results(sweep)["seed"]) == {0, 1}


def test_a_run_that_has_not_begun_waits_and_an_unreadable_one_is_named(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.9, 1.7]})
    (directory / "runs/h1/seed1/run.json").unlink()
    (directory / "runs/h1/seed2/run.json").write_text("{")
    runs = read(directory).runs
    assert [run.status for run in runs] == ["done", "waiting", "unreadable"]
    assert "runs/h1/seed2/run.json: line 1 column 2" in runs[2].error


def test_an_arm_name_cannot_lead_out_of_the_sweep(tmp_path: Path) -> None:
    synthetic.losses(tmp_path / "other", {"h1": [1.8]})
    studies = [synthetic.study_json("s", {"../../other/runs/h1": synthetic.config()}, [0])]
    sweep = read(synthetic.write_sweep(tmp_path / "sweep", studies))
    assert sweep.runs == [] and "is outside the sweep's directory" in sweep.faults[0]


@pytest.mark.parametrize(
    "content", ["", "[]", "{", "null", '{"studies": 3}', '{"studies": [1, {"arms": [2]}]}', "\x00\xff"]
)
def test_a_damaged_sweep_file_does_not_end_the_report(tmp_path: Path, content: str) -> None:
    (tmp_path / "sweep.json").write_text(content, encoding="latin-1")
    everything(read(tmp_path))


def test_a_directory_that_is_neither_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such directory"):
        read(tmp_path / "none")
    with pytest.raises(UserError, match=r"neither a sweep .* nor a run"):
        read(tmp_path)


JUNK = [None, "x", -1, 0, 1e308, math.nan, [], {}, [[]], {"a": 1}, True, "<b>", ["trained", 3]]


def spoiled(value: Any, rng: random.Random) -> Any:
    """Returns a copy with one part, anywhere in it, replaced by junk or taken out."""
    value = copy.deepcopy(value)
    node = value
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return value
        key = rng.choice(keys)
        if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.85:
            node = node[key]
            continue
        if isinstance(node, dict) and rng.random() < 0.3:
            del node[key]
        else:
            node[key] = rng.choice(JUNK)
        return value


def test_junk_anywhere_in_the_files_never_ends_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (training, lengths):  # Altair takes most of the time
        monkeypatch.setattr(module, "finish", lambda chart, data: [list(rows) for rows in data.values()])
    values = {"h1": [1.8, 1.81], "h4": [1.5, 1.52]}
    directory = synthetic.losses(tmp_path, values, evals=["loss", "retrieval", "throughput", "memory"])
    more = {"retrieval": synthetic.retrieval_json(0.9, ("yarn",), (1, 2)), "memory": synthetic.memory_json()}
    for arm in values:
        for seed in (0, 1):
            content = synthetic.loss_json(1.8 + 0.01 * seed, ("yarn",), (1, 2))
            evals = more | {"loss": content, "throughput": synthetic.throughput_json()}
            synthetic.write_run(directory / f"runs/{arm}/seed{seed}", info=synthetic.run_json(seed), evals=evals)
    files = sorted([*directory.rglob("*.json")])
    originals = {path: json.loads(path.read_text()) for path in files}
    rng = random.Random(0)
    for _ in range(12):
        changed = rng.sample(files, 6)
        for path in changed:
            path.write_text(json.dumps(spoiled(originals[path], rng)))
        everything(read(directory))
        for path in changed:
            path.write_text(json.dumps(originals[path]))
