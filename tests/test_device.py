"""The report of a device: parts survive one another, what is wrong comes first, and it needs neither Grain nor TFDS."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.device import __main__ as main
from bench.device import parts, peer, report
from configs.errors import UserError

CHECKOUT = Path(__file__).resolve().parents[1]


def part(name, code):
    return main.Part(name, lambda out: [sys.executable, "-c", code, str(out)], 1.0)


WRITES = "import json, sys; open(sys.argv[1], 'w').write(json.dumps({}))"


def test_a_part_that_fails_hangs_or_writes_nonsense_leaves_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(main, "LEAST", 0.5)
    saved = WRITES.format({"wrong": ["half: a | difference"], "programs": []})
    todo = [
        part("raises", "raise SystemExit('the kernel is gone')"),
        part("crashes", "import os, signal; os.kill(os.getpid(), signal.SIGABRT)"),
        part("hangs", saved + "; import time; sys.stdout.close(); time.sleep(600)"),
        part("nonsense", "import sys; open(sys.argv[1], 'w').write('{')"),
        part("fine", WRITES.format({"wrong": [], "figure": 7})),
    ]
    results: dict = {}
    main.run_all(results, todo, tmp_path, time.monotonic() + 15, lambda line: None)
    status = {name: one["status"] for name, one in results.items()}
    assert status == {"raises": "failed", "crashes": "failed", "hangs": "timeout", "nonsense": "failed", "fine": "done"}
    content = json.loads((tmp_path / "device.json").read_text())
    assert next(iter(content)) == "wrong" and content["parts"]["fine"]["figure"] == 7
    message = "\n".join(content["wrong"])
    assert "the kernel is gone" in message and "SIGABRT" in message and "hangs: took more than" in message
    assert "half: a | difference" in message  # what a part had saved when its time ended
    lines = (tmp_path / "device.md").read_text().splitlines()
    assert lines[0] == "# unknown device: 5 wrong" and "the kernel is gone" in lines[2]


def test_parts_without_time_are_told_and_no_fault(tmp_path):
    results: dict = {}
    main.run_all(results, [part("a", WRITES.format({"wrong": []}))] * 1, tmp_path, time.monotonic() + 30, print)
    late = [part("b", WRITES.format({"wrong": []})), part("c", "raise SystemExit(1)")]
    main.run_all(results, late, tmp_path, time.monotonic() - 1, print)
    assert results["c"]["status"] == "not run" and report.not_run(results) == ["c: no time was left"]
    assert not report.wrong(results)


def trained(**changes):
    memory = {"compiled": 100, "measured": 110, "before": 0}
    return {"losses": [2.0, 1.0], "mfu": 0.6, "memory": memory} | changes


@pytest.mark.parametrize("changes, message", [
    ({}, None),
    ({"mfu": None, "memory": {"compiled": 100, "measured": None, "before": None}}, None),
    ({"losses": [2.0, float("nan")]}, "not finite at step 2"),
    ({"losses": [2.0, 2.0]}, "does not fall"),
    ({"mfu": 0.3}, "30% MFU"),
    ({"memory": {"compiled": 2**30, "measured": 2**31, "before": 0}}, "2.00 GiB measured, 1.00 compiled"),
])  # fmt: skip
def test_what_is_wrong_in_training(changes, message):
    result = parts._wrong_in_training("preset", trained(**changes))
    assert len(result) == (message is not None) and (message is None or message in result[0])


def test_a_peer_has_the_presets_shape():
    gpt2, llama = (parts.case(name, tiny=False) for name in parts.PRESETS)
    assert (gpt2.family, gpt2.width, gpt2.layers, gpt2.vocab, gpt2.batch, gpt2.length) == (
        "gpt2", 768, 12, 50304, 12, 1024)  # fmt: skip
    assert (llama.family, llama.mlp, llama.batch, llama.length, llama.dtype) == ("llama", 2816, 8, 2048, "bfloat16")
    decoding = parts.case("llama_350m", False, "decode", 8)
    assert (decoding.batch, decoding.length, decoding.new) == (8, 512, 64)


def test_without_pytorch_the_peer_says_so(monkeypatch):
    monkeypatch.setattr(peer.importlib.util, "find_spec", lambda name: None)
    result = peer.measured({})
    assert "torch and transformers not installed" in result["not_run"] and not result["wrong"]


@pytest.mark.parametrize("given, message", [
    (["--minutes=0"], "--minutes=0: must be above 0"),
    (["--only=equivalense"], "is not a part; did you mean equivalence"),
    (["--torch-python=/no/python"], "cannot be run"),
    (["--out=tests/test_device.py"], "cannot be created"),
])  # fmt: skip
def test_bad_input_is_one_line(given, message):
    with pytest.raises(UserError, match=message):
        main.main(given)


# What a device's environment may lack; docs/accelerators.md lists what must be carried.
ABSENT = ("grain", "tensorflow_datasets", "altair", "tokenizers", "tensorflow", "torch", "wandb", "array_record")


@pytest.mark.slow
def test_everything_runs_on_a_cpu_without_grain_or_tfds(tmp_path):
    """Minutes: every part in a process of its own, at the sizes of a CPU."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nfor name in {ABSENT!r}:\n    sys.modules[name] = None\n")
    env = {**dict(__import__("os").environ), "PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "bench.device", f"--out={tmp_path / 'out'}", "--minutes=30", "--tiny"]
    done = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=1800)
    content = json.loads((tmp_path / "out/device.json").read_text())
    assert content["wrong"] == [] and done.returncode == 0, done.stdout
    assert {name: one["status"] for name, one in content["parts"].items()} == dict.fromkeys(content["parts"], "done")
    assert set(content["parts"]) >= set(parts.PARTS)
    result = content["parts"]
    assert {row["dtype"] for row in result["equivalence"]["rows"]} == {"float32", "bfloat16"}
    assert {row["what"] for row in result["equivalence"]["rows"] if row["reason"] is None} >= {
        "core blocked", "core xla", "core splash", "core flash"}  # fmt: skip
    for name in parts.PRESETS:
        training, decoding = result[f"train {name}"], result[f"decode {name}"]
        assert training["losses"][-1] < training["losses"][0] and training["memory"]["compiled"] > 0
        assert [one["rows"] for one in decoding["programs"]] == [1, 1, 8, 8, 64, 64]
    assert [one["runs"] for one in result["packs"]["packs"]] == [1, 8, 32]
    assert done.stdout.startswith("# cpu (cpu): nothing is wrong")
