"""A peer: the same Llama in JAX as commonly written, with `jax.nn.dot_product_attention` and `optax.adamw`.

Nothing of ours is used: no blocks, no kernels, no custom gradients.
"""

import itertools
import sys
from typing import Any

from bench.speed.cases import Case
from bench.speed.serving import Work, cores, serve

if __name__ == "__main__":
    cores(int(sys.argv[1]))

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

Params = dict[str, Any]


def initial(case: Case) -> Params:
    """Returns the parameters: an embedding [V, D], a list of layers, and the last norm."""
    draw = np.random.default_rng(0)
    head = case.width // case.heads

    def matrix(rows: int, columns: int) -> Array:
        return jnp.asarray(0.02 * draw.standard_normal((rows, columns)), jnp.float32)

    def layer() -> Params:
        return {
            "query": matrix(case.width, case.heads * head),
            "key": matrix(case.width, case.kv_heads * head),
            "value": matrix(case.width, case.kv_heads * head),
            "out": matrix(case.heads * head, case.width),
            "gate": matrix(case.width, case.mlp),
            "up": matrix(case.width, case.mlp),
            "down": matrix(case.mlp, case.width),
            "attention_norm": jnp.ones(case.width),
            "mlp_norm": jnp.ones(case.width),
        }

    layers = [layer() for _ in range(case.layers)]
    return {"embedding": matrix(case.vocab, case.width), "layers": layers, "norm": jnp.ones(case.width)}


def norm(x: Array, scale: Array) -> Array:
    """RMSNorm."""
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6) * scale


def rotate(x_BTHK: Array) -> Array:
    """RoPE, in halves."""
    half = x_BTHK.shape[-1] // 2
    angles = jnp.arange(x_BTHK.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    cos, sin = (f(angles)[None, :, None, :].astype(x_BTHK.dtype) for f in (jnp.cos, jnp.sin))
    first, second = jnp.split(x_BTHK, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def logits_of(case: Case, params: Params, tokens_BT: Array) -> Array:
    """Returns logits [B, T, V]."""
    x = params["embedding"][tokens_BT].astype(case.dtype)
    for layer in params["layers"]:
        y = norm(x, layer["attention_norm"]).astype(case.dtype)
        q, k, v = (y @ layer[name].astype(case.dtype) for name in ("query", "key", "value"))
        q = rotate(q.reshape(*q.shape[:2], case.heads, -1))
        k = rotate(k.reshape(*k.shape[:2], case.kv_heads, -1))
        y = jax.nn.dot_product_attention(q, k, v.reshape(k.shape), is_causal=True)
        x = x + y.reshape(x.shape) @ layer["out"].astype(case.dtype)
        y = norm(x, layer["mlp_norm"]).astype(case.dtype)
        gated = jax.nn.silu(y @ layer["gate"].astype(case.dtype)) * (y @ layer["up"].astype(case.dtype))
        x = x + gated @ layer["down"].astype(case.dtype)
    return (norm(x, params["norm"]) @ params["embedding"].T).astype(jnp.float32)


def prepare(case: Case) -> Work:
    """Returns a training case's work."""
    if case.kind != "train":
        raise ValueError(f"this peer trains, and {case.name} is {case.kind}")
    transform = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, 0.9, 0.95, weight_decay=0.1))

    def loss(params: Params, tokens: Array) -> Array:
        logits = logits_of(case, params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(params: Params, opt_state: Any, tokens: Array) -> tuple[Params, Any, Array]:
        value, grads = jax.value_and_grad(loss)(params, tokens)
        updates, opt_state = transform.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    program = jax.jit(step, donate_argnums=(0, 1))
    params = initial(case)
    state: list[Any] = [params, transform.init(params)]
    rows = np.random.default_rng(0).integers(0, case.vocab, (4, case.batch, case.length + 1), dtype=np.int32)
    feed = itertools.cycle(list(rows))

    def work() -> None:
        state[0], state[1], value = program(*state, next(feed))
        value.block_until_ready()

    return work


if __name__ == "__main__":
    serve(prepare, {"jax": jax.__version__})
