"""Times of instructions from a trace: on the CPU through `jax.profiler.ProfileData`, on GPUs and TPUs through xprof.

On the CPU, instructions run in parallel on several threads, a matmul's own work on any of them; so each moment of the
trace is divided evenly over the instructions executing in it. The time with none executing is separate.
"""

import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.profiler import ProfileData, ProfileOptions

from configs.errors import UserError
from eval.cost.hlo import CONTAINERS, Module

NANO = 1e-9


@dataclass(frozen=True)
class Times:
    """The times of one module in a trace.

    Attributes:
        seconds: of each instruction, summed over calls.
        counts: executions of each.
        busy: seconds with an instruction executing (on a GPU or TPU the sum of `seconds`).
        source: the reader of the trace.
    """

    seconds: dict[str, float]
    counts: dict[str, float]
    busy: float
    source: str


def record(work: Callable[[], Any], module: Module) -> Times:
    """Traces `work`, which must wait for its results, and returns the times of the module's instructions.

    Raises:
        UserError: on a GPU or TPU, xprof is not installed, or has nothing of the module.
    """
    options = ProfileOptions()
    options.python_tracer_level = 0  # it would take longer than small instructions do
    options.host_tracer_level = 2
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            work()
        path = next(Path(folder).rglob("*.xplane.pb"))
        if jax.default_backend() == "cpu":
            return from_cpu(ProfileData.from_file(str(path)), module)
        return from_xprof(path, module)


def from_cpu(data: ProfileData, module: Module) -> Times:
    """Reads the thunks that XLA's CPU runtime recorded, including those that ended on another thread."""
    starts: dict[Any, tuple[str, float, float]] = {}
    ends: dict[Any, float] = {}
    for plane in data.planes:
        for number, line in enumerate(plane.lines):
            for place, event in enumerate(line.events):
                stats = dict(event.stats)
                if event.name.startswith("end: "):
                    ends[stats.get("_c")] = event.start_ns
                elif stats.get("hlo_module") == module.name and (name := stats.get("hlo_op")) is not None:
                    instruction = module.find(name)
                    if instruction is None or instruction.opcode not in CONTAINERS:
                        key = stats.get("_p", (plane.name, number, place))
                        starts[key] = (name, event.start_ns, event.start_ns + event.duration_ns)
    spans = [(name, start, max(end, ends.get(key, end))) for key, (name, start, end) in starts.items()]
    counts: dict[str, float] = {}
    for name, _, _ in spans:
        counts[name] = counts.get(name, 0.0) + 1.0
    seconds = shared(spans)
    return Times(seconds, counts, sum(seconds.values()), "jax.profiler.ProfileData")


def shared(spans: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """Divides each moment evenly over the spans that cover it.

    Args:
        spans: (name, start, end) in nanoseconds.

    Returns:
        Seconds by name; their sum is the covered time.
    """
    edges: list[tuple[float, int, int, str]] = []
    for number, (name, start, end) in enumerate(spans):
        if end > start:
            edges += [(start, 1, number, name), (end, 0, number, name)]
    edges.sort(key=lambda edge: (edge[0], edge[1]))
    results: dict[str, float] = {}
    open_: dict[int, str] = {}
    before = 0.0
    for moment, opens, number, name in edges:
        if open_:
            part = (moment - before) * NANO / len(open_)
            for one in open_.values():
                results[one] = results.get(one, 0.0) + part
        before = moment
        if opens:
            open_[number] = name
        else:
            open_.pop(number, None)
    return results


def from_xprof(path: Path, module: Module) -> Times:
    """Reads xprof's table of HLO instructions (`hlo_stats`): self time and occurrences of each.

    Raises:
        UserError: xprof is not installed, or its table has nothing of the module.
    """
    try:
        from xprof.convert import raw_to_tool_data
    except ImportError:
        raise UserError(
            f"eval.profile on {jax.default_backend()} reads traces with xprof, which is not installed: "
            "make setup EXTRAS=dev,profile, or pip install xprof"
        ) from None
    table, _ = raw_to_tool_data.xspace_to_tool_data([str(path)], "hlo_stats", {"use_saved_result": False})
    return from_table(table, module)


def from_table(table: str | bytes, module: Module) -> Times:
    """Reads the JSON of `hlo_stats`; entries of other modules are left out.

    Raises:
        UserError: none is of the module.
    """
    result = json.loads(table)
    columns = [column["id"] for column in result["cols"]]
    seconds: dict[str, float] = {}
    counts: dict[str, float] = {}
    for row in result["rows"]:
        values = dict(zip(columns, (cell["v"] for cell in row["c"]), strict=False))
        name = str(values["hlo_op_name"]).lstrip("%")
        instruction = module.find(name)
        if instruction is None or instruction.opcode in CONTAINERS:
            continue
        seconds[name] = seconds.get(name, 0.0) + float(values["total_self_time"]) * 1e-6
        counts[name] = counts.get(name, 0.0) + float(values["occurrences"])
    if not sum(seconds.values()):
        raise UserError(f"eval.profile: xprof's hlo_stats has no time for the program {module.name}")
    return Times(seconds, counts, sum(seconds.values()), "xprof hlo_stats")
