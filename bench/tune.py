"""python -m bench.tune: measures the fused attention kernel's block sizes on this device and writes them to its table.

Each pass (forward, backward by blocks of queries, backward by blocks of keys) is timed separately with every candidate,
for each dtype and head dim. The fastest go to `models/kernels/fused/tiles.json`, which the kernel reads; entries of
other devices are kept. Candidates that do not compile on this device, or do not fit in its memory, are skipped and
counted. Time is divided among the remaining passes: candidates that are not reached are not tried, and a pass without a
measurement keeps its default.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs import cli
from configs.errors import UserError
from eval.cost.timing import measure
from eval.progress import Quiet, Reporter
from models.kernels import interpreting
from models.kernels.fused import Call, padded, passes_of
from models.kernels.fused.tiles import PASSES, TABLE, Size, Tiles, default, fitted, read, width_of
from models.kernels.masks import Masking
from training.run_directory import files

REPEATS = 5
SIDES = {"gpu": (16, 32, 64, 128), "tpu": (128, 256, 512, 1024)}
WARPS, STAGES = (4, 8), (1, 2, 3)


@dataclasses.dataclass(frozen=True)
class Shape:
    """The timed case: causal attention, as in training."""

    batch: int = 4
    length: int = 4096
    heads: int = 16
    kv_heads: int = 16

    def call(self, platform: str, tiles: Tiles, head_dim: int, interpret: bool) -> Call:
        """Returns the call with these block sizes."""
        masking = Masking(self.length, self.length)
        settings: dict[str, Any] = dict(soft_cap=None, scale=head_dim**-0.5, layout=None, tiles=tiles)
        return Call.of(masking, platform=platform, interpret=interpret, **settings)

    def arrays(self, call: Call, dtype: Any, head_dim: int) -> dict[str, jax.Array]:
        """Returns the inputs of a backward pass, padded to whole blocks."""
        draw = np.random.default_rng(0).standard_normal

        def drawn(heads: int) -> jax.Array:
            return jnp.asarray(draw((self.batch, self.length, heads, head_dim)), dtype)

        q, k, v, d_out = (drawn(heads) for heads in (self.heads, self.kv_heads, self.kv_heads, self.heads))
        rows = jnp.zeros((self.batch, self.heads, call.padded[0]), jnp.float32)
        return padded(call, q, k, v, None, d_out) | {"logsumexp": rows + 10, "delta": rows}


def candidates(platform: str, name: str, dtype: Any, head_dim: int, shape: Shape) -> list[Size]:
    """Returns the candidate sizes of a pass, the default first."""
    first = getattr(default(platform, dtype, width_of(head_dim)), name)
    sides = SIDES[platform]
    more = WARPS, STAGES
    tried = (
        [Size(q, k, *rest) for q, k, *rest in itertools.product(sides, sides, *more)]
        if platform == "gpu"
        else [Size(q, k) for q, k in itertools.product(sides, sides)]
    )
    found = dict.fromkeys(fitted(platform, size, shape.length, shape.length) for size in (first, *tried))
    return list(found)


def seconds(call: Call, name: str, arrays: dict[str, jax.Array]) -> float:
    """Returns the median seconds of one pass."""
    passes = passes_of(call)
    one = {"forward": passes.forward, "queries": passes.backward_queries, "keys": passes.backward_keys}[name]
    inputs = {key: x for key, x in arrays.items() if name != "forward" or key in ("q", "k", "v")}
    program = jax.jit(lambda inputs: one(call, inputs, {})).lower(inputs).compile()
    return statistics.median(measure(lambda _: program(inputs), None, repeats=REPEATS))


def tuned(
    platform: str,
    dtype: Any,
    head_dim: int,
    shape: Shape,
    until: float,
    progress: Quiet,
    *,
    interpret: bool,
    few: int | None,
) -> tuple[Tiles, dict[str, Any]]:
    """Returns the fastest sizes for a dtype and head dim, and the measurements of each pass.

    Args:
        platform: gpu or tpu.
        dtype: of queries, keys and values.
        head_dim: of these.
        shape: the other sizes.
        until: when to stop, by `time.monotonic`; each pass gets its share of the remaining time.
        progress: for messages.
        interpret: whether to interpret, without such a device.
        few: candidates per pass; None: all.
    """
    best = default(platform, dtype, width_of(head_dim))
    best = Tiles(*(fitted(platform, getattr(best, name), shape.length, shape.length) for name in PASSES))
    measured: dict[str, Any] = {}
    for index, name in enumerate(PASSES):
        end = time.monotonic() + (until - time.monotonic()) / (len(PASSES) - index)
        taken: dict[Size, float] = {}
        failed = left = 0
        title = f"{jnp.dtype(dtype).name}, head dim {head_dim}, {name}"
        for size in progress.track(title, candidates(platform, name, dtype, head_dim, shape)[:few]):
            if taken and time.monotonic() > end:
                left += 1
                continue
            call = shape.call(platform, dataclasses.replace(best, **{name: size}), head_dim, interpret)
            try:
                taken[size] = seconds(call, name, shape.arrays(call, dtype, head_dim))
            except Exception as problem:  # too much shared memory, too many registers: another size may work
                failed += 1
                progress.say(f"{title}: {size.q} x {size.k}: {(str(problem).splitlines() or [''])[0][:120]}")
        if taken:
            fastest = min(taken, key=lambda size: taken[size])
            best = dataclasses.replace(best, **{name: fastest})
            measured[name] = {"seconds": taken[fastest], "first": next(iter(taken.values())), "tried": len(taken)}
        measured[name] = {**measured.get(name, {}), "failed": failed, "not reached": left}
    return best, measured


def written(path: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Adds entries to a table, replacing those of the same device, dtype and head dim.

    Raises:
        UserError: the file is not such a table.
    """
    table: dict[str, Any] = {"entries": []}
    if path.exists():
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
            read(table)
        except ValueError as problem:
            raise UserError(f"--out={path}: {problem}") from None
    own = {_key(entry) for entry in entries}
    kept = [entry for entry in table["entries"] if _key(entry) not in own]
    files.write_json(path, {"entries": sorted([*kept, *entries], key=_key)})


def _key(entry: dict[str, Any]) -> tuple[str, str, int]:
    return entry["device"], entry["dtype"], entry["width"]


@contextlib.contextmanager
def _device(tiny: bool) -> Iterator[str]:
    """Yields the platform to tune for; a CPU interprets a GPU's kernel, only with --tiny.

    Raises:
        UserError: this is a CPU, and --tiny is not set.
    """
    platform = jax.default_backend()
    platform = "gpu" if platform in ("cuda", "rocm") else platform
    if platform in SIDES and not tiny:
        yield platform
        return
    if not tiny:
        raise UserError(
            "this is a CPU, but the fused kernel runs on GPUs and TPUs; --tiny tests the command, interpreted"
        )
    with interpreting("gpu"):
        yield "gpu"


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument("--head_dims", default="64,128", help="separated by commas (64,128)")
    parser.add_argument("--dtypes", default="bfloat16,float32", help="separated by commas (bfloat16,float32)")
    for field in dataclasses.fields(Shape):
        parser.add_argument(f"--{field.name}", type=int, default=field.default, help=f"{field.default}")
    parser.add_argument("--minutes", type=float, default=20, help="in all (20)")
    parser.add_argument("--out", help=f"the table ({TABLE.name} beside the kernel; with --tiny none)")
    parser.add_argument(
        "--tiny", action="store_true", help="two candidates at 32 tokens, interpreted: tests the command"
    )
    given = parser.parse_args(argv)
    dims, dtypes = _dims(given.head_dims), _dtypes(given.dtypes)
    shape = _shape(given)
    with _device(given.tiny) as platform:
        entries = list(_entries(given, platform, dtypes, dims, shape))
    out = Path(given.out) if given.out else None if given.tiny else TABLE
    if out is not None:
        written(out, entries)
        print(f"{len(entries)} entries for {entries[0]['device']} in {out}")
    return 0


def _entries(
    given: argparse.Namespace, platform: str, dtypes: Sequence[str], dims: Sequence[int], shape: Shape
) -> Iterator[dict[str, Any]]:
    """Yields the table's entries, and prints the measurements of each."""
    end = time.monotonic() + 60 * given.minutes
    jobs = list(itertools.product(dtypes, dims))
    for index, (dtype, dim) in enumerate(jobs):
        until = time.monotonic() + (end - time.monotonic()) / (len(jobs) - index)
        few = 2 if given.tiny else None
        tiles, result = tuned(
            platform, jnp.dtype(dtype), dim, shape, until, Reporter(), interpret=given.tiny, few=few
        )  # fmt: skip
        entry = {"device": jax.devices()[0].device_kind, "dtype": dtype, "width": width_of(dim)}
        entry |= {name: dataclasses.asdict(getattr(tiles, name)) for name in PASSES}
        for name, measured in result.items():
            print(f"{dtype} {dim} {name}: {_line(getattr(tiles, name), measured)}")
        yield entry | {"jax": jax.__version__, "shape": dataclasses.asdict(shape)}


def _line(size: Size, measured: dict[str, Any]) -> str:
    """Returns the measurements of a pass in words."""
    rest = f"{measured['failed']} failed, {measured['not reached']} not reached"
    if "seconds" not in measured:
        return f"no candidate ran ({rest}); the default is kept"
    gain = measured["first"] / measured["seconds"]
    taken = f"{size.q} x {size.k}, {1e3 * measured['seconds']:.3f} ms, {gain:.2f} times as fast as the default"
    return f"{taken}; {measured['tried']} tried, {rest}"


def _shape(given: argparse.Namespace) -> Shape:
    shape = Shape(1, 32, 2, 1) if given.tiny else Shape(given.batch, given.length, given.heads, given.kv_heads)
    for name, value in dataclasses.asdict(shape).items():
        if value < 1:
            raise UserError(f"--{name}={value}: must be 1 or more")
    if shape.heads % shape.kv_heads:
        raise UserError(f"--kv_heads={shape.kv_heads}: must divide --heads={shape.heads}")
    return shape


def _dims(given: str) -> list[int]:
    words = given.split(",")
    if not all(word.strip().isdecimal() and 0 < int(word) <= 256 for word in words):
        raise UserError(f"--head_dims={given}: must be whole numbers from 1 to 256, separated by commas")
    return [int(word) for word in words]


def _dtypes(given: str) -> list[str]:
    words = [word.strip() for word in given.split(",")]
    for word in words:
        if word not in ("bfloat16", "float16", "float32"):
            raise UserError(f"--dtypes: {word!r} must be bfloat16, float16 or float32")
    return words


if __name__ == "__main__":
    cli.main(main)
