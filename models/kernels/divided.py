"""Attention on several devices: every device runs the kernel on its own rows, heads and queries, and sends nothing.

It is a loop over blocks, or a custom call that no partitioner can look into. So each device calls it on what it holds:
rows by "batch", heads by "heads", and where sequences are divided ("length") its queries against all keys and values,
which are gathered before.
"""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from models import axes
from models.kernels.kernel import Run, Scoring
from models.kernels.masks import Masking
from models.positions.head_bias import HeadBias
from models.positions.scheme import BiasFunction

QUERIES = ("batch", "length", "heads", None)
KEYS = ("batch", None, "heads", None)


def divided(run: Run, q_BTHK: Array, k_BSGK: Array, v_BSGV: Array, masking: Masking, scoring: Scoring) -> Array:
    """Returns what a kernel's `run` does with all of it, [B, T, H, V]."""
    heads = axes.shards("heads")
    k_BSGK, v_BSGV = (repeated(x, heads) for x in (k_BSGK, v_BSGV))
    masking = _with_positions(masking) if axes.shards("length") > 1 else masking
    # What is given is cut, each array by its own axes; the rest of the call is the same on every device.
    given = {"q": q_BTHK, "k": k_BSGK, "v": v_BSGV}
    names: dict[str, axes.Names] = {"q": QUERIES, "k": KEYS, "v": KEYS}
    for name, along in PLACES.items():
        places = getattr(masking, name)
        if places is not None:
            given[name], names[name] = places, ("batch" if places.shape[0] > 1 else None, along)
    if scoring.sinks is not None:
        given["sinks"], names["sinks"] = scoring.sinks, ("heads",)

    def here(*parts: Array) -> Array:
        result = dict(zip(given, parts, strict=True))
        q, k, v = (result.pop(name) for name in ("q", "k", "v"))
        sinks, bias = result.pop("sinks", None), scoring.bias
        changed: dict[str, Any] = {"q_len": q.shape[1], "kv_len": k.shape[1], **result}
        own = dataclasses.replace(masking, **changed)
        cut = bias if bias is None or heads == 1 else _own_heads(bias, q.shape[2])
        return run(q, k, v, own, dataclasses.replace(scoring, bias=cut, sinks=sinks))

    return axes.locally(here, list(names.values()), QUERIES, list(given.values()))


PLACES: dict[str, str | None] = {
    "q_positions": "length",
    "kv_positions": None,
    "q_segments": "length",
    "kv_segments": None,
}


def repeated(x_BSGK: Array, heads: int) -> Array:
    """Returns keys or values with each head as often as `heads` devices need to hold the same number of them.

    Where G is a multiple of the devices that is once. The gradient of a head is the sum over its copies.
    """
    times = math.lcm(x_BSGK.shape[2], heads) // x_BSGK.shape[2]
    return x_BSGK if times == 1 else jnp.repeat(x_BSGK, times, axis=2)


def _with_positions(masking: Masking) -> Masking:
    """A part of a row knows its place by its positions alone."""
    q_places, kv_places = masking.places()
    if masking.by_index:
        plain = dataclasses.replace(masking, q_positions=None, kv_positions=None)
        q_places, kv_places = plain.places()
    return dataclasses.replace(
        masking, aligned=False, q_positions=jnp.asarray(q_places), kv_positions=jnp.asarray(kv_places)
    )


def _own_heads(bias: BiasFunction, heads: int) -> BiasFunction:
    if isinstance(bias, HeadBias):
        return bias.of_heads(axes.part("heads") * heads, heads)

    def own(q_positions: Array, kv_positions: Array) -> Array:
        return lax.dynamic_slice_in_dim(bias(q_positions, kv_positions), axes.part("heads") * heads, heads, axis=1)

    return own
