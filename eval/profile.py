"""python -m eval.profile: where the time of a run's training step, prefill and decoding goes, by part of the model.

    python -m eval.profile --workdir=runs/tiny --config.eval.throughput.length=1024

It is `python -m eval.run --evals=profile` with its result as a table: DIR/eval/profile.json is written. The shapes are
those of `eval.throughput`. docs/cost.md defines the parts and explains how a trace is read.
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m eval.profile")

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from configs import cli
from eval import options
from eval import run as command
from eval.cost.scopes import DIRECTIONS
from eval.progress import Reporter
from training.runtime import compilation


def show(results: dict[str, Any], console: Console) -> None:
    """Prints the shares, with parts as rows and programs as columns."""
    columns = [
        (name, direction)
        for name, part in results["programs"].items()
        for direction in DIRECTIONS
        if any(entry["direction"] == direction for entry in part["by_direction"])
    ]
    table = Table(box=None, pad_edge=False)
    table.add_column("share of the time")
    for name, direction in columns:
        table.add_column(f"{name}\n{direction}", justify="right")
    for part, label in results["parts"].items():
        entries = {
            (name, entry["direction"]): entry["share"]
            for name, program in results["programs"].items()
            for entry in program["by_direction"]
            if entry["part"] == part
        }
        if entries:
            table.add_row(label, *(f"{entries[key]:.1%}" if key in entries else "" for key in columns))
    console.print(table)
    console.print(results["answer"])


def main(argv: Sequence[str]) -> int:
    """The command."""
    overrides, rest = cli.split_overrides(argv)
    args = options.profile(__doc__ or "").parse_args(rest)
    settings = command.eval_settings(overrides)
    compilation.enable_cache()
    result = command.evaluate(args.workdir, ["profile"], settings, Reporter())["profile"]
    show(result, Console(width=None if Console().is_terminal else 120))
    return 0


if __name__ == "__main__":
    cli.main(main)
