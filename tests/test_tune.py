"""Block sizes of the fused kernel, measured: the fastest is written, and what does not compile is left out."""

import json
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from bench import tune
from configs.errors import UserError
from eval.progress import Quiet
from models.kernels.fused import tiles
from models.kernels.fused.tiles import PASSES, Size, Tiles


def entry(device: str, width: int, side: int) -> dict[str, Any]:
    size = dict(q=side, k=side, warps=4, stages=1)
    return {"device": device, "dtype": "bfloat16", "width": width, **dict.fromkeys(PASSES, size)}


def test_the_fastest_that_compiles_is_chosen_for_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    best = {"forward": Size(64, 128, 8, 3), "queries": Size(32, 16, 4, 1), "keys": Size(16, 64, 4, 2)}

    def seconds(call: Any, name: str, arrays: Any) -> float:
        size = getattr(call.tiles, name)
        if size.q == 128:
            raise RuntimeError("out of shared memory")
        return 1.0 if size == best[name] else 2.0

    monkeypatch.setattr(tune, "seconds", seconds)
    monkeypatch.setattr(tune.Shape, "arrays", lambda *given: {})
    until = time.monotonic() + 60
    found, measured = tune.tuned("gpu", jnp.bfloat16, 64, tune.Shape(), until, Quiet(), interpret=True, few=None)
    assert found == Tiles(**best)
    assert all(measured[name]["failed"] > 0 and measured[name]["tried"] > 10 for name in PASSES)
    over = tune.tuned("gpu", jnp.bfloat16, 64, tune.Shape(), time.monotonic(), Quiet(), interpret=True, few=None)[1]
    assert all(over[name]["tried"] == 1 and over[name]["not reached"] > 10 for name in PASSES)


def test_a_table_keeps_other_devices_and_the_kernel_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiles.json"
    tune.written(path, [entry("A", 64, 32), entry("B", 64, 64)])
    tune.written(path, [entry("A", 64, 16), entry("A", 128, 64)])
    assert [(one["device"], one["width"], one["forward"]["q"]) for one in json.loads(path.read_text())["entries"]] == [
        ("A", 64, 16), ("A", 128, 64), ("B", 64, 64),
    ]  # fmt: skip
    monkeypatch.setattr(tiles, "TABLE", path)
    tiles.measured.cache_clear()
    assert tiles.tiles_for("gpu", "A", jnp.bfloat16, 64, 1024, 1024).forward == Size(16, 16, 4, 1)
    assert tiles.tiles_for("gpu", "A", jnp.float32, 64, 1024, 1024) == tiles.default("gpu", jnp.float32, 64)
    tiles.measured.cache_clear()
    path.write_text("{}")
    with pytest.raises(UserError, match="not a table of block sizes"):
        tune.written(path, [])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "--tiny tests the command"),
        (["--tiny", "--head_dims=x"], "--head_dims=x: must be whole numbers"),
        (["--tiny", "--dtypes=int8"], "--dtypes: 'int8' must be"),
        (["--heads=6", "--kv_heads=4"], "--kv_heads=4: must divide --heads=6"),
        (["--batch=0"], "--batch=0: must be 1 or more"),
    ],
)
def test_bad_input_is_one_line(given: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tune.main(given)


def test_the_command_runs_tiny(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiles.json"
    assert tune.main(["--tiny", f"--out={path}", "--dtypes=float32", "--head_dims=16"]) == 0
    assert set(tiles.read(json.loads(path.read_text()))) == {("cpu", "float32", 16)}
    assert capsys.readouterr().out.count("2 tried, 0 failed") == 3
