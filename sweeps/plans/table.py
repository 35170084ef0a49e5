"""The printed plan: the table of arms, the compiler's figures for each program, and what does not fit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweeps.display import aligned
from sweeps.plans.targets import Target

if TYPE_CHECKING:
    from sweeps.plans.line import Line
    from sweeps.plans.programs import Program

ARMS = ("arm", "runs", "parameters", "FLOPs/token", "KV bytes/token", "FLOPs/run", "arguments", "temp", "peak", "fits")
DETAILS = ("arm", "program", "attention", "peak", "moved", "at least", "cycles", "by part", "kernels", "collectives")
SHOWN = 4  # parts of the model whose cycles are shown


def size(number: float | None) -> str:
    """Returns bytes in binary units."""
    if number is None:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError


def cells(line: "Line") -> tuple[str, ...]:
    """Returns an arm's cells, as ARMS; memory is that of its first program."""
    first = next(iter(line.programs.values()))
    return (
        line.arm,
        str(line.runs),
        f"{line.parameters['total']:,}",
        f"{line.flops_per_token['value']:,.0f}",
        f"{line.kv_bytes_per_token:,}",
        "" if line.flops is None else f"{line.flops:.3g}",
        *(size(first.memory.get(name)) for name in ("argument", "temp", "peak")),
        fits(line),
    )


def fits(line: "Line") -> str:
    """Returns by how much a device's memory exceeds an arm's need, or falls short."""
    programs = line.programs.values()
    if any(program.error for program in programs):
        return "does not compile"
    if not all(program.available for program in programs):
        return "unknown"
    spare = min(program.available - program.needed for program in programs)
    return f"no: {size(-spare)} too much" if spare < 0 else f"yes: {size(spare)} left"


def details(line: "Line") -> list[tuple[str, ...]]:
    """Returns the cells of an arm's programs that compile, as DETAILS."""
    return [
        (
            line.arm,
            name.replace("_", " "),
            attention(program),
            size(program.memory["peak"]),
            size(program.bytes_accessed),
            bound(program),
            f"{sum(program.cycles.values()):,}" if program.cycles else "",
            shares(program),
            ", ".join(f"{often} x {kernel}" for kernel, often in program.kernels.items()),
            ", ".join(f"{one['count']} x {one['kind']} ({size(one['bytes'])})" for one in program.collectives),
        )
        for name, program in line.programs.items()
        if program.memory
    ]


def attention(program: "Program") -> str:
    """Returns the attention kernels of a program, and requested ones that are missing."""
    return f"{program.kernel} (no kernel of {program.missing})".strip() if program.missing else program.kernel


def bound(program: "Program") -> str:
    """Returns the minimum time of a program by its chip's published rates, and what limits it."""
    if program.roofline is None:
        return ""
    return f"{1000 * program.roofline.seconds:.3g} ms ({program.roofline.bound_by})"


def shares(program: "Program") -> str:
    """Returns the parts of the model with the most estimated cycles."""
    total = sum(program.cycles.values())
    most = sorted(program.cycles.items(), key=lambda item: -item[1])[:SHOWN]
    return ", ".join(f"{part.replace('_', ' ')} {100 * cycles / total:.0f}%" for part, cycles in most if total)


def verdicts(line: "Line", target: Target) -> list[str]:
    """Returns a line for each program of an arm that does not fit or compile."""
    messages = []
    for name, program in line.programs.items():
        what = f"{line.arm}: the {name.replace('_', ' ')}"
        if program.error:
            messages.append(f"{what} does not compile: {program.error}")
        elif not program.fits:
            over = program.needed - program.available
            messages.append(
                f"{what} does not fit: it needs {size(program.needed)}, and a device of {target.name} has "
                f"{size(program.available)}: {size(over)} too much"
            )
    return messages


def total(lines: "Sequence[Line]") -> str:
    """Returns the total of the sweep in words."""
    runs = sum(line.runs for line in lines)
    text = f"{len(lines)} arms, {runs} runs"
    known = [(line.runs * line.tokens, line.runs * line.flops) for line in lines if line.tokens and line.flops]
    if len(known) == len(lines):
        tokens, flops = (sum(part) for part in zip(*known, strict=True))
        text += f"; {tokens:,} tokens and {flops:.3g} FLOPs of training in total"
    return text


def hours(line: "Line") -> str:
    """Returns the training time of one run at the assumed MFU, in words."""
    message = line.hours_at_mfu or {}
    return f"{line.arm}: about {message['hours']:.3g} hours of training per run at {100 * message['mfu']:.0f}% MFU"


def show(lines: "Sequence[Line]", target: Target, console: Console) -> None:
    """Prints the plan: fitted to a terminal, elsewhere as plain lines that are not truncated."""
    _table(ARMS, [cells(line) for line in lines], console)
    if target.platform != "cpu":
        print()
        _table(DETAILS, [row for line in lines for row in details(line)], console)
    for line in lines:
        for one in line.match:
            print(f"{line.arm}: {one['words']}")
        print("\n".join(verdicts(line, target)), end="\n" if verdicts(line, target) else "")
    if any(line.hours_at_mfu for line in lines):
        print("\n".join(hours(line) for line in lines if line.hours_at_mfu))
        print("hours are an estimate: FLOPs by formula over the assumed MFU of the chip's dense bfloat16 peak; measure")
    if target.chip is not None:
        print(
            "at least: the larger of FLOPs (by formula) over the chip's dense bfloat16 peak and bytes moved over its "
            f"memory bandwidth; a bound, not an estimate ({target.chip.source})"
        )
    memory = f", {size(target.capacity)} of memory each" if target.capacity else ""
    print(f"{target.name} ({target.kind}{memory}): {total(lines)}")


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]], console: Console) -> None:
    if not console.is_terminal:
        print("\n".join(aligned(rows, columns)))
        return
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in ("arm", *DETAILS) else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
