"""What arms cost: by formula, as compiled, and added up over the budget."""

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from rich.console import Console

from configs import cli, validate
from configs.errors import UserError
from models import counting
from sweeps import plan
from sweeps.plans import hlo, programs, table, targets
from sweeps.plans.roofline import Roofline
from sweeps.spec import expand
from training.devices import compile_only
from training.devices.chips import Chip

CHECKOUT = Path(__file__).resolve().parents[2]
CPU = targets.Target("cpu", "cpu", tuple(jax.devices("cpu")[:1]), 2**40)


def tiny(**overrides):
    small = {"model.width": 16, "model.num_layers": 1, "model.num_heads": 2, "data.length": 8, "data.batch_size": 2}
    return validate.resolve(
        cli.load("configs/tiny.py", small | {k.replace("__", "."): v for k, v in overrides.items()})
    )


@pytest.fixture(scope="module")
def lines():
    given = dict(
        base="configs/tiny.py",
        fixed={"model.width": 16, "model.num_layers": 1, "data.length": 8, "data.batch_size": 2, "budget.amount": 10},
        axes=[{"model.num_kv_heads": [1, 4]}],
        arm="kv{model.num_kv_heads}",
        seeds=[0, 1, 2],
    )
    return plan.plan(expand.expand(given, file=Path("s.py")), CPU, plan.PROGRAMS)


def test_formulas_and_compiled_memory_of_every_arm(lines):
    assert [line.arm for line in lines] == ["kv1", "kv4"]
    mqa, mha = lines
    assert mha.kv_bytes_per_token == 4 * mqa.kv_bytes_per_token == 2 * 1 * 4 * 4 * 4
    assert mha.parameters["total"] - mqa.parameters["total"] == 2 * 16 * (16 - 4)
    for line in lines:
        assert line.good and set(line.programs) == {"train_step", "decode"}
        memory = line.programs["train_step"].memory
        # Parameters and two moments go in, float32, beside the batch and some scalars; and they are donated.
        state = 3 * 4 * line.parameters["total"]
        assert state <= memory["argument"] <= state + 3 * 4 * 2 * 8 + 64
        assert memory["alias"] >= state
        assert memory["peak"] == memory["argument"] + memory["output"] + memory["temp"] - memory["alias"]
        assert line.tokens == 10 * 2 * 8 and line.flops == line.tokens * line.flops_per_token["value"]
    assert table.total(lines).startswith("2 arms, 6 runs; 960 tokens")


def test_hours_are_flops_over_the_assumed_mfu_and_only_where_a_peak_is_published(lines, capsys):
    chip = Chip(1e12, 1e12, 1e9, "a data sheet")
    result = plan.hours_at_mfu(2 * 0.4 * 1e12 * 7200, chip, 2)
    assert result == {"mfu": 0.4, "hours": pytest.approx(2.0)}
    assert plan.hours_at_mfu(None, chip, 1) is None and plan.hours_at_mfu(1e12, None, 1) is None
    assert all(line.as_json()["hours_at_mfu"] is None for line in lines)  # a CPU has no published peak
    table.show([replace(lines[0], hours_at_mfu=result)], CPU, Console())
    shown = capsys.readouterr().out
    assert "kv1: about 2 hours of training per run at 40% MFU" in shown and "an estimate" in shown


def test_the_presets_are_the_sizes_of_their_names():
    sizes = {"gpt2_124m": (12, 768, 1024, 124.4e6), "llama_350m": (24, 1024, 2048, 360e6)}
    for name, (layers, width, length, parameters) in sizes.items():
        config = validate.resolve(cli.load(f"configs/{name}.py", {}))
        assert (config.model.num_layers, config.model.width, config.data.length) == (layers, width, length)
        assert counting.parameters(config.model)["total"] == pytest.approx(parameters, rel=2e-3)
        assert config.data.batch_size * length == pytest.approx(0.5e6, rel=0.05)  # tokens a step, as published


def test_nothing_is_allocated():
    before = len(jax.live_arrays())
    sweep = expand.expand(dict(base="configs/tiny.py", fixed={"model.num_layers": 1}), file=Path("s.py"))
    (line,) = plan.plan(sweep, CPU, ["train_step"])
    assert line.programs["train_step"].memory and len(jax.live_arrays()) == before


STAGES = ({"steps": 10, "length": 4, "batch_size": 4}, {"steps": 5, "length": 8})


@pytest.mark.parametrize("kind, amount, tokens, flops", [
    ("steps", 20, 160 + 80 + 80, 160 * 1004 + 160 * 1008),
    ("tokens", 200, 200, 160 * 1004 + 40 * 1008),
    ("flops", 160 * 1004 + 16 * 1008, 176, 160 * 1004 + 16 * 1008),
    ("seconds", 9, None, None),
])  # fmt: skip
def test_budgets_are_counted_through_the_curriculum(kind, amount, tokens, flops):
    config = tiny(budget__kind=kind, budget__amount=amount, data__curriculum=STAGES)
    assert plan.budget(config, lambda length: 1000 + length) == (tokens, flops)


FILE = "configs/sweeps/kv_groups.py"
SMALL = ["--config.model.width=16", "--config.model.num_layers=1", "--config.data.length=8"]


@pytest.fixture
def here(monkeypatch):
    """Has the command plan for this process's CPU, with as much memory as is set."""
    target = SimpleNamespace(capacity=CPU.capacity)
    monkeypatch.setattr(targets, "open_target", lambda name: replace(CPU, capacity=target.capacity))
    return target


def test_an_arm_that_does_not_compile_is_named_and_stops_nothing(lines, monkeypatch, capsys, here):
    from training.step import train_step

    whole = train_step.jitted

    def broken(config, mesh):
        if config.model.num_kv_heads == 1:
            raise RuntimeError("INTERNAL: no such thing\nmore")
        return whole(config, mesh)

    monkeypatch.setattr(train_step, "jitted", broken)
    assert plan.main([f"--sweep={FILE}", *SMALL]) == 1
    message = capsys.readouterr().out.splitlines()
    assert "kv1: the train step does not compile: RuntimeError: INTERNAL: no such thing" in message[5:]
    assert [line.split(":")[0] for line in message if "kv8's" in line] == ["kv1", "kv2", "kv4"]
    assert [line.split()[0] for line in message[1:5]] == ["kv1", "kv2", "kv4", "kv8"]
    assert "KiB" in message[2] or "MiB" in message[2]


def test_an_arm_too_large_for_a_device_is_refused_with_the_two_numbers(tmp_path, capsys, here):
    (tmp_path / "s.py").write_text("def get_sweep():\n    return dict(base='configs/tiny.py', arm='kv8')\n")
    assert plan.main([f"--sweep={tmp_path / 's.py'}", *SMALL]) == 0
    capsys.readouterr()
    here.capacity = 2**16
    assert plan.main([f"--sweep={tmp_path / 's.py'}", *SMALL]) == 1
    message = capsys.readouterr().out
    assert re.search(
        r"^kv8: the train step does not fit: it needs [\d.]+ [KM]iB, and a device of cpu has 64.0 KiB: .* too much$",
        message,
        re.MULTILINE,
    )


def test_what_the_compiler_refuses_for_its_size_is_a_verdict(monkeypatch):
    message = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (379.77G) "
        "exceeds available HBM (15.75G)."
    )
    assert compile_only.too_large(message) == (round(379.77 * 2**30), round(15.75 * 2**30))
    assert compile_only.too_large("RESOURCE_EXHAUSTED: Used 17.1G of 15.75G hbm.") is not None
    assert compile_only.too_large("INTERNAL: else") is None

    def refuse(config, target):
        raise RuntimeError(message)

    monkeypatch.setitem(programs.PROGRAMS, "train_step", refuse)
    program = programs.compiled(tiny(), CPU, "train_step")
    assert not program.fits and not program.error and program.needed - program.available == round(364.02 * 2**30)


def test_the_command_writes_json_and_refuses_other_targets(tmp_path, monkeypatch):
    (tmp_path / "s.py").write_text("def get_sweep():\n    return dict(base='configs/tiny.py', arm='only')\n")
    out = tmp_path / "plan.json"
    command = [sys.executable, "-m", "sweeps.plan", f"--sweep={tmp_path / 's.py'}", "--config.model.num_layers=1"]
    done = subprocess.run([*command, f"--json={out}"], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (arm,) = json.loads(out.read_text())["arms"]
    assert arm["arm"] == "only" and arm["memory"]["peak"] > 0 and arm["parameters"]["total"] > 0
    assert arm["programs"]["train_step"]["fits"] and arm["programs"]["train_step"]["available"] > 2**30
    for wrong in ("v5q:1x1", "v5e", "v5e:0x", "cuda", "v5e:1x1x1x1"):
        with pytest.raises(UserError, match=f"--target={wrong}: must be cpu, gpu"):
            plan.main(["--sweep=x", f"--target={wrong}"])
    with pytest.raises(UserError, match="'prefil' is not one of train_step, decode"):
        plan.main(["--sweep=x", "--programs=decode,prefil"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="make setup EXTRAS=dev,tpu"):
        targets.open_target("v5e:1x1")
    with pytest.raises(UserError, match="make setup EXTRAS=dev,plan-gpu"):
        targets.open_target("h100:1")


def test_gpus_of_one_host_are_targets():
    for right in ("h100:1", "h100:8", "h200:1", "a100:8", "b200:8"):
        targets.check(right)
    for wrong in ("h100", "h100:0", "h100:9", "h10:1", "h100:1x1"):
        with pytest.raises(UserError, match=f"--target={wrong}: must be .* or 1 to 8 GPUs of one host such as a100:1"):
            targets.check(wrong)


def test_the_roofline_is_the_larger_of_both_parts_and_says_which():
    chip = Chip(100.0, 10.0, 1.0, "made up")
    assert Roofline.of(chip, 500.0, 10).seconds == 5.0 and Roofline.of(chip, 500.0, 10).bound_by == "compute"
    assert Roofline.of(chip, 500.0, 100).seconds == 10.0 and Roofline.of(chip, 500.0, 100).bound_by == "memory"
    assert Roofline.of(None, 500.0, 100) is None


def test_a_core_whose_kernel_is_not_in_the_program_is_named():
    text = """ENTRY %main (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %call = f32[2]{0} custom-call(%p), custom_call_target="__cudnn$fmhaSoftmax"
}
"""
    kernels = hlo.count(text).kernels
    assert kernels == {"__cudnn$fmhaSoftmax": 1}
    assert hlo.missing("cudnn", kernels, "gpu") == []
    assert hlo.missing("cudnn+blocked", hlo.count(text.replace("__cudnn$fmhaSoftmax", "else")).kernels, "gpu") == [
        "cudnn"
    ]


def test_only_programs_of_devices_that_are_here_are_kept(monkeypatch):
    kept = []
    monkeypatch.setattr("training.runtime.compilation.enable_cache", lambda: kept.append(True))
    plan._remember(replace(CPU, name="v5e:1x1", platform="tpu"))
    assert not kept, "JAX cannot read them again, and says so of each"
    plan._remember(CPU)
    assert kept


def test_a_gpu_that_is_not_here_is_refused():
    with pytest.raises(UserError, match="--target=gpu: JAX sees no GPU here"):
        targets.open_target("gpu")


def test_sizes_are_told_in_named_units():
    assert [table.size(n) for n in (None, 0, 1023, 1024, 5 * 2**20, 3 * 2**40)] == [
        "", "0 B", "1023 B", "1.0 KiB", "5.0 MiB", "3072.0 GiB"
    ]  # fmt: skip


def test_arms_that_differ_in_their_learning_rate_are_compiled_once(monkeypatch):
    seen = []
    stand_in = programs.Program()
    monkeypatch.setattr(programs, "compiled", lambda config, *_: seen.append(config) or stand_in)
    select = dict(field="optimizer.learning_rate", values=[0.1, 0.2, 0.3], seeds=[9])
    given = dict(base="configs/tiny.py", axes=[{"optimizer.beta2": [0.9, 0.99]}], select=select)
    lines = plan.plan(expand.expand(given, file=Path("s.py")), CPU, ["train_step"])
    assert len(lines) == 2 * 3 + 2 and len(seen) == 2, "beta2 is part of the program, the rate is not"


def test_the_stage_of_the_most_tokens_is_what_must_fit():
    config = tiny(data__curriculum=({"steps": 10, "length": 4, "batch_size": 40}, {"steps": 5, "length": 8}))
    largest = plan.with_largest_stage(config)
    assert (largest.data.length, largest.data.batch_size) == (4, 40) and config.data.batch_size == 2
