"""The whole model in every possible layout, and its rows packed and padded, in output and gradient."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from configs import fields
from eval.equivalence import programs
from eval.equivalence.programs import Batch
from eval.equivalence.rows import Outcome, Row, compared, named
from eval.equivalence.setting import Setting
from models import Transformer, initial, pattern

PARTS = ("query", "key", "value")


def rows(setting: Setting) -> Iterator[Row]:
    """Yields rows for QKV, scan, rematerialization, packing and padding."""
    batch = programs.plain(setting.tokens())
    expected = programs.outcome(setting, programs.compiled(setting), batch)
    yield from qkv(setting, batch, expected)
    yield from scan(setting, batch, expected)
    yield from remat(setting, batch, expected)
    yield from documents(setting)


def qkv(setting: Setting, batch: Batch, expected: Outcome) -> Iterator[Row]:
    """The other layout of the projections, with converted parameters and gradients."""
    own = setting.model.attention.qkv
    other = "split" if own == "fused" else "fused"
    row = Row(f"{other} QKV", f"{own} QKV", "output", setting.dtype)
    if setting.model.attention.kind == "mla":
        reason = "latent attention has other projections"
        yield dataclasses.replace(row, part="output, gradient", reason=reason)
        return
    if setting.model.attention.tie_kv or setting.model.attention.kv_share > 1:
        reason = "a layer without its own keys or values has no fused matrix"
        yield dataclasses.replace(row, part="output, gradient", reason=reason)
        return
    pure = nnx.to_pure_dict(setting.params)
    heads = [setting.model.num_heads, setting.model.num_kv_heads, setting.model.num_kv_heads]
    widths = [count * setting.model.head_dim for count in heads]
    model = setting.having(attention__qkv=other)
    params = initial.abstract(model)[1]
    nnx.replace_by_pure_dict(params, relaid(pure, other, widths))
    logits, gradients = programs.compiled(setting, model)(params, batch)
    back = named(relaid(nnx.to_pure_dict(gradients), own, widths))
    yield from compared(row, Outcome({"logits": logits}, back), expected)


def scan(setting: Setting, batch: Batch, expected: Outcome) -> Iterator[Row]:
    """Layers as one compiled loop if the config unrolls them on this device, and the reverse."""
    model = setting.model
    scans = nnx.eval_shape(lambda: Transformer(model, rngs=nnx.Rngs(0))).scan
    names = ("unrolled layers", "scanned layers") if scans else ("scanned layers", "unrolled layers")
    row = Row(*names, "output", setting.dtype)
    if pattern.period(model) == model.num_layers:
        reason = "one layer" if model.num_layers == 1 else "no pattern of layers repeats: there is nothing to scan"
        yield dataclasses.replace(row, part="output, gradient", reason=reason)
        return
    other = programs.compiled(setting, setting.having(scan_layers="no" if scans else "yes"))
    yield from compared(row, programs.outcome(setting, other, batch), expected)


def remat(setting: Setting, batch: Batch, expected: Outcome) -> Iterator[Row]:
    """Activations recomputed in the backward pass, or not."""
    own = setting.model.remat
    for way in fields.choices("model.remat"):
        if way != own:
            other = programs.compiled(setting, setting.having(remat=way))
            row = Row(f"remat {way}", f"remat {own}", "output", setting.dtype)
            yield from compared(row, programs.outcome(setting, other, batch), expected)


def relaid(pure: dict[str, Any], qkv: str, widths: list[int]) -> dict[str, Any]:
    """Returns a model's parameters (or gradients) with queries, keys and values fused into one matrix, or split."""
    attention = dict(pure["blocks"]["attention"])
    if qkv == "fused":
        parts = [attention.pop(name) for name in PARTS]
        attention["qkv"] = {name: jnp.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}
    else:
        whole = attention.pop("qkv")
        cuts = np.cumsum(widths)[:-1]
        split = {name: jnp.split(leaf, cuts, axis=-1) for name, leaf in whole.items()}
        for index, name in enumerate(PARTS):
            attention[name] = {leaf: result[index] for leaf, result in split.items()}
    return {**pure, "blocks": {**pure["blocks"], "attention": attention}}


def documents(setting: Setting) -> Iterator[Row]:
    """Two documents packed in a row, and documents behind padding, against each document by itself."""
    length, half = setting.length, (setting.length - 2) // 2
    pairs = setting.tokens()[:, : 2 * half].reshape(setting.batch, 2, half)
    alone = programs.plain(pairs.reshape(-1, half))
    separate, together = programs.compiled(setting), programs.compiled(setting)
    end = [(0, 0), (0, length - 2 * half)]
    order = np.tile(np.arange(half, dtype=np.int32), (setting.batch, 2))
    packed = {name: np.pad(leaf.reshape(setting.batch, -1), end) for name, leaf in alone.items()}
    packed |= {"positions": np.pad(order, end), "segments": np.pad(np.repeat([[1, 2]], half, 1), end)}
    packed["segments"] = np.broadcast_to(packed["segments"], packed["tokens"].shape).astype(np.int32)
    expected = programs.outcome(setting, separate, alone)
    result = programs.outcome(setting, together, packed)
    logits = result.output["logits"][:, : 2 * half].reshape(2 * setting.batch, half, -1)
    row = Row("packed documents", "each by itself", "output", setting.dtype)
    yield from compared(row, Outcome({"logits": logits}, result.gradient), expected)

    # The first documents again, at the end of their rows; the others have no weight in the gradient.
    start = [(0, 0), (length - half, 0)]
    first = {name: leaf.reshape(setting.batch, 2, half)[:, 0] for name, leaf in alone.items()}
    padded = {name: np.pad(leaf, start) for name, leaf in first.items()}
    padded |= {"positions": np.pad(order[:, :half], start), "segments": np.pad(np.ones_like(order[:, :half]), start)}
    result = programs.outcome(setting, together, padded)
    weights = alone["weights"].reshape(setting.batch, 2, half) * np.array([1, 0])[:, None]
    expected = programs.outcome(setting, separate, {**alone, "weights": weights.reshape(-1, half).astype(np.float32)})
    row = Row("left padding", "no padding", "output", setting.dtype)
    ours = Outcome({"logits": result.output["logits"][:, length - half :]}, result.gradient)
    yield from compared(row, ours, Outcome({"logits": expected.output["logits"][::2]}, expected.gradient))
