"""Attention: one function, `attend`, and the cores behind it; `choose` alone says which of them runs."""

from collections.abc import Callable

import jax
from jax import Array

from models.kernels.blocked import blocked
from models.kernels.choice import KERNELS, choose, kernel_for
from models.kernels.cudnn import cudnn
from models.kernels.masks import Masking
from models.kernels.reference import reference
from models.kernels.xla import xla
from models.positions.scheme import BiasFunction, ScoresFunction

__all__ = ["KERNELS", "attend", "choose", "kernel_for"]

CORES: dict[str, Callable[..., Array]] = {"reference": reference, "blocked": blocked, "xla": xla, "cudnn": cudnn}


def attend(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGK: Array,
    *,
    q_positions: Array | None = None,
    kv_positions: Array | None = None,
    q_segments: Array | None = None,
    kv_segments: Array | None = None,
    causal: bool = True,
    window: int | None = None,
    bias: BiasFunction | None = None,
    scores: ScoresFunction | None = None,
    soft_cap: float | None = None,
    scale: float | None = None,
    kernel: str = "auto",
    aligned: bool = True,
    platform: str | None = None,
) -> Array:
    """Returns attention [B, T, H, K] in q's dtype.

    Scores are scale * q.k, then the soft cap, then the bias, then what `scores` adds, then the mask (booleans, combined
    once), then a softmax in float32. Query head h reads key/value head h // (H/G). A query that sees no key gets zeros.

    Args:
        q_BTHK: queries.
        k_BSGK: keys; G divides H.
        v_BSGK: values, of the keys' shape.
        q_positions: int32 [B|1, T]; None: S - T + i for query i, so the last query stands at the last key.
        kv_positions: int32 [B|1, S]; None: 0 .. S - 1.
        q_segments: int32 [B|1, T]; 0 is padding, which neither sees nor is seen. Both segments or neither.
        kv_segments: int32 [B|1, S].
        causal: whether a query sees only keys whose position is at most its own.
        window: keys a query sees, itself included; needs `causal`.
        bias: function of (q_positions [B|1, T'], kv_positions [B|1, S']) -> [B|1, H, T', S'] float32, called per
            block; gradients reach the arrays it closes over.
        scores: function of the scores that is added to them (see `ScoresFunction`), for `reference` alone.
        soft_cap: scores become cap * tanh(scores / cap).
        scale: multiplies q.k; None: 1/sqrt(K).
        kernel: a core's name, or auto.
        aligned: whether query i is key row S - T + i and positions grow along the row within each segment
            (self-attention without a cache); then blocks that the row order hides are skipped. Give False for a cache.
        platform: cpu, gpu or tpu; None: where JAX runs.

    Raises:
        ConfigError: the kernel cannot do what is asked.
        ValueError: shapes do not fit, segments for one side only, or a window without `causal`.
    """
    _check(q_BTHK, k_BSGK, v_BSGK, q_segments, kv_segments, causal, window)
    B, T, _, K = q_BTHK.shape
    S = k_BSGK.shape[1]
    masking = Masking(T, S, causal, window, aligned, q_positions, kv_positions, q_segments, kv_segments)
    name = choose(
        kernel,
        platform=jax.default_backend() if platform is None else platform,
        dtype=q_BTHK.dtype,
        head_dim=K,
        q_len=T,
        kv_len=S,
        batch=B,
        bias=bias is not None,
        scores=scores is not None,
        soft_cap=soft_cap,
        window=window,
        segments=q_segments is not None,
        positions=masking.has_positions,
        aligned=aligned,
    )
    scale = K**-0.5 if scale is None else scale
    with jax.named_scope(f"attention_{name}"):
        if scores is not None:
            return reference(q_BTHK, k_BSGK, v_BSGK, masking, bias=bias, scores=scores, soft_cap=soft_cap, scale=scale)
        return CORES[name](q_BTHK, k_BSGK, v_BSGK, masking, bias=bias, soft_cap=soft_cap, scale=scale)


def _check(
    q: Array, k: Array, v: Array, q_segments: Array | None, kv_segments: Array | None, causal: bool, window: int | None
) -> None:
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"attention needs q [B, T, H, K] and k, v [B, S, G, K], not {q.shape}, {k.shape}, {v.shape}")
    if q.shape[2] % k.shape[2]:
        raise ValueError(f"{k.shape[2]} key/value heads do not divide {q.shape[2]} query heads")
    if (q_segments is None) != (kv_segments is None):
        raise ValueError("segments must be given for queries and keys, or for neither")
    if window is not None and (window < 1 or not causal):
        raise ValueError(f"a window (here {window}) must be 1 or more, and needs a causal mask")
