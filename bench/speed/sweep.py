"""The share of a sweep's wall time in training steps and evaluation, and the compilations of an arm's second seed.

`configs/sweeps/head_count.py` runs at the size of `configs/tiny.py`, for its own 2,000 steps and three seeds; two of
its arms, or all. The rest of the time is start-up, compilation (with the user's cache, so the first call compiles more
than later ones), checkpoints, files, waiting for data, and the report.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.speed.peers import CHECKOUT
from sweeps.execution.driver import TIMED

TINY = {"model.width": 64, "model.num_layers": 2, "data.length": 64, "data.batch_size": 16}
ARMS = (
    "from configs.sweeps import head_count\n\n\n"
    "def get_sweep():\n"
    '    return head_count.get_sweep() | {"axes": [{"model.num_heads": [2, 4]}]}\n'
)
COMPILED = re.compile(r"Finished XLA compilation of .* in ([\d.e-]+) sec")


def measure(workers: int, *, whole: bool = False) -> dict[str, Any]:
    """Runs the sweep and returns its shares.

    Args:
        workers: processes that train.
        whole: all five arms, not two.

    Returns:
        `share` of the workers' wall time in steps and evaluation (without compiling), `wall` seconds, the seconds of
            `train`, `evaluation` and `compile` over all workers, and `second_seed`, the programs compiled by runs whose
            arm had run before. `reserved`: seconds that workers were idle while another ran timed evaluations alone,
            and `share_reserved` the share with those counted as evaluation.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, file = Path(folder) / "sweep", Path(folder) / "two_arms.py"
        file.write_text(ARMS)
        sweep = "configs/sweeps/head_count.py" if whole else file
        command = [sys.executable, "-m", "sweeps.launch", f"--sweep={sweep}", f"--out={out}"]
        command += [f"--workers={workers}", *(f"--config.{name}={value}" for name, value in TINY.items())]
        env = {**os.environ, "JAX_LOG_COMPILES": "1"}
        began = time.perf_counter()
        done = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True)
        wall = time.perf_counter() - began
        if done.returncode:
            raise RuntimeError(f"the sweep failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
        return {"wall": wall, "workers": workers, **_shares(out, wall, workers)}


def _shares(out: Path, wall: float, workers: int) -> dict[str, Any]:
    train = evaluation = compiling = reserved = 0.0
    second_seed = 0
    seen: set[str] = set()
    for run, values in _runs(out):
        text = (run / "log.txt").read_text(encoding="utf-8", errors="replace")
        compiled = [float(seconds) for seconds in COMPILED.findall(text)]
        spent = values["wall_time"]
        each = {path.stem: json.loads(path.read_text())["seconds"] for path in (run / "eval").glob("*.json")}
        evals = sum(each.values())
        reserved += sum(each.get(name, 0.0) for name in TIMED) * (workers - 1)
        train += spent["train"]
        # All compilation except the training step's happened within evaluations.
        evaluation += spent["eval"] + evals - max(0.0, sum(compiled) - spent["compile"])
        compiling += sum(compiled)
        arm = run.parent.name
        second_seed += len(compiled) if arm in seen else 0
        seen.add(arm)
    total = wall * workers
    return {
        "share": (train + evaluation) / total,
        "share_reserved": (train + evaluation + reserved) / total,
        "train": train,
        "evaluation": evaluation,
        "reserved": reserved,
        "compile": compiling,
        "second_seed": second_seed,
    }


def _runs(out: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields run directories and their run.json in order of their start."""
    results = [(path.parent, json.loads(path.read_text())) for path in out.glob("runs/*/*/run.json")]
    yield from sorted(results, key=lambda one: one[1]["started"])
