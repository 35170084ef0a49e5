"""Where the time of a run's training step, prefill and decoding goes, by part of the model: eval/profile.json.

The shapes are those of `eval.throughput`. docs/cost.md defines the parts and explains how a trace is read.
"""

from collections import defaultdict
from typing import Any

import jax

from eval.cost import ready
from eval.cost.hlo import Module
from eval.cost.scopes import DIRECTIONS, GROUPS, PARTS, Owner
from eval.cost.timing import compile_timed, device, measure
from eval.cost.trace import Times, record
from eval.progress import Quiet
from training.run_directory.record import compute_dtype
from training.run_directory.run import Run

PROFILED = ("train", "prefill", "decode")
IDLE = 0.5  # share of the wall time between instructions above which a program is reported as bound by dispatch


def evaluate(run: Run, progress: Quiet) -> dict[str, Any]:
    """Returns eval/profile.json's content.

    Each program is timed without a profiler (`seconds` per call), then traced for `eval.throughput.repeats` calls.
    Shares are of the time with instructions executing, and add up to 1 over all parts.
    """
    results = {}
    for name in PROFILED:
        progress.say(f"profile: {name}")
        results[name] = profiled(
            ready.PROGRAMS[name](run), run.config.eval.throughput.repeats, decoding=name == "decode"
        )
    return {
        "device": device(),
        "dtype": compute_dtype(run.config),
        "parts": {part: label for part, (label, _) in PARTS.items()},
        "programs": results,
        "answer": " ".join(f"{name.capitalize()} is {part['answer']}." for name, part in results.items()),
    }


# The CPU compiler of JAX 0.12 turns a small loop, such as decoding of a tiny model, into one function, and the trace
# then has no instructions of it. For decoding only: small loops of a training step are scatters, without names inside.
OPTIONS = {"xla_disable_hlo_passes": "small-while-loop-hoisting"}


def profiled(program: ready.Ready, repeats: int, *, decoding: bool) -> dict[str, Any]:
    """Returns the profile of one program.

    Args:
        program: to profile.
        repeats: traced calls.
        decoding: see `scopes.owner`.
    """
    compiled, compile_seconds = compile_timed(
        program.lowered, OPTIONS if decoding and jax.default_backend() == "cpu" else None
    )
    module = Module(compiled.as_text(), decoding=decoding)
    state = program.start()

    def call(state: Any) -> Any:
        return jax.block_until_ready(program.call(compiled, state))

    seconds = float(sorted(measure(call, state, repeats=repeats))[repeats // 2])
    state = call(program.start())

    def work() -> None:
        nonlocal state
        for _ in range(repeats):
            state = call(state)

    times = record(work, module)
    return {
        "seconds": seconds,
        "calls": repeats,
        "compile_seconds": compile_seconds,
        **program.shape,
        **shares(times, module, repeats, seconds),
    }


def shares(times: Times, module: Module, calls: int, wall: float) -> dict[str, Any]:
    """Returns the owners of a trace's time.

    Args:
        times: of `calls` calls.
        module: the program.
        calls: number of traced calls.
        wall: seconds per call without a profiler.

    Returns:
        source; busy_seconds per call; between_instructions, the share of the wall time with none executing; unnamed,
            the share without a scope; spanning, the share of fusions over several parts, divided by what they compute;
            shares by part; `by_direction`, with share, seconds and bytes per call; and the answer in words.
    """
    time: dict[Owner, float] = defaultdict(float)
    moved: dict[Owner, float] = defaultdict(float)
    spanning = 0.0
    for name, seconds in times.seconds.items():
        owners = module.owners(name)
        spanning += seconds * (len({one.part for one in owners}) > 1)
        traffic = module.moved(name) * times.counts[name] / calls
        for one, weight in owners.items():
            time[one] += seconds * weight
            moved[one] += traffic * weight
    total = sum(time.values()) or 1.0
    entries: list[dict[str, Any]] = [
        {
            "part": part,
            "direction": direction,
            "share": time[Owner(part, direction)] / total,
            "seconds": time[Owner(part, direction)] / calls,
            "bytes": int(moved[Owner(part, direction)]),
        }
        for part in PARTS
        for direction in DIRECTIONS
        if Owner(part, direction) in time
    ]
    by_part = {part: sum(entry["share"] for entry in entries if entry["part"] == part) for part in PARTS}
    busy = times.busy / calls
    idle = max(0.0, 1 - busy / wall) if wall else 0.0
    return {
        "source": times.source,
        "busy_seconds": busy,
        "between_instructions": idle,
        "unnamed": by_part["unnamed"],
        "spanning": spanning / total,
        "shares": by_part,
        "by_direction": entries,
        "answer": answer(by_part, idle),
    }


def answer(by_part: dict[str, float], idle: float) -> str:
    """Returns what a program is bound by, in words: its largest group, and the shares of the main groups."""
    groups = {name: sum(by_part[part] for part in parts) for name, parts in GROUPS.items()}
    first = max(groups, key=lambda name: groups[name])
    message = dict.fromkeys([first, "projection", "attention", "KV reads and writes"])
    figures = ", ".join(f"{name} {groups[name]:.0%}" for name in message)
    if idle > IDLE:
        return f"bound by dispatch: {idle:.0%} of its time is between instructions (of the rest: {figures})"
    return f"bound by {first} ({figures})"
