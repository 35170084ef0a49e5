"""The overhead of a launcher: `python -m bench.small_runs [--runs=500,1000,2000] [--real=60]`.

Sweeps of runs whose training and evaluation only write their files, in processor seconds of the launcher (without its
workers): the first launch, which runs them all, and a second one, which has nothing left to do. Twice as many runs
should take twice as long.

With --real a sweep of that many runs of configs/tiny.py at width 16, 20 updates each, is trained by one worker and
evaluated on 65,536 tokens (`eval.loss_tokens`; the whole validation split takes longer than such a training). What a
run takes beside its updates is opening data, saving, restoring and the loss.
"""

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs import cli, fields
from configs.errors import UserError
from sweeps import launch
from sweeps.execution.driver import Functions
from sweeps.spec import expand
from training.run_directory.files import write_json

SEEDS = 10
SWEEP = """
def get_sweep():
    return dict(name="small", base="configs/tiny.py", axes=[{{"optimizer.learning_rate": {rates}}}],
                arm="a{{optimizer.learning_rate}}", seeds=range({seeds}), evals=["loss"])
"""


def train(config: Any, workdir: str) -> None:
    """Writes the files of a run that is done."""
    folder = Path(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", fields.to_dict(config))
    write_json(
        folder / "run.json",
        {"status": "done", "step": 1, "seed": config.seed, "name": config.name, "budget": config.budget.to_dict(),
         "wall_time": {"total": 0.0}, "updated": "2100-01-01T00:00:00+00:00", "host": os.uname().nodename, "pid": 0},
    )  # fmt: skip


def evaluate(workdir: str, evals: Sequence[str]) -> None:
    """Writes a result for each evaluation."""
    for name in evals:
        (Path(workdir) / "eval").mkdir(exist_ok=True)
        write_json(Path(workdir) / "eval" / f"{name}.json", {"eval": name, "step": 1, "loss": 1.0})


def measured(runs: int, folder: Path) -> tuple[float, float]:
    """Returns the launcher's processor seconds for a first launch of `runs` runs, and for one with nothing to do."""
    rates = [1e-6 * (1 + index) for index in range(runs // SEEDS)]
    (folder / "sweep.py").write_text(SWEEP.format(rates=rates, seeds=SEEDS), encoding="utf-8")
    functions = Functions("bench.small_runs:train", "bench.small_runs:evaluate")
    taken = []
    for _ in range(2):
        start = time.process_time()
        sweep = expand.load(folder / "sweep.py")
        summary = launch.launch(sweep, folder / "out", workers=1, functions=functions)
        taken.append(time.process_time() - start)
        if summary.code:
            raise UserError("bench.small_runs: the sweep failed, see above")
    return taken[0], taken[1]


REAL = """
def get_sweep():
    return dict(name="real", base="configs/tiny.py", axes=[{{"optimizer.learning_rate": {rates}}}],
                fixed={{"model.width": 16, "budget.amount": 20, "eval.every_steps": 0, "checkpoint.every_steps": 0,
                        "log.tensorboard": False, "eval.loss_tokens": 65536}},
                arm="a{{optimizer.learning_rate}}", seeds=range({seeds}), evals=["loss"])
"""


def real(runs: int, folder: Path) -> dict[str, float]:
    """Returns seconds a run of a sweep of real ones: of the worker's processor, of its clock, and of the updates."""
    rates = [1e-3 * (1 + index) for index in range(runs // SEEDS)]
    (folder / "real.py").write_text(REAL.format(rates=rates, seeds=SEEDS), encoding="utf-8")

    def processor() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    start, began = processor(), time.perf_counter()
    if launch.launch(expand.load(folder / "real.py"), folder / "real", workers=1).code:
        raise UserError("bench.small_runs: the sweep failed, see above")
    taken, wall = processor() - start, time.perf_counter() - began
    records = [json.loads(path.read_text()) for path in folder.glob("real/runs/*/seed*/run.json")]
    results = [json.loads(path.read_text()) for path in folder.glob("real/runs/*/seed*/eval/loss.json")]
    trained = sum(one["wall_time"]["train"] + one["wall_time"]["compile"] for one in records)
    sums = {"processor": taken, "wall": wall, "updates": trained, "loss": sum(one["seconds"] for one in results)}
    return {name: value / runs for name, value in sums.items()}


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument("--runs", default="500,1000,2000", help="numbers of runs, multiples of 10 (%(default)s)")
    parser.add_argument("--real", type=int, default=0, help="runs of a sweep of real ones, a multiple of 10; 0: none")
    arguments = parser.parse_args(argv)
    numbers = [int(part) for part in arguments.runs.split(",") if part]
    rows = []
    for runs in numbers:
        with tempfile.TemporaryDirectory() as folder:
            first, idle = measured(runs, Path(folder))
        rows.append((runs, first, idle))
        print(f"{runs:6d} runs: {first:7.2f} s to run them, {idle:6.2f} s with nothing to do", file=sys.stderr)
    print("runs   first launch   a run   idle launch   a run    (processor seconds of the launcher)")
    for runs, first, idle in rows:
        print(f"{runs:5d}  {first:10.2f} s  {1e3 * first / runs:5.1f} ms  {idle:9.2f} s  {1e3 * idle / runs:5.1f} ms")
    if arguments.real:
        with tempfile.TemporaryDirectory() as folder:
            taken = real(arguments.real, Path(folder))
        words = "{processor:.2f} s of the worker's processor, {wall:.2f} s in all, of which updates and compiling"
        print(f"{arguments.real} real runs, each: {words} {{updates:.2f}} s, loss {{loss:.2f}} s".format(**taken))
    return 0


if __name__ == "__main__":
    cli.main(main)
