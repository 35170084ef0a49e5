"""The one place that decides which attention kernel runs."""

from typing import Any

import jax.numpy as jnp
from ml_collections import ConfigDict

from configs.errors import ConfigError, nearest
from configs.rules import layers
from configs.rules.attention import score_dims
from models import pattern

KERNELS = ("reference", "blocked", "xla", "cudnn", "splash", "flash", "fused")

WIDEST = 256  # head dim that the fused kernel's blocks fit in a chip's fast memory with

# Where whole score arrays begin to cost more than they save: from this many (query, key) pairs a head on, auto takes
# a kernel whose memory is linear.
WHOLE_SCORES = 2048 * 2048


def choose(
    kernel: str,
    *,
    platform: str,
    dtype: Any,
    head_dim: int,
    q_len: int,
    kv_len: int,
    value_dim: int | None = None,
    batch: int | None = None,
    bias: bool = False,
    by_head: bool = False,
    scores: bool = False,
    weighting: str | None = None,
    soft_cap: float | None = None,
    sinks: bool = False,
    window: int | None = None,
    segments: bool = False,
    positions: bool = False,
    aligned: bool = True,
) -> str:
    """Returns the name of the kernel that runs: `kernel` itself, or the choice of `auto`. Pure.

    `auto`: one query (decoding), and whatever reads the scores, takes `reference`; the CPU `blocked`; a GPU `cudnn`
    where it can do the whole job inside the kernel; a TPU `splash` where that can; `fused` for what these cannot;
    otherwise `xla`, or `blocked` where that would need too much memory or cannot do it.

    Args:
        kernel: auto or one of KERNELS.
        platform: cpu, gpu or tpu.
        dtype: of queries, keys and values.
        head_dim: K.
        q_len: T.
        kv_len: S.
        value_dim: V; None: K.
        batch: B, where known.
        bias: whether a bias is added to the scores.
        by_head: whether the bias is a `HeadBias`, which a kernel can compute itself.
        scores: whether a function of the scores is added to them (CoPE).
        weighting: what makes weights of scores where that is no plain softmax (`Weighting.name`).
        soft_cap: of the scores.
        sinks: whether heads have sinks.
        window: keys each query sees.
        segments: whether segments mask.
        positions: whether positions are given.
        aligned: whether queries are rows of the keys, in order.

    Raises:
        ConfigError: an unknown kernel, or one that cannot do what is asked: there is no silent fallback.
    """
    if kernel not in (*KERNELS, "auto"):
        raise ConfigError(
            f"model.attention.kernel = {kernel!r}: must be auto, {', '.join(KERNELS[:-1])} or {KERNELS[-1]}"
            f"{nearest(kernel, KERNELS)}"
        )
    platform = "gpu" if platform in ("cuda", "rocm") else platform
    # Kernels that need keys and values of equal width get both at the larger.
    needs = {"platform": platform, "dtype": dtype, "head_dim": max(head_dim, value_dim or 0), "batch": batch,
             "bias": bias, "by_head": by_head, "scores": scores, "weighting": weighting,
             "q_len": q_len, "kv_len": kv_len, "soft_cap": soft_cap,
             "sinks": sinks, "window": window, "segments": segments, "positions": positions,
             "aligned": aligned}  # fmt: skip
    if kernel != "auto":
        reason = obstacle(kernel, **needs)
        if reason:
            raise ConfigError(f"model.attention.kernel = {kernel!r}: {reason}")
        return kernel
    if scores or weighting or q_len == 1:
        return "reference"
    if platform == "cpu":
        return "blocked"
    masks_outside = bias or segments or q_len != kv_len or (positions and not (aligned and window is None))
    odd = q_len % 2 or kv_len % 2  # cuDNN's backward pass of rows of an odd length does not compile with every mask
    if not masks_outside and not odd and obstacle("cudnn", **needs) is None:
        return "cudnn"
    if obstacle("splash", **needs) is None:
        return "splash"
    if obstacle("fused", **needs) is None:
        return "fused"
    if bias and q_len * kv_len < WHOLE_SCORES and obstacle("flash", **needs) is None:
        return "flash"
    if q_len * kv_len >= WHOLE_SCORES or obstacle("xla", **needs):
        return "blocked"
    return "xla"


def obstacle(
    kernel: str,
    *,
    platform: str,
    dtype: Any,
    head_dim: int,
    batch: int | None,
    bias: bool,
    by_head: bool,
    scores: bool,
    weighting: str | None,
    q_len: int,
    kv_len: int,
    soft_cap: float | None,
    sinks: bool,
    window: int | None,
    segments: bool,
    positions: bool,
    aligned: bool,
) -> str | None:
    """Returns why a kernel does not support the call, or None."""
    if scores and kernel != "reference":
        return "never holds the whole scores, which the positions read (CoPE); reference does"
    if weighting and kernel != "reference":
        return f"makes weights by a plain softmax, and {weighting} needs the whole scores; reference holds them"
    if kernel in ("xla", "cudnn", "flash") and soft_cap is not None:
        return f"has no soft cap (model.attention.soft_cap = {soft_cap}); reference and blocked have"
    if kernel in ("cudnn", "flash") and sinks:
        return "has no attention sinks (model.attention.sinks); reference, blocked and xla have"
    if kernel in ("splash", "flash") and platform != "tpu":
        return f"runs on TPUs alone, and this is {platform}"
    if kernel == "splash":
        if bias:
            return "has no bias, which the positions add to the scores; flash, blocked and reference have"
        if positions and window is not None:
            return "counts a window in rows, and positions given (packing, padding) may have gaps; blocked counts them"
        if (positions or segments) and not aligned:
            return "needs queries and keys in the order of rows, and a KV cache has not"
        if q_len > kv_len:
            return f"needs a key for each query, and there are {q_len} queries and {kv_len} keys"
        return None
    if kernel == "fused":
        if platform not in ("gpu", "tpu"):
            return f"runs on GPUs and TPUs alone, and this is {platform}"
        if bias and not by_head:
            return "takes a bias that is defined by head (models/positions/head_bias.py), and this scheme's is not"
        if head_dim > WIDEST:
            return f"needs a head_dim of {WIDEST} at most, not {head_dim} (model.head_dim)"
        return None
    if kernel != "cudnn":
        return None
    if platform != "gpu":
        return f"runs on NVIDIA GPUs alone, and this is {platform}"
    if jnp.dtype(dtype) not in (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)):
        return f"computes in bfloat16 or float16, not {jnp.dtype(dtype).name} (model.dtype)"
    if head_dim % 8 or head_dim > 128:
        return f"needs a head_dim that is a multiple of 8, 128 at most, not {head_dim} (model.head_dim)"
    if bias and batch != 1:
        return "gives the gradient of a bias at batch 1 alone (jax #30593); blocked gives it at any"
    if bias and (q_len % 2 or kv_len % 2):
        return f"with a bias needs even lengths, not {q_len} and {kv_len}"
    return None


def kernel_for(config: ConfigDict, *, length: int, platform: str, packed: bool, cut: bool = False) -> str:
    """Returns the name of the kernel that training runs, for run.json.

    Args:
        config: a resolved config.model.
        length: tokens per row.
        platform: cpu, gpu or tpu.
        packed: whether the batches carry segments and positions.
        cut: whether devices share a row's tokens (mesh.context).

    Raises:
        ConfigError: the configured kernel cannot run.
    """
    from models.declared.attention import weighting_of
    from models.positions import has_head_bias, places_of

    attention = config.attention
    dtype = config.dtype if config.dtype != "auto" else "float32" if platform == "cpu" else "bfloat16"
    windows = {window or None for window in attention.window_pattern} or {attention.window}
    kinds = set(config.position.pattern) or {config.position.kind}
    every = {heads[:3]: pattern.of_layer(config, layer) for layer, heads in enumerate(layers.heads(config))}
    names = {
        choose(
            attention.kernel,
            platform=platform,
            dtype=dtype,
            head_dim=head_dim,
            value_dim=value_dim,
            q_len=length,
            kv_len=length,
            bias="bias" in places_of(kind),
            by_head=has_head_bias(kind),
            scores="scores" in places_of(kind),
            weighting=weighting_of(config),
            soft_cap=attention.soft_cap,
            sinks=attention.sinks,
            window=window,
            segments=packed,
            positions=packed or cut,
            aligned=not cut,
        )
        for window in windows
        for kind in kinds
        for head_dim, value_dim in map(score_dims, every.values())
    }
    return "+".join(sorted(names))
