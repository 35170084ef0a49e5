"""Whether every core compiles for a chip that need not be here, at a config's real shapes: nothing is run.

For each kind of layer that the config has, forward and backward of one attention layer are lowered from shapes and
compiled for the chip, under every core. What a core refuses is told in its own words, as in a training run.
"""

import dataclasses
import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import SingleDeviceSharding
from ml_collections import ConfigDict
from rich.table import Table
from rich.text import Text

from configs.errors import ConfigError
from eval.cost.programs import analysis
from eval.equivalence.cores import Layer, _merge, _split, layers
from eval.equivalence.setting import FALLBACK_VOCABULARY, Setting, changed
from eval.progress import Quiet
from models import initial, kernels, positions
from models.attention import Rows
from models.layers import compute_dtype
from models.pattern import plans
from models.platform import compiling_for
from training.runtime import compile_only

CUSTOM_CALL = re.compile(r'custom_call_target="([^"]+)"')
NOT_KERNELS = re.compile(r"cublas|Sharding|TopK|annotate|MoveToHost|MoveToDevice|__cusolver", re.IGNORECASE)
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Compiled:
    """One core on one kind of layer.

    Attributes:
        chosen: whether it is what training runs.
        status: compiles, refused (it cannot do what the layer asks for), too large, or fails.
        reason: of what is not `compiles`.
        temp: bytes of temporaries, forward and backward.
        calls: custom calls in the program that are not of matrix libraries -> how many.
    """

    core: str
    where: str
    dtype: str
    chosen: bool
    status: str
    reason: str = ""
    temp: int | None = None
    calls: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def wrong(self) -> bool:
        """Whether it should compile and does not: what accepts the layer must, what is chosen must fit too."""
        return self.status == "fails" or (self.chosen and self.status != "compiles")


def check(config: ConfigDict, name: str, progress: Quiet) -> dict[str, Any]:
    """Compiles every core for a target and shows the table.

    Args:
        config: a resolved config; shapes are those of one micro-batch of its training.
        name: of the target, such as h100:1.
        progress: whom to tell.

    Returns:
        `rows` (see `Compiled`), the `target`, the `settings`, and `passed`: whether none is wrong.

    Raises:
        UserError: no such target, or what compiles for it is not installed.
    """
    platform = compile_only.check(name)
    devices, capacity = compile_only.describe(name)
    batch, length = config.data.batch_size // config.data.micro_batches, config.data.length
    vocabulary = {"model.vocab_size": config.model.vocab_size or FALLBACK_VOCABULARY, "model.dropout": 0.0}
    with compiling_for(platform):
        dtype = jnp.dtype(compute_dtype(config.model)).name
        tried = changed(config, {**vocabulary, "model.dtype": dtype})
        setting = Setting(tried, None, batch, length, {})
        results: list[Compiled] = []
        for layer in layers(setting):
            for core in progress.track(f"compiling, {layer.label}", list(kernels.KERNELS)):
                results.append(_row(setting, layer, core, devices[0], platform, capacity))
    result = {
        "passed": not any(row.wrong for row in results),
        "target": {"name": name, "device": devices[0].device_kind, "memory": capacity},
        "rows": [{**dataclasses.asdict(row), "wrong": row.wrong} for row in results],
        "settings": {"length": length, "batch_size": batch, "dtype": dtype},
    }
    progress.show(table(results, name, batch, length))
    progress.say(summary(results, name))
    return result


def _row(setting: Setting, layer: Layer, core: str, device: Any, platform: str, capacity: int) -> Compiled:
    row = Compiled(core, layer.label, setting.dtype, core == _chosen(setting, layer, platform), "compiles")
    try:
        done = compiled(setting, layer, core, device, platform)
    except ConfigError as error:
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
    return f"needs {needed / GIB:.1f} GiB, and the device has {available / GIB:.1f}"


def _chosen(setting: Setting, layer: Layer, platform: str) -> str:
    """Returns the core that training runs on a layer; empty where the one asked for cannot serve (its row says so)."""
    plan = plans(setting.model)[layer.index]
    alone = {"position.pattern": (), "position.kind": plan.position, "attention.window_pattern": (),
             "attention.window": plan.window or None}  # fmt: skip
    model = changed(setting.config, {f"model.{name}": value for name, value in alone.items()}).model
    try:
        return kernels.kernel_for(model, length=setting.length, platform=platform, packed=layer.packed)
    except ConfigError:
        return str(model.attention.kernel)


def compiled(setting: Setting, layer: Layer, core: str, device: Any, platform: str) -> Any:
    """Returns forward and backward of a layer under a core, compiled for a device from shapes alone.

    Raises:
        ConfigError: the core cannot do what the layer asks for.
    """
    plan = plans(setting.model)[layer.index]
    graphdef, params = initial.abstract(setting.model)
    where = SingleDeviceSharding(device)
    rows = (setting.batch, setting.length)

    def shaped(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    def both(params: Any, x: jax.Array, d_out: jax.Array, places: Any) -> Any:
        model = nnx.merge(graphdef, params)
        scheme = model.schemes[plan.position].layer(layer.scheme)
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
    return compile_only.lower(jax.jit(both), params, x, x, places, platform=platform).compile()


def table(rows: list[Compiled], target: str, batch: int, length: int) -> Table:
    """Returns the rows as a table."""
    result = Table(title=f"Attention for {target}", caption=f"forward and backward, batch {batch}, length {length}")
    for name in ("kernel", "where", "dtype", ""):
        result.add_column(name, overflow="fold")
    result.add_column("temporaries", justify="right", no_wrap=True)
    result.add_column("custom calls", overflow="fold")
    for row in rows:
        verdict = row.status + (f": {row.reason}" if row.reason else "") + (" (chosen)" if row.chosen else "")
        temp = "" if row.temp is None else f"{row.temp / 2**20:,.1f} MiB"
        calls = ", ".join(f"{often} x {name}" for name, often in row.calls.items())
        cells = (row.core, row.where, row.dtype, verdict, temp, calls)
        result.add_row(*(Text(cell, style="red" if row.wrong else "") for cell in cells))
    return result


def summary(rows: list[Compiled], target: str) -> str:
    """Returns how it ended, in a line."""
    count = Counter(row.status for row in rows)
    parts = ", ".join(f"{often} {status}" for status, often in count.items())
    bad = [f"{row.core} ({row.where})" for row in rows if row.wrong]
    return f"{target}: {parts}" + (f"; wrong: {', '.join(bad)}" if bad else "; all that should compile do")
