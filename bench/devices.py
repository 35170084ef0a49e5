"""python -m bench.devices [--steps=12]: one run on every mesh, and each one's checkpoint resumed on every other.

The same seed and the same batches are trained on one device, on eight simulated ones in several meshes, and on two
processes of two. It prints how far the losses are from one device's, and whether each mesh resumes another's checkpoint
at half-way to the same losses. Rows have different numbers of scored tokens, and dropout is on.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
# Every kind of axis that a table divides, KV heads that some meshes must replicate, and rows of unequal weight.
SETTINGS = {
    "model.width": 32, "model.num_layers": 2, "model.num_heads": 8, "model.num_kv_heads": 2, "model.mlp_width": 64,
    "model.dropout": 0.1, "data.length": 64, "data.batch_size": 8, "data.packing": "segments",
    "data.weights.mqar": 1.0, "optimizer.learning_rate": 1e-2, "optimizer.warmup_steps": 2, "eval.tokens": 2048,
    "eval.batch_size": 6, "log.every_steps": 1, "log.tensorboard": False, "checkpoint.keep": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A mesh over `processes` processes of `devices` devices each."""

    name: str
    mesh: Mapping[str, int] = field(default_factory=dict)
    processes: int = 1
    devices: int = 8


CELLS = (
    Cell("1 device"),
    Cell("data 8", {"data": 8}),
    Cell("fsdp 8", {"fsdp": 8}),
    Cell("tensor 8", {"tensor": 8}),
    Cell("tensor 4", {"tensor": 4}),
    Cell("tensor 2", {"tensor": 2}),
    Cell("data 2, fsdp 2, tensor 2", {"data": 2, "fsdp": 2, "tensor": 2}),
    Cell("data 2, context 4", {"data": 2, "context": 4}),
    Cell("2 processes: data 2, fsdp 2", {"data": 2, "fsdp": 2}, 2, 2),
    Cell("2 processes: tensor 4", {"tensor": 4}, 2, 2),
)


def config_of(cell: Cell, steps: int, settings: Mapping[str, Any]) -> Any:
    """Returns a cell's config."""
    from configs import base, cli

    config = base.get_config()
    given = {**SETTINGS, **settings, "budget.amount": float(steps), "checkpoint.every_steps": steps // 2}
    cli.apply(config, {**given, **{f"mesh.{axis}": size for axis, size in cell.mesh.items()}})
    return config


def worker(path: Path) -> None:
    """Trains the tasks of a file, [{"workdir", "mesh"}, ...], in turn in this process."""
    from training.runtime import distributed

    distributed.initialise()
    from training.loop.trainer import train

    plan = json.loads(path.read_text())
    for task in plan["tasks"]:
        config = config_of(Cell("", task["mesh"]), plan["steps"], plan["settings"])
        result = train(config, task["workdir"], quiet=True)
        if result["status"] != "done":
            raise SystemExit(f"{task['workdir']}: {result['status']}: {result['error']}")


def free_port() -> int:
    """Returns a free port."""
    with socket.socket() as result:
        result.bind(("127.0.0.1", 0))
        return int(result.getsockname()[1])


def environments(processes: int, devices: int) -> list[dict[str, str]]:
    """Returns the environment of each of several processes of simulated devices that are to connect."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "ABLAX_CLUSTER": "none"}
    if processes == 1:
        return [env]
    env |= {"ABLAX_CLUSTER": "address", "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}"}
    env["JAX_NUM_PROCESSES"] = str(processes)
    return [{**env, "JAX_PROCESS_ID": str(index)} for index in range(processes)]


def trained(folder: Path, tasks: Sequence[tuple[Path, Cell]], steps: int, settings: Mapping[str, Any]) -> None:
    """Trains run directories on their cells, all of one kind of process in one start.

    Raises:
        RuntimeError: one of the processes failed.
    """
    for processes, devices in sorted({(cell.processes, cell.devices) for _, cell in tasks}):
        own = [(run, cell) for run, cell in tasks if (cell.processes, cell.devices) == (processes, devices)]
        path = folder / f"tasks-{processes}.json"
        named = [{"workdir": str(run), "mesh": dict(cell.mesh)} for run, cell in own]
        path.write_text(json.dumps({"steps": steps, "settings": dict(settings), "tasks": named}))
        command = [sys.executable, "-m", "bench.devices", "--worker", str(path)]
        logs = [folder / f"tasks-{processes}.{index}.log" for index in range(processes)]
        with ExitStack() as files:
            opened = [files.enter_context(log.open("w")) for log in logs]
            started = [
                subprocess.Popen(command, cwd=CHECKOUT, env=env, stdout=file, stderr=subprocess.STDOUT)
                for env, file in zip(environments(processes, devices), opened, strict=True)
            ]
            codes = [process.wait() for process in started]
        if any(codes):
            raise RuntimeError("\n".join(log.read_text()[-3000:] for log in logs))


def losses(run: Path) -> list[float]:
    """Returns a run's training losses by step, and its validation loss."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [*(line["train_loss"] for line in lines), lines[-1]["val_loss"]]


def half_way(run: Path, to: Path, steps: int) -> Path:
    """Copies a run with only its checkpoint at half-way, as a kill would have left it."""
    shutil.copytree(run, to)
    shutil.rmtree(to / "checkpoints" / str(steps))
    record = json.loads((to / "run.json").read_text())
    (to / "run.json").write_text(json.dumps(record | {"status": "running"}))
    return to


def measured(
    folder: Path, cells: Sequence[Cell] = CELLS, steps: int = 12, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns {"trace": {cell: largest difference}, "restored": {from: {on: largest difference}}, "losses": of one}.

    Differences are relative to the losses of the first cell, which trained without interruption.
    """
    settings = settings or {}
    runs = {cell.name: folder / f"cell{index}" for index, cell in enumerate(cells)}
    trained(folder, [(runs[cell.name], cell) for cell in cells], steps, settings)
    expected = losses(runs[cells[0].name])
    again = {
        (one.name, other.name): (half_way(runs[one.name], folder / f"{i}-on-{j}", steps), other)
        for i, one in enumerate(cells)
        for j, other in enumerate(cells)
    }
    trained(folder, list(again.values()), steps, settings)

    def apart(run: Path) -> float:
        return max(abs(a - b) / abs(b) for a, b in zip(losses(run), expected, strict=True))

    restored = {one.name: {other.name: apart(again[one.name, other.name][0]) for other in cells} for one in cells}
    return {"trace": {name: apart(run) for name, run in runs.items()}, "restored": restored, "losses": expected}


def table(results: Mapping[str, Any]) -> Iterable[str]:
    """Yields the lines of a Markdown table."""
    names = list(results["trace"])
    yield "| largest relative difference | its own trace | " + " | ".join(f"on {name}" for name in names) + " |"
    yield "|---" * (len(names) + 2) + "|"
    for name in names:
        cells = [f"{results['restored'][name][other]:.0e}" for other in names]
        yield f"| **{name}** | {results['trace'][name]:.0e} | " + " | ".join(cells) + " |"


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="of each run; an even number")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return
    with tempfile.TemporaryDirectory() as folder:
        result = measured(Path(folder), steps=arguments.steps)
    print(f"losses on 1 device: {', '.join(f'{loss:.6f}' for loss in result['losses'])} (the last: validation)")
    print("Rows: the mesh that saved; columns: its own uninterrupted run, then the mesh that resumed from half-way.")
    print("\n".join(table(result)))
    worst = max(max(result["trace"].values()), *(max(row.values()) for row in result["restored"].values()))
    print(f"largest of all: {worst:.1e}")


if __name__ == "__main__":
    main()
