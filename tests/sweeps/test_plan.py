"""What arms cost: by formula, as compiled, and added up over the budget."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from configs import cli, validate
from configs.errors import UserError
from sweeps import expand, plan

CHECKOUT = Path(__file__).resolve().parents[2]


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
    return plan.plan(expand.expand(given, file=Path("s.py")))


def test_formulas_and_compiled_memory_of_every_arm(lines):
    assert [line.arm for line in lines] == ["kv1", "kv4"]
    mqa, mha = lines
    assert mha.kv_bytes_per_token == 4 * mqa.kv_bytes_per_token == 2 * 1 * 4 * 4 * 4
    assert mha.parameters["total"] - mqa.parameters["total"] == 2 * 16 * (16 - 4)
    for line in lines:
        assert not line.error
        memory = line.memory
        # Parameters and two moments go in, float32, beside the batch and some scalars; and they are donated.
        state = 3 * 4 * line.parameters["total"]
        assert state <= memory["argument"] <= state + 3 * 4 * 2 * 8 + 64
        assert memory["alias"] >= state
        assert memory["peak"] == memory["argument"] + memory["output"] + memory["temp"] - memory["alias"]
        assert line.tokens == 10 * 2 * 8 and line.flops == line.tokens * line.flops_per_token["value"]
    assert plan.total(lines).startswith("2 arms, 6 runs; 960 tokens")


def test_nothing_is_allocated():
    before = len(jax.live_arrays())
    sweep = expand.expand(dict(base="configs/tiny.py", fixed={"model.num_layers": 1}), file=Path("s.py"))
    (line,) = plan.plan(sweep)
    assert line.memory and len(jax.live_arrays()) == before


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


def test_an_arm_that_does_not_compile_is_named_and_stops_nothing(lines, monkeypatch, capsys):
    from training import step

    whole = step.lower

    def broken(config):
        if config.model.num_kv_heads == 1:
            raise RuntimeError("RESOURCE_EXHAUSTED: too large\nmore")
        return whole(config)

    monkeypatch.setattr(step, "lower", broken)
    monkeypatch.setattr(plan, "use_cpu", lambda: None)
    file = "configs/sweeps/kv_groups.py"
    small = ["--config.model.width=16", "--config.model.num_layers=1", "--config.data.length=8"]
    assert plan.main([f"--sweep={file}", *small]) == 1
    told = capsys.readouterr().out.splitlines()
    assert "kv1: the training step does not compile: RuntimeError: RESOURCE_EXHAUSTED: too large" in told[5:]
    assert [line.split(":")[0] for line in told if "kv8's" in line] == ["kv1", "kv2", "kv4"]
    assert [line.split()[0] for line in told[1:5]] == ["kv1", "kv2", "kv4", "kv8"]
    assert "KiB" in told[2] or "MiB" in told[2]


def test_the_command_writes_json_and_refuses_other_targets(tmp_path):
    (tmp_path / "s.py").write_text("def get_sweep():\n    return dict(base='configs/tiny.py', arm='only')\n")
    out = tmp_path / "plan.json"
    command = [sys.executable, "-m", "sweeps.plan", f"--sweep={tmp_path / 's.py'}", "--config.model.num_layers=1"]
    done = subprocess.run([*command, f"--json={out}"], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (arm,) = json.loads(out.read_text())["arms"]
    assert arm["arm"] == "only" and arm["memory"]["peak"] > 0 and arm["parameters"]["total"] > 0
    with pytest.raises(UserError, match="--target=v5e:1x1: must be cpu"):
        plan.main(["--sweep=x", "--target=v5e:1x1"])


def test_sizes_are_told_in_named_units():
    assert [plan.size(n) for n in (None, 0, 1023, 1024, 5 * 2**20, 3 * 2**40)] == [
        "", "0 B", "1023 B", "1.0 KiB", "5.0 MiB", "3072.0 GiB"
    ]  # fmt: skip


def test_arms_that_differ_in_their_learning_rate_are_compiled_once(monkeypatch):
    seen = []
    monkeypatch.setattr(plan, "_compiled", lambda config: (seen.append(config.optimizer.learning_rate) or {}, ""))
    select = dict(field="optimizer.learning_rate", values=[0.1, 0.2, 0.3], seeds=[9])
    given = dict(base="configs/tiny.py", axes=[{"optimizer.beta2": [0.9, 0.99]}], select=select)
    lines = plan.plan(expand.expand(given, file=Path("s.py")))
    assert len(lines) == 2 * 3 + 2 and len(seen) == 2, "beta2 is part of the program, the rate is not"
