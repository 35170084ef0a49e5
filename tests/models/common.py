"""Tiny models, and an independent float64 forward in NumPy."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

import models
from configs import base, fields, validate
from models import pattern

GPT2 = {
    "mlp": "gelu",
    "norm": "layernorm",
    "norm_bias": True,
    "norm_eps": 1e-5,
    "mlp_bias": True,
    "attention.qkv": "fused",
    "attention.qkv_bias": True,
    "attention.out_bias": True,
    "position.kind": "learned",
    "position.max_length": 32,
}


def tiny(**changes: Any) -> ConfigDict:
    """Returns a resolved config.model of 2 layers, width 16, 4 heads, 2 KV heads; dots are written `__`."""
    config = base.get_config()
    groups = 2 if changes.get("attention__kind", "gqa") == "gqa" else None
    small = dict(width=16, num_layers=2, num_heads=4, num_kv_heads=groups, mlp_width=24, vocab_size=32)
    config.data.weights.text, config.data.weights.mqar, config.data.mqar.vocab_size = 0.0, 1.0, 32
    config.data.length, config.data.mqar.pairs = min(16, changes.get("position__max_length") or 16), 1
    for name, value in {**small, **changes}.items():
        fields.set_field(config, f"model.{name.replace('__', '.')}", value)
    return validate.resolve(config).model


def build(config: ConfigDict, seed: int = 0, *, noisy: bool = True) -> models.Transformer:
    """Returns a model; `noisy` moves norms, biases and the like off their constant first values, positions furthest."""
    graphdef, params = models.initialise(config, seed)
    draw = np.random.default_rng(seed)

    def moved(path: Any, leaf: jax.Array) -> jax.Array:
        # NumPy adds it: JAX would compile an addition for every shape.
        by = np.float32(0.3 if "schemes" in jax.tree_util.keystr(path) else 0.1)
        return jnp.asarray(np.asarray(leaf) + by * draw.standard_normal(leaf.shape, np.float32))

    return nnx.merge(graphdef, jax.tree_util.tree_map_with_path(moved, params) if noisy else params)


def run(model: models.Transformer, *args: Any, **kwargs: Any) -> Any:
    """Calls a model under jit."""
    graphdef, params = nnx.split(model)
    function = jax.jit(lambda params, args, kwargs: nnx.merge(graphdef, params)(*args, **kwargs))
    return function(params, args, kwargs)


def normal(shape: tuple[int, ...], seed: int = 0) -> jax.Array:
    """Returns float32 numbers; JAX would compile its generator for every shape."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def tokens(rows: int, length: int, vocab: int = 32, seed: int = 3) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, vocab, (rows, length), np.int32))


def numpy_logits(
    config: ConfigDict, model: models.Transformer, ids: np.ndarray, stored: Callable[[np.ndarray], Any] = np.asarray
) -> np.ndarray:
    """Returns the logits [T, V] of one row, in float64, by loops over layers, heads and queries.

    `stored` is what becomes of each turned key and each value, a vector [K].
    """
    windows = [plan.window or len(ids) for plan in pattern.plans(config)]
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(nnx.state(model)))
    H, G, K = config.num_heads, config.num_kv_heads, config.head_dim

    def norm(x: np.ndarray, p: dict[str, np.ndarray], kind: str) -> np.ndarray:
        if kind == "layernorm":
            x = x - x.mean(-1, keepdims=True)
        y = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps) * p["scale"]
        return y + p.get("bias", 0.0)

    def linear(x: np.ndarray, p: dict[str, np.ndarray]) -> np.ndarray:
        return x @ p["kernel"] + p.get("bias", 0.0)

    def turn(x: np.ndarray, position: int) -> np.ndarray:
        if config.position.kind != "rope":
            return x
        r = int(K * config.position.rope.fraction)
        angle = position * config.position.rope.theta ** (-2.0 * np.arange(r // 2) / r)
        spun = (x[: r // 2] + 1j * x[r // 2 : r]) * np.exp(1j * angle)
        return np.concatenate([spun.real, spun.imag, x[r:]])

    x = params["embedding"][ids]
    if config.position.kind == "learned":
        x = x + params["schemes"]["learned"]["table"][: len(ids)]
    if config.embedding_norm:
        x = norm(x, params["embedding_norm"], config.norm)
    for layer in range(config.num_layers):
        block = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params["blocks"])
        attention = block["attention"]
        h = norm(x, block["attention_norm"], config.norm)
        if "qkv" in attention:
            q, k, v = np.split(linear(h, attention["qkv"]), [H * K, H * K + G * K], axis=-1)
        else:
            q, k, v = (linear(h, attention[name]) for name in ("query", "key", "value"))
        out = np.zeros((len(ids), H, K))
        for t in range(len(ids)):
            for head in range(H):
                group = head // (H // G)
                part = slice(group * K, (group + 1) * K)
                query = turn(q[t, head * K : (head + 1) * K], t)
                seen = range(max(0, t + 1 - windows[layer]), t + 1)
                scores = np.array([query @ stored(turn(k[s, part], s)) for s in seen]) / np.sqrt(K)
                total = np.exp(scores).sum() + (np.exp(attention["sinks"][head]) if "sinks" in attention else 0)
                out[t, head] = np.exp(scores) / total @ np.array([stored(v[s, part]) for s in seen])
        before, x = x, x + linear(out.reshape(len(ids), H * K), attention["out"])
        h = norm(before if config.residual == "parallel" else x, block["mlp_norm"], config.norm)
        up = linear(h, block["mlp"]["up"])
        if config.mlp == "swiglu":
            gate = linear(h, block["mlp"]["gate"])
            hidden = gate / (1 + np.exp(-gate)) * up
        else:
            hidden = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        x = x + linear(hidden, block["mlp"]["down"])
    table = params["embedding"] if config.tie_embeddings else params["head"]
    return norm(x, params["norm"], config.norm) @ table.T


def close(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(
        np.asarray(got, np.float64), np.asarray(expected, np.float64), atol=tolerance, rtol=tolerance
    )


def as_dict(params: Any) -> dict[str, jnp.ndarray]:
    """Returns parameters by dotted path."""
    return {
        ".".join(str(part.key) for part in path if isinstance(part, jax.tree_util.DictKey)): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
