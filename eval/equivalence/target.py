"""Whether every kernel compiles for a chip that need not be here, at a config's real shapes: nothing is run.

For each kind of layer in the config, forward and backward of one attention layer are lowered from shapes and compiled
for the chip, under every kernel. A kernel's refusals are reported in its own words, as in training.
"""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import SingleDeviceSharding
from ml_collections import ConfigDict
from rich.table import Table
from rich.text import Text

from configs.errors import ConfigError, UserError, nearest
from eval.cost.programs import analysis
from eval.equivalence.cores import Layer, _merge, _split, layers
from eval.equivalence.setting import FALLBACK_VOCABULARY, Setting, changed
from eval.progress import Quiet
from models import initial, kernels, positions
from models.attention import Rows
from models.layers import compute_dtype
from models.pattern import plans
from models.platform import compiling_for
from training.devices import compile_only

CUSTOM_CALL = re.compile(r'custom_call_target="([^"]+)"')
NOT_KERNELS = re.compile(r"cublas|Sharding|TopK|annotate|MoveToHost|MoveToDevice|__cusolver", re.IGNORECASE)
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Compiled:
    """One kernel on one kind of layer.

    Attributes:
        chosen: whether it is the one used in training.
        status: compiles, refused (it does not support the layer), too large, or fails.
        reason: for every status but `compiles`.
        temp: bytes of temporaries, forward and backward.
        calls: custom calls in the program other than matmul libraries -> how many.
    """

    core: str
    where: str
    dtype: str
    head_dim: int
    length: int
    chosen: bool
    status: str
    reason: str = ""
    temp: int | None = None
    calls: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def wrong(self) -> bool:
        """Whether it should compile and does not: kernels that accept the layer must, the chosen one must also fit."""
        return self.status == "fails" or (self.chosen and self.status != "compiles")


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is tested in place of the config's own; an empty field keeps that.

    Attributes:
        schemes: kinds of positions that act in attention, each as a separate layer; or `all`.
        cores: names of kernels; empty: all.
        dtypes: compute dtypes.
        head_dims: of queries, keys and values.
        lengths: tokens per row.
    """

    schemes: Sequence[str] = ()
    cores: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    head_dims: Sequence[int] = ()
    lengths: Sequence[int] = ()

    def of(self, config: ConfigDict) -> list[ConfigDict]:
        """Returns the configs to test.

        Raises:
            UserError: an unknown scheme, kernel or dtype.
        """
        acting = [kind for kind in positions.KINDS if positions.places_of(kind) != {"embed"}]
        schemes = acting if list(self.schemes) == ["all"] else list(self.schemes)
        allowed = (("schemes", schemes, acting), ("kernels", self.cores, kernels.KERNELS),
                   ("dtypes", self.dtypes, ("float32", "bfloat16")))  # fmt: skip
        for option, given, names in allowed:
            for name in given:
                if name not in names:
                    raise UserError(f"--{option}: {name!r} must be one of {', '.join(names)}{nearest(name, names)}")
        layers = {"model.position.pattern": tuple(schemes), "model.num_layers": len(schemes)} if schemes else {}
        named = (
            [("model.dtype", dtype) for dtype in self.dtypes or (None,)],
            [("model.head_dim", dim) for dim in self.head_dims or (None,)],
            [("data.length", length) for length in self.lengths or (None,)],
        )
        return [
            changed(config, layers | {field: value for field, value in chosen if value is not None})
            for chosen in itertools.product(*named)
        ]


def check(config: ConfigDict, name: str, progress: Quiet, grid: Grid | None = None) -> dict[str, Any]:
    """Compiles every kernel for a target and shows the table.

    Args:
        config: a resolved config; shapes are those of one micro-batch of its training.
        name: of the target, such as h100:1.
        progress: for messages.
        grid: what to test in place of the config's own schemes, kernels, dtypes, head dims and lengths.

    Returns:
        `rows` (see `Compiled`), the `target`, the `settings`, and `passed`: whether none is wrong.

    Raises:
        UserError: no such target, or its compiler is not installed.
    """
    platform = compile_only.check(name)
    devices, capacity = compile_only.describe(name)
    grid = grid or Grid()
    configs = grid.of(config)
    batch = config.data.batch_size // config.data.micro_batches
    results: list[Compiled] = []
    with compiling_for(platform):
        for one in configs:
            dtype = jnp.dtype(compute_dtype(one.model)).name
            vocabulary = one.model.vocab_size or FALLBACK_VOCABULARY
            tried = changed(one, {"model.vocab_size": vocabulary, "model.dropout": 0.0, "model.dtype": dtype})
            setting = Setting(tried, None, batch, one.data.length, {})
            for layer in layers(setting):
                for core in progress.track(f"compiling, {layer.label}", list(grid.cores or kernels.KERNELS)):
                    results.append(_row(setting, layer, core, devices[0], platform, capacity))
    last = results[-1]
    result = {
        "passed": not any(row.wrong for row in results),
        "target": {"name": name, "device": devices[0].device_kind, "memory": capacity},
        "rows": [{**dataclasses.asdict(row), "wrong": row.wrong} for row in results],
        "settings": {"length": last.length, "batch_size": batch, "dtype": last.dtype},
    }
    progress.show(table(results, name, batch))
    progress.say(summary(results, name))
    return result


def _row(setting: Setting, layer: Layer, core: str, device: Any, platform: str, capacity: int) -> Compiled:
    chosen = core == _chosen(setting, layer, platform)
    shape = setting.dtype, setting.model.head_dim, setting.length
    row = Compiled(core, layer.label, *shape, chosen, "compiles")
    try:
        done = compiled(setting, layer, core, device, platform)
    except (ConfigError, NotImplementedError) as error:  # JAX's own refusal, of its own kernel
        reason = str(error).removeprefix(f"model.attention.kernel = {core!r}: ")
        return dataclasses.replace(row, status="refused", reason=reason)
    except Exception as error:
        sizes = compile_only.too_large(str(error))
        if sizes is not None:
            return dataclasses.replace(row, status="too large", reason=_over(*sizes))
        message = (str(error).splitlines() or [""])[0][:300]
        return dataclasses.replace(row, status="fails", reason=f"{type(error).__name__}: {message}")
    memory = analysis(done) or {}
    calls = Counter(CUSTOM_CALL.findall(done.as_text() or ""))
    row = dataclasses.replace(
        row,
        temp=memory.get("temp"),
        calls={target: often for target, often in sorted(calls.items()) if not NOT_KERNELS.search(target)},
    )
    if capacity and memory.get("peak", 0) > capacity:
        return dataclasses.replace(row, status="too large", reason=_over(memory["peak"], capacity))
    return row


def _over(needed: int, available: int) -> str:
    return f"needs {needed / GIB:.1f} GiB, the device has {available / GIB:.1f}"


def _chosen(setting: Setting, layer: Layer, platform: str) -> str:
    """Returns the kernel that training uses for a layer; empty if the requested one is refused (its row says why)."""
    plan = plans(setting.model)[layer.index]
    alone = {"position.pattern": (), "position.kind": plan.position, "attention.window_pattern": (),
             "attention.window": plan.window or None, "attention.pattern": (), "num_heads": plan.heads.num_heads,
             "num_kv_heads": plan.heads.num_kv_heads, "head_dim": plan.heads.head_dim}  # fmt: skip
    model = changed(setting.config, {f"model.{name}": value for name, value in alone.items()}).model
    try:
        return kernels.kernel_for(model, length=setting.length, platform=platform, packed=layer.packed)
    except ConfigError:
        return str(model.attention.kernel)


def compiled(setting: Setting, layer: Layer, core: str, device: Any, platform: str) -> Any:
    """Returns forward and backward of a layer under a kernel, compiled for a device from shapes alone.

    Raises:
        ConfigError: the kernel does not support the layer.
    """
    plan = plans(setting.model)[layer.index]
    graphdef, params = initial.abstract(setting.model)
    where = SingleDeviceSharding(device)
    rows = (setting.batch, setting.length)

    def shaped(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    def both(params: Any, x: jax.Array, d_out: jax.Array, places: Any) -> Any:
        model = nnx.merge(graphdef, params)
        scheme = model.schemes[plan.scheme].layer(layer.scheme)
        attention = model.layers()[layer.index].attention
        attention.kernel = core
        at = Rows(*places) if places else Rows()
        if scheme.uses_lengths and at.positions is not None:
            at = dataclasses.replace(at, lengths=positions.sequence_lengths(at.positions, at.segments))
        graphs, states = zip(*(_split(part) for part in (attention, scheme)), strict=True)

        def attended(states: Any, x: jax.Array) -> jax.Array:
            attention, scheme = (_merge(graph, state) for graph, state in zip(graphs, states, strict=True))
            return attention(x, at, scheme, window=plan.window)[0]

        out, pull = jax.vjp(attended, states, x)
        return out, pull(d_out)

    x = shaped((*rows, setting.model.width), jnp.dtype(setting.dtype))
    places = (shaped(rows, jnp.int32),) * 2 if layer.packed else ()
    params = jax.tree.map(lambda leaf: shaped(leaf.shape, leaf.dtype), params)
    lowered = compile_only.lower(jax.jit(both), params, x, x, places, platform=platform)
    return compile_only.compile_lowered(lowered, platform)


def table(rows: list[Compiled], target: str, batch: int) -> Table:
    """Returns the rows as a table."""
    result = Table(title=f"Attention for {target}", caption=f"forward and backward, {batch} rows")
    for name in ("kernel", "where", "dtype", "head dim", "length", ""):
        result.add_column(name, overflow="fold")
    result.add_column("temporaries", justify="right", no_wrap=True)
    result.add_column("custom calls", overflow="fold")
    for row in rows:
        verdict = row.status + (f": {row.reason}" if row.reason else "") + (" (chosen)" if row.chosen else "")
        temp = "" if row.temp is None else f"{row.temp / 2**20:,.1f} MiB"
        calls = ", ".join(f"{often} x {name}" for name, often in row.calls.items())
        cells = (row.core, row.where, row.dtype, str(row.head_dim), str(row.length), verdict, temp, calls)
        result.add_row(*(Text(cell, style="red" if row.wrong else "") for cell in cells))
    return result


def summary(rows: list[Compiled], target: str) -> str:
    """Returns the result in one line."""
    count = Counter(row.status for row in rows)
    parts = ", ".join(f"{often} {status}" for status, often in count.items())
    bad = [f"{row.core} ({row.where})" for row in rows if row.wrong]
    return f"{target}: {parts}" + (f"; wrong: {', '.join(bad)}" if bad else "; all that should compile do")
