"""A run directory: exact resumption, refusals, and how a run ends."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from configs import cli, fields
from configs.errors import UserError
from training.loop import after_step, trainer
from training.run_directory import run as runs
from training.run_directory.checkpoint import Checkpoints, flat
from training.run_directory.files import read_json, read_lines

TIMED = ("tokens_per_second", "mfu")


def trace(workdir: Path) -> list[dict]:
    return [{k: v for k, v in line.items() if k not in TIMED} for line in read_lines(workdir / "metrics.jsonl")]


def parameters(workdir: Path) -> dict[str, np.ndarray]:
    return {name: np.asarray(x) for name, x in flat(runs.load(workdir).params).items()}


@pytest.fixture(scope="module")
def first(make_tiny, tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("first")
    trainer.train(make_tiny(budget__amount=2), workdir, quiet=True)
    return workdir


def stop_after(monkeypatch, step: int, number: int = signal.SIGTERM) -> None:
    """Sends this process a signal right after a step, as a scheduler would."""
    original = after_step.spend

    def spend(run, tokens: int, seconds: float) -> None:
        original(run, tokens, seconds)
        if run.state.spent.steps == step:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(after_step, "spend", spend)


def test_a_run_directory_holds_what_the_contract_says(tiny, tmp_path) -> None:
    result = trainer.train(tiny(log__tensorboard=True), tmp_path, quiet=True)
    written = read_json(tmp_path / "run.json")
    assert written == result and written["status"] == "done" and written["error"] is None
    assert written["step"] == 12 and written["tokens"] == 12 * 4 * 16
    assert written["parameters"]["total"] == sum(x.size for x in parameters(tmp_path).values())
    assert written["flops"] == pytest.approx(written["tokens"] * written["flops_per_token"]["value"])
    assert written["attention_kernel"] in ("reference", "blocked", "xla")
    assert set(written["wall_time"]) == {"compile", "train", "eval", "total"}
    config = read_json(tmp_path / "config.json")
    assert set(fields.flatten(fields.from_dict(config))) == set(fields.types())
    assert config["model"]["head_dim"] == 8 and config["model"]["vocab_size"] > 10
    lines = trace(tmp_path)
    assert [line["step"] for line in lines] == [3, 6, 9, 12]
    for key in ("tokens", "flops", "train_loss", "learning_rate", "grad_norm"):
        assert all(isinstance(line[key], int | float) for line in lines)
    assert [line["step"] for line in lines if "val_loss" in line] == [6, 12]
    assert lines[-1]["val_loss"] == written["val_loss"] == pytest.approx(written["best_val_loss"])
    assert (tmp_path / "tokenizer").exists()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [e.step for e in events.Scalars("train_loss")] == [3, 6, 9, 12]
    assert [e.value for e in events.Scalars("val_loss")] == pytest.approx([x["val_loss"] for x in lines[1::2]])


@pytest.mark.parametrize("step", [2, 4, 7, 11])
def test_a_run_stopped_and_resumed_equals_the_uninterrupted_one_to_the_bit(tiny, tmp_path, monkeypatch, step) -> None:
    config = tiny(model__dropout=0.1, data__packing="segments")
    trainer.train(config, tmp_path / "whole", quiet=True)
    with monkeypatch.context() as patch:
        stop_after(patch, step)
        stopped = trainer.train(config, tmp_path / "parts", quiet=True)
    assert stopped["status"] == "preempted" and "SIGTERM" in stopped["error"] and stopped["step"] == step
    assert trainer.train(config, tmp_path / "parts", quiet=True)["status"] == "done"
    assert trace(tmp_path / "parts") == trace(tmp_path / "whole")
    whole, parts = parameters(tmp_path / "whole"), parameters(tmp_path / "parts")
    assert all(np.array_equal(parts[name], whole[name]) for name in whole)


def test_a_run_resumes_in_the_middle_of_a_curriculum(tiny, tmp_path, monkeypatch) -> None:
    stages = ({"steps": 5, "length": 7, "batch_size": 8, "pairs": 2, "weights": {"text": 0.0, "mqar": 1.0}},)
    config = tiny(data__curriculum=stages, data__weights__mqar=1.0, data__mqar__vocab_size=16)
    trainer.train(config, tmp_path / "whole", quiet=True)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        trainer.train(config, tmp_path / "parts", quiet=True)
    with monkeypatch.context() as patch:
        stop_after(patch, 8, signal.SIGINT)
        trainer.train(config, tmp_path / "parts", quiet=True)
    trainer.train(config, tmp_path / "parts", quiet=True)
    assert trace(tmp_path / "parts") == trace(tmp_path / "whole")
    assert {line["length"] for line in trace(tmp_path / "whole")} == {7, 16}


KILLED = """
import json, os, pathlib, signal, sys, time
from configs import fields
from training.loop import after_step, trainer
original = after_step.spend
def spend(run, tokens, seconds):
    original(run, tokens, seconds)
    if run.state.spent.steps == 9:
        while not pathlib.Path(sys.argv[2], "checkpoints/5").exists():  # it is written beside the training
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
after_step.spend = spend
trainer.train(fields.from_dict(json.loads(sys.argv[1])), sys.argv[2], quiet=True)
"""


def test_a_killed_run_continues_to_the_same_trace(tiny, tmp_path) -> None:
    """Killed in another process, after a line that has no checkpoint; at any moment: `tests.torture`."""
    config = tiny(checkpoint__every_steps=5, log__every_steps=2)
    command = [sys.executable, "-c", KILLED, json.dumps(fields.to_dict(config)), str(tmp_path / "parts")]
    assert subprocess.run(command, timeout=300, capture_output=True).returncode == -signal.SIGKILL
    assert trace(tmp_path / "parts")[-1]["step"] == 8 and not (tmp_path / "parts/checkpoints/8").exists()
    assert (tmp_path / "parts/checkpoints/5").exists()
    assert read_json(tmp_path / "parts/run.json")["status"] == "running"
    for name in ("parts", "whole"):
        trainer.train(config, tmp_path / name, quiet=True)
    assert trace(tmp_path / "parts") == trace(tmp_path / "whole")


def test_a_diverged_run_says_so_and_keeps_what_it_has(tiny, tmp_path) -> None:
    config = tiny(optimizer__learning_rate=1e30, optimizer__clip_norm=0.0, model__norm="layernorm",
                  optimizer__warmup_steps=0, log__every_steps=2, checkpoint__every_steps=1, eval__every_steps=0,
                  optimizer__final_share=1.0)  # fmt: skip
    result = trainer.train(config, tmp_path, quiet=True)
    assert result["status"] == "diverged" and "at step" in result["error"]
    assert all(np.isfinite(line["train_loss"]) for line in trace(tmp_path))
    run = runs.load(tmp_path)
    assert run.step >= 1


def test_a_finished_run_is_left_as_it_is(tiny, tmp_path) -> None:
    trainer.train(tiny(), tmp_path, quiet=True)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"}
    assert trainer.train(tiny(), tmp_path, quiet=True)["status"] == "done"
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"} == before


def test_another_config_is_refused_by_field_and_nothing_is_overwritten(tiny, tmp_path) -> None:
    trainer.train(tiny(), tmp_path, quiet=True)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"model\.num_heads is 2 there and 4 here"):
        trainer.train(tiny(model__num_heads=4), tmp_path, quiet=True)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert trainer.train(tiny(eval__bootstrap=10, name="other"), tmp_path, quiet=True)["status"] == "done"


def test_two_processes_on_one_directory_are_refused(tiny, tmp_path) -> None:
    with trainer.exclusive(tmp_path), pytest.raises(UserError, match="another process is training there"):
        trainer.train(tiny(), tmp_path, quiet=True)


def test_the_seed_fixes_everything_and_another_changes_it(tiny, tmp_path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 3 + 2**32)):
        trainer.train(tiny(seed=seed, budget__amount=6), tmp_path / name, quiet=True)
    assert trace(tmp_path / "a") == trace(tmp_path / "b") != trace(tmp_path / "c")


def test_a_second_seed_compiles_nothing(tiny, tmp_path) -> None:
    """Counted where JAX hands a program to the compiler or to its cache on disk."""
    compiled = []

    def count(event: str, _: float, **about) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(about)

    trainer.train(tiny(budget__amount=2), tmp_path / "a", quiet=True)
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        trainer.train(tiny(seed=5, budget__amount=2), tmp_path / "b", quiet=True)
        assert not compiled
        jax.jit(lambda x: x * 3.25 + len(compiled))(1.0)
        assert len(compiled) == 1  # so something was counted
    finally:
        jax.monitoring.unregister_event_duration_listener(count)


def test_a_run_starts_from_anothers_parameters(tiny, tmp_path, capsys) -> None:
    trainer.train(tiny(budget__amount=2), tmp_path / "first", quiet=True)
    source = str(tmp_path / "first")
    changes = {"data__length": 32, "budget__amount": 1, "optimizer__learning_rate": 1e-12}
    scaling = {"model__position__rope__scaling__kind": "linear", "model__position__rope__scaling__factor": 2.0}
    trainer.train(tiny(init_from=source, **changes, **scaling), tmp_path / "second")
    first, second = parameters(tmp_path / "first"), parameters(tmp_path / "second")
    assert all(np.allclose(second[name], first[name], atol=1e-7) for name in first)
    messages = [line for line in capsys.readouterr().out.splitlines() if line.startswith("init_from: ")]
    scaling_now = "init_from: model.position.rope.scaling."
    assert messages == [
        f"{scaling_now}factor was 1.0, is now 2.0",
        f"{scaling_now}kind was 'none', is now 'linear'",
        f"{scaling_now}original_length was 16, is now 32",
    ]
    # Its own config.json is a config like any other.
    again = cli.load(tmp_path / "first", {"init_from": source, "budget.amount": 1.0})
    trainer.train(again, tmp_path / "third", quiet=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__width": 32}, r"init_from = .*: model.head_dim is 8 there .*, model.width is 16 there and 32 here; "),
        ({"model__num_kv_heads": 1}, r"model.num_kv_heads is 2 there and 1 here; .*--config=.*config.json"),
        # The same shapes, read as other heads.
        ({"model__num_heads": 4}, r"model.head_dim is 8 there and 4 here, model.num_heads is 2 there and 4 here"),
        ({"model__attention__qkv": "fused"}, r"model.attention.qkv is 'split' there and 'fused' here; "),
        ({"model__position__kind": "fire"}, r"model.position.kind is 'rope' there and 'fire' here; "),
        ({"data__tokenizer": "byte"}, r"data.tokenizer = 'byte': .*another tokenizer \(char, \d+ tokens; .*byte, 256"),
        ({"init_from": "nowhere"}, "init_from = 'nowhere': has no checkpoint"),
    ],
    ids=str,
)
def test_parameters_that_do_not_fit_are_refused_by_field(tiny, tmp_path, first, changes, message) -> None:
    with pytest.raises(UserError, match=message):
        trainer.train(tiny(**{"init_from": str(first), **changes}), tmp_path, quiet=True)
    assert not (tmp_path / "config.json").exists()  # so that the mended command can be given again


@pytest.mark.parametrize(("kind", "amount", "steps"), [("tokens", 200.0, 4), ("steps", 5.0, 5)])
def test_budgets_end_the_run(tiny, tmp_path, kind, amount, steps) -> None:
    result = trainer.train(tiny(budget__kind=kind, budget__amount=amount), tmp_path, quiet=True)
    assert result["step"] == steps


def test_a_budget_of_seconds_counts_training_alone(tiny, tmp_path) -> None:
    result = trainer.train(tiny(budget__kind="seconds", budget__amount=0.2), tmp_path, quiet=True)
    assert result["status"] == "done" and 0.2 <= result["wall_time"]["train"] < 1.0


def test_the_last_and_the_best_checkpoints_stay(tiny, tmp_path) -> None:
    config = tiny(checkpoint__every_steps=2, checkpoint__keep=2, eval__every_steps=2, budget__amount=20)
    trainer.train(config, tmp_path, quiet=True)
    kept = sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit())
    losses = {line["step"]: line["val_loss"] for line in trace(tmp_path) if "val_loss" in line}
    best = min(losses, key=losses.get)
    assert kept == sorted({18, 20, best})
    assert runs.load(tmp_path, best).step == best
    with pytest.raises(UserError, match="has no checkpoint of step 3"):
        runs.load(tmp_path, 3)


def test_the_best_checkpoint_stays_when_later_processes_go_on(tmp_path) -> None:
    """Of 1 to 9, saved by three processes: the last two and the best of all, whatever became of the others."""
    kept, tree = [], {"a": np.ones(3, np.float32)}
    for losses in ({1: 0.1, 2: 0.5, 3: 0.4}, {4: 0.2, 5: None, 6: 0.6}, {7: 0.05, 8: math.nan, 9: 0.5}):
        saves = Checkpoints(tmp_path)
        for step, loss in losses.items():
            saves.save(step, tree, tree, {}, loss)
        saves.close()
        kept.append(saves.steps())
        (tmp_path / f"checkpoints/{kept[-1][-2]}/meta/metadata").write_bytes(b"{\0")
    assert kept == [[1, 2, 3], [1, 5, 6], [7, 8, 9]]


def test_a_typing_error_in_a_field_is_answered_quickly(tmp_path) -> None:
    start = time.monotonic()
    command = [sys.executable, "train.py", "--config=configs/tiny.py", "--config.model.num_haeds=4"]
    done = subprocess.run([*command, f"--workdir={tmp_path / 'r'}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and time.monotonic() - start < 10
    assert done.stderr == "error: unknown field model.num_haeds (value '4'); did you mean model.num_heads?\n"
    assert not (tmp_path / "r").exists()


def test_other_data_under_a_run_is_refused(tiny, tmp_path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("abcdefgh " * 500)
    config = tiny(data__path=str(path))
    trainer.train(config, tmp_path / "run", quiet=True)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(record | {"status": "running"}))
    path.write_text("hgfedcba " * 500)
    with pytest.raises(UserError, match="was trained on other data"):
        trainer.train(config, tmp_path / "run", quiet=True)
