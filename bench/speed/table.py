"""The bench's table: on the terminal and as Markdown."""

from typing import Any

from rich.table import Table

from bench.speed.peers import OURS
from bench.speed.sweep import TINY

HEADINGS = ("what", "shape", "ours", "of the limit", "peer", "its", "ratio", "target")
MEMORY_TARGET, SHARE_TARGET = 2.2, 0.88


def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """Returns the table's cells; a ratio is our speed over the peer's."""
    collected: list[tuple[str, ...]] = []
    for case in results["shapes"]:
        ours = case["medians"][OURS]
        for peer, theirs in case["medians"].items():
            if peer != OURS:
                target = case["targets"].get(peer)
                limit = _percent(case["limit"]["seconds"] / ours)
                times = (_time(case, ours), limit, peer, _time(case, theirs))
                collected.append(
                    (case["name"], _shape(case), *times, f"{theirs / ours:.2f}", _goal(theirs / ours, target))
                )
    if "memory" in results:
        memory = results["memory"]
        peaks = [f"{memory[length] / 2**20:.0f} MiB" for length in ("8192", "4096")]
        ratio, met = memory["ratio"], memory["ratio"] <= MEMORY_TARGET
        goal = f"<= {MEMORY_TARGET} {_mark(met)}"
        collected.append(
            ("peak memory", "width 256, batch 1", peaks[0], "", "length 4096", peaks[1], f"{ratio:.2f}", goal)
        )
    if "sweep" in results:
        sweep = results["sweep"]
        shape = f"width {TINY['model.width']}, {sweep['workers']} workers, {sweep['second_seed']} later compilations"
        work, share = f"{sweep['train'] + sweep['evaluation']:.0f} s", sweep["share"]
        wall = f"{sweep['wall'] * sweep['workers']:.0f} s"
        goal = f">= {SHARE_TARGET} {_mark(share >= SHARE_TARGET)}"
        collected.append(("sweep share", shape, work, "", "the workers' time", wall, f"{share:.2f}", goal))
    return collected


def _shape(case: dict[str, Any]) -> str:
    new = f" + {case['new']}" if case["new"] else ""
    return f"{case['width']} x {case['layers']}, {case['batch']} x {case['length']}{new}"


def _time(case: dict[str, Any], seconds: float) -> str:
    if case["kind"] == "decode":
        return f"{case['tokens'] / seconds:.0f} tokens/s"
    return f"{1e3 * seconds:.1f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _goal(ratio: float, target: float | None) -> str:
    return "" if target is None else f">= {target:g} {_mark(ratio >= target)}"


def _mark(met: bool) -> str:
    return "met" if met else "missed"


def markdown(results: dict[str, Any]) -> str:
    """Returns the table as Markdown, the versions below it."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(cells) + " |" for cells in rows(results)]
    return "\n".join([*lines, "", about(results), ""])


def drawn(results: dict[str, Any]) -> Table:
    """Returns the table for a terminal."""
    table = Table(*HEADINGS, caption=about(results))
    for cells in rows(results):
        table.add_row(*cells)
    return table


def about(results: dict[str, Any]) -> str:
    """Returns a description of the measurement."""
    versions = ", ".join(f"{name} {version}" for name, version in results["about"].items())
    rates = {f"{case['limit']['rate'] / 1e9:.0f} GFLOP/s": None for case in results["shapes"]}
    reads = {
        f"{case['limit']['bandwidth'] / 1e9:.1f} GB/s": None
        for case in results["shapes"]
        if case["limit"].get("bandwidth")
    }
    limit = f"limit: {', '.join([*rates, *reads])}, measured"
    return f"{versions}; {results['threads']} threads; load {results['load']:.1f} at the start; {limit}"
