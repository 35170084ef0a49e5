"""python -m sweeps.plan: what every arm of a sweep costs, before anything is spent.

Parameters, FLOPs and KV bytes a token by formula; the memory of the training step as the compiler lays it out, from
shapes alone, so that nothing is allocated and no data is read (unless only the tokenizer knows the vocabulary).
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from configs import cli, fields
from configs.errors import UserError
from sweeps import expand, match
from sweeps.display import aligned
from sweeps.expand import Arm, Study, Sweep

TARGETS = ("cpu",)
SCHEMA = 1


@dataclass(frozen=True)
class Line:
    """What one arm costs. Bytes and FLOPs are exact counts; `memory` is empty and `error` told where it won't compile.

    Attributes:
        memory: bytes of the compiled training step at the main setting's batch: argument, output, temp, alias, and
            peak, what is alive at once (arguments, outputs and temporaries, donated buffers counted once).
        tokens, flops: of one run's training, where the budget tells them.
        runs: how many seeds.
        match: how near the arm came to what the sweep file has it match, as sweep.json holds it.
    """

    study: str
    arm: str
    runs: int
    parameters: dict[str, int]
    flops_per_token: dict[str, Any]
    kv_bytes_per_token: int
    tokens: int | None
    flops: float | None
    memory: dict[str, int]
    compile_seconds: float
    error: str = ""
    match: tuple[dict[str, Any], ...] = ()


Compiled = tuple[dict[str, int], str]  # bytes by name; the error of what does not compile


def cost(study: Study, arm: Arm, known: dict[str, Compiled] | None = None) -> Line:
    """Returns what an arm costs, its training step compiled on this machine's CPU.

    Args:
        known: what other arms compiled to, by what decides it; filled here.
    """
    from models import counting

    known = {} if known is None else known
    config = match.with_vocabulary(arm.config)
    element = 2 if config.model.dtype == "bfloat16" else 4
    tokens, flops = budget(config, lambda length: counting.flops_per_token(config.model, length)["value"])
    start = time.perf_counter()
    key = _program(config)
    if key not in known:
        known[key] = _compiled(config)
    memory, error = known[key]
    return Line(
        study=study.name,
        arm=arm.name,
        runs=len(study.seeds),
        parameters=counting.parameters(config.model),
        flops_per_token=counting.flops_per_token(config.model, config.data.length),
        kv_bytes_per_token=counting.kv_bytes_per_token(config.model, element),
        tokens=tokens,
        flops=flops,
        memory=memory,
        compile_seconds=time.perf_counter() - start,
        error=error,
        match=tuple(one.described() for one in arm.matches),
    )


def _program(config: ConfigDict) -> str:
    """Returns what decides the compiled training step: the learning rate is an argument of it."""
    values = {name: value for name, value in fields.flatten(config).items() if name.startswith(("model.", "data."))}
    values |= {name: value for name, value in fields.flatten(config.optimizer).items() if name != "learning_rate"}
    return repr(sorted(values.items()))


def _compiled(config: ConfigDict) -> Compiled:
    from eval import memory as memories
    from training import step

    try:
        return memories.analysis(step.lower(config).compile()) or {}, ""
    except Exception as problem:
        return {}, f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"


def budget(config: ConfigDict, flops_per_token: Callable[[int], float]) -> tuple[int | None, float | None]:
    """Returns (tokens, FLOPs) of a run's training; None for a budget in seconds.

    Stages of the curriculum come first and cost what their own lengths and batches cost.
    """
    kind, left = config.budget.kind, float(config.budget.amount)
    if kind == "seconds":
        return None, None
    tokens, flops = 0.0, 0.0
    for steps, length, batch in stages(config):
        each = batch * length
        price = {"steps": 1.0, "tokens": float(each), "flops": each * flops_per_token(length)}[kind]
        taken = min(left / price, steps)
        left -= taken * price
        tokens += taken * each
        flops += taken * each * flops_per_token(length)
    return round(tokens), flops


def stages(config: ConfigDict) -> Iterator[tuple[float, int, int]]:
    """Yields (steps, length, batch size) of each stage; the main setting is last and has no end."""
    for stage in config.data.curriculum:
        yield stage["steps"], stage["length"], stage.get("batch_size", config.data.batch_size)
    yield float("inf"), config.data.length, config.data.batch_size


def plan(sweep: Sweep, told: Callable[[str], None] = lambda _: None) -> list[Line]:
    """Returns what every arm costs; `told` hears the name of each when it is through."""
    lines: list[Line] = []
    known: dict[str, Compiled] = {}
    for study in sweep.studies:
        for arm in study.arms:
            lines.append(cost(study, arm, known))
            told(arm.name)
    return lines


COLUMNS = ("arm", "runs", "parameters", "FLOPs/token", "KV bytes/token", "FLOPs/run", "arguments", "temp", "peak")


def size(number: float | None) -> str:
    """Returns bytes for people, in binary units by name."""
    if number is None:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError


def cells(line: Line) -> tuple[str, ...]:
    """Returns an arm's cells, as COLUMNS."""
    return (
        line.arm,
        str(line.runs),
        f"{line.parameters['total']:,}",
        f"{line.flops_per_token['value']:,.0f}",
        f"{line.kv_bytes_per_token:,}",
        "" if line.flops is None else f"{line.flops:.3g}",
        *(size(line.memory.get(name)) for name in ("argument", "temp", "peak")),
    )


def total(lines: list[Line]) -> str:
    """Returns the whole sweep in words."""
    runs = sum(line.runs for line in lines)
    text = f"{len(lines)} arms, {runs} runs"
    known = [(line.runs * line.tokens, line.runs * line.flops) for line in lines if line.tokens and line.flops]
    if len(known) == len(lines):
        tokens, flops = (sum(part) for part in zip(*known, strict=True))
        text += f"; {tokens:,} tokens and {flops:.3g} FLOPs of training in all"
    return text


def show(lines: list[Line], console: Console) -> None:
    """Prints the table: on a terminal as wide as that is, elsewhere in plain lines that nothing cuts."""
    rows = [cells(line) for line in lines]
    if console.is_terminal:
        table = Table(box=None, pad_edge=False)
        for name in COLUMNS:
            table.add_column(name, justify="left" if name == "arm" else "right")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
    else:
        print("\n".join(aligned(rows, COLUMNS)))
    for line in lines:
        for one in line.match:
            print(f"{line.arm}: {one['words']}")
        if line.error:
            print(f"{line.arm}: the training step does not compile: {line.error}")
    print(total(lines))


def main(argv: list[str]) -> int:
    """The command."""
    overrides, rest = cli.split_overrides(argv)
    parser = cli.parser(__doc__ or "")
    parser.add_argument("--sweep", required=True, metavar="FILE", help="a sweep file, such as configs/sweeps/demo.py")
    parser.add_argument("--target", default="cpu", help="what to compile for: cpu (the default)")
    parser.add_argument("--json", metavar="FILE", help="also write the plan there")
    parser.epilog = "--config.x=v changes a field of every arm. Exit code 1 where an arm does not compile."
    given = parser.parse_args(rest)
    if given.target not in TARGETS:
        raise UserError(f"--target={given.target}: must be {' or '.join(TARGETS)}")
    sweep = expand.load(given.sweep, overrides)
    use_cpu()
    lines = _with_progress(sweep)
    if given.json:
        _write(Path(given.json), sweep, given.target, lines)
    show(lines, Console(highlight=False))
    return 1 if any(line.error for line in lines) else 0


def use_cpu() -> None:
    """Has JAX compile for the CPU, also on a machine with accelerators, and remember what it compiled."""
    import jax

    from training.compilation import enable_cache

    jax.config.update("jax_platforms", "cpu")
    enable_cache()


def _with_progress(sweep: Sweep) -> list[Line]:
    console = Console(stderr=True)
    arms = sum(len(study.arms) for study in sweep.studies)
    if not console.is_terminal:
        return plan(sweep)
    columns = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=arms)
        return plan(sweep, lambda _: bar.advance(task))


def _write(path: Path, sweep: Sweep, target: str, lines: list[Line]) -> None:
    from training.files import write_json

    try:
        write_json(path, {
            "schema": SCHEMA, "sweep": sweep.name, "target": target, "arms": [vars(line) for line in lines],
        })  # fmt: skip
    except OSError as error:
        raise UserError(f"--json={path}: cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    cli.main(main)
