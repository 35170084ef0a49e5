"""Attention layers under every kernel, against the same layers under the reference."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from configs.errors import ConfigError
from eval.equivalence.rows import Outcome, Row, compared, named
from eval.equivalence.setting import Setting
from models import initial, kernels, positions
from models.attention import Rows
from models.pattern import plans

INTERPRETED = 512  # tokens per row up to which a Pallas kernel is interpreted if it cannot run: it is slow


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer that differs from those before it, and the rows it is tested on."""

    index: int
    scheme: int  # its index among the layers with its kind of positions
    label: str
    packed: bool


def rows(setting: Setting) -> Iterator[Row]:
    """Yields rows for every kernel on every kind of layer in the config."""
    for layer in layers(setting):
        expected = under(setting, layer, "reference")
        for core in kernels.KERNELS:
            if core == "reference":
                continue
            row = Row(f"core {core}", "core reference", "output", setting.dtype, layer.label)
            platform = _interpreted(core, setting.length)
            if platform is not None:
                row = dataclasses.replace(row, note=f"interpreted: this is not a {platform.upper()}")
            try:
                with contextlib.nullcontext() if platform is None else kernels.interpreting(platform):
                    got = under(setting, layer, core)
            except Exception as error:  # so that the other kernels are compared too
                yield _without(dataclasses.replace(row, part="output, gradient"), core, error)
                continue
            yield from compared(row, got, expected)


def _without(row: Row, core: str, error: Exception) -> Row:
    """Returns the row of a kernel that gave no numbers: refused by us or by JAX, or failed."""
    if isinstance(error, ConfigError | NotImplementedError):
        return dataclasses.replace(row, reason=str(error).removeprefix(f"model.attention.kernel = {core!r}: "))
    message = (str(error).splitlines() or [""])[0][:300]
    return dataclasses.replace(row, reason=f"{type(error).__name__}: {message}", fails=True)


def _interpreted(core: str, length: int) -> str | None:
    """Returns the platform that a kernel is interpreted for, or None."""
    kernel = kernels.KERNELS[core]
    runs = jax.default_backend() in kernel.platforms
    return None if runs or length > INTERPRETED else kernel.interpreted or None


def layers(setting: Setting) -> list[Layer]:
    """Returns one layer of each kind, with whole rows and, if the config packs documents, packed rows."""
    result, seen = [], set()
    every = plans(setting.model)
    unlike = len({plan.heads for plan in every}) > 1
    for index, plan in enumerate(every):
        # A layer that reads another's keys and values has that one's positions and shapes.
        if plan in seen or plan.kv_back:
            continue
        seen.add(plan)
        before = [other.scheme for other in every[:index]].count(plan.scheme)
        label = plan.position + (f", window {plan.window}" if plan.window else "")
        label += f", {plan.heads.num_heads} heads of {plan.heads.head_dim}" if unlike else ""
        result.append(Layer(index, before, label, False))
        if setting.config.data.packing == "segments":
            result.append(Layer(index, before, f"{label}, packed", True))
    return result


def under(setting: Setting, layer: Layer, core: str) -> Outcome:
    """Returns a layer's output and its gradients (of its input and of its own parameters) under a kernel.

    Raises:
        ConfigError: the kernel does not support the layer.
    """
    plan = plans(setting.model)[layer.index]
    model = nnx.merge(initial.abstract(setting.model)[0], setting.params)
    scheme = model.schemes[plan.scheme].layer(layer.scheme)
    attention = model.layers()[layer.index].attention
    attention.kernel = core
    at = _documents(setting) if layer.packed else Rows()
    if scheme.uses_lengths and at.positions is not None:
        at = dataclasses.replace(at, lengths=positions.sequence_lengths(at.positions, at.segments))
    draw = np.random.default_rng(1).standard_normal
    shape = (setting.batch, setting.length, setting.model.width)
    x_BTD, d_out = (jnp.asarray(draw(shape), jnp.dtype(setting.dtype)) for _ in range(2))
    graphs, states = zip(*(_split(part) for part in (attention, scheme)), strict=True)

    def attended(states: Any, x: jax.Array) -> jax.Array:
        attention, scheme = (_merge(graph, state) for graph, state in zip(graphs, states, strict=True))
        return attention(x, at, scheme, window=plan.window)[0]

    def both(states: Any, x: jax.Array, d_out: jax.Array) -> Any:
        out, pull = jax.vjp(attended, states, x)
        return out, pull(d_out)

    with setting.precise():
        out, ((d_attention, d_scheme), d_x) = jax.jit(both)(states, x_BTD, d_out)
    own = {"input": d_x, **named(d_attention), **named({plan.position: d_scheme})}
    return Outcome({"out": out}, own)


def _split(part: Any) -> tuple[Any, Any]:
    """Returns (graph, parameters) of a module; a scheme without parameters is its own graph."""
    if not isinstance(part, nnx.Module):
        return part, {}
    graph, state = nnx.split(part)
    return graph, nnx.to_pure_dict(state)


def _merge(graph: Any, state: Any) -> Any:
    return nnx.merge(graph, nnx.State(state)) if state else graph


def _documents(setting: Setting) -> Rows:
    """Returns rows of two documents, different in each row, and a little padding at the end."""
    positions, segments = np.zeros((2, setting.batch, setting.length), np.int32)
    for row in range(setting.batch):
        end = setting.length - 2
        cut = end * (row + 1) // (setting.batch + 2) + 1
        positions[row, :cut], positions[row, cut:end] = np.arange(cut), np.arange(end - cut)
        segments[row, :cut], segments[row, cut:end] = 1, 2
    return Rows(jnp.asarray(positions), jnp.asarray(segments))
