"""Attention: one function, `attend`, and the kernels behind it; `choose` alone says which of them runs."""

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from models import axes
from models.kernels import pallas
from models.kernels.block import SAVED
from models.kernels.choice import choose, kernel_for
from models.kernels.divided import divided
from models.kernels.kernel import Kernel, Needs, Scoring
from models.kernels.masks import Masking
from models.kernels.pallas import interpreting
from models.kernels.reference import scored, weighed
from models.kernels.registry import KERNELS
from models.positions.head_bias import HeadBias
from models.positions.scheme import BiasFunction, ScoresFunction
from models.switches.weighting import Weighting

__all__ = ["KERNELS", "Kernel", "Needs", "Scoring", "attend", "choose", "interpreting", "kernel_for", "maps"]


def attend(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGV: Array,
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
    sinks: Array | None = None,
    weighting: Weighting | None = None,
    scale: float | None = None,
    kernel: str = "auto",
    aligned: bool = True,
    platform: str | None = None,
) -> Array:
    """Returns attention [B, T, H, V] in q's dtype, V the values' dim, mostly K.

    Scores are scale * q.k, then the soft cap, then the bias, then what `scores` adds, then the mask (booleans, combined
    once), then a softmax in float32. Query head h reads key/value head h // (H/G). A query that sees no key gets zeros.

    A head's sink is one more score in its softmax's denominator, of a key that no mask hides and whose value is zero:
    weights are exp(s_j) / (exp(sink) + sum over keys of exp(s)), as gpt-oss learns them (2508.10925), so that a head
    may attend to nothing. StreamingLLM (2309.17453) found the need, and serves it by first tokens that stay.

    Args:
        q_BTHK: queries.
        k_BSGK: keys; G divides H.
        v_BSGV: values; their dim may differ from the keys'. xla, cudnn and flash pad the smaller of K and V with zeros.
        q_positions: int32 [B|1, T]; None: S - T + i for query i, so the last query is at the last key.
        kv_positions: int32 [B|1, S]; None: 0 .. S - 1.
        q_segments: int32 [B|1, T]; 0 is padding, which neither sees nor is seen. Both segments or neither.
        kv_segments: int32 [B|1, S].
        causal: whether a query sees only keys whose position is at most its own.
        window: keys a query sees, itself included; needs `causal`.
        bias: function of (q_positions [B|1, T'], kv_positions [B|1, S']) -> [B|1, H, T', S'] float32, called per
            block; gradients reach the arrays it closes over.
        scores: function of the scores that is added to them (see `ScoresFunction`), for `reference` alone.
        soft_cap: scores become cap * tanh(scores / cap).
        sinks: [H], see above; neither scaled nor capped.
        weighting: what makes weights of scores in the softmax's place, for `reference` alone.
        scale: multiplies q.k; None: 1/sqrt(K).
        kernel: a kernel's name, or auto.
        aligned: whether query i is key row S - T + i and positions grow along the row within each segment
            (self-attention without a cache); then blocks that the row order hides are skipped. Give False for a cache.
        platform: cpu, gpu or tpu; None: where JAX runs.

    Raises:
        ConfigError: the kernel cannot do what is asked.
        ValueError: shapes do not fit, segments for one side only, or a window without `causal`.
    """
    _check(q_BTHK, k_BSGK, v_BSGV, sinks, weighting, q_segments, kv_segments, causal, window)
    B, T, _, K = q_BTHK.shape
    S = k_BSGK.shape[1]
    masking = Masking(T, S, causal, window, aligned, q_positions, kv_positions, q_segments, kv_segments)
    # Where rows are cut along their length, a device's queries are not the last rows of its keys.
    cut = axes.shards("length") > 1
    needs = Needs(
        platform=pallas.platform() if platform is None else platform,
        dtype=q_BTHK.dtype,
        head_dim=K,
        value_dim=v_BSGV.shape[3],
        q_len=T,
        kv_len=S,
        batch=B,
        bias=bias is not None,
        by_head=isinstance(bias, HeadBias),
        scores=scores is not None,
        weighting=None if weighting is None else weighting.name,
        soft_cap=soft_cap,
        sinks=sinks is not None,
        window=window,
        segments=q_segments is not None,
        positions=masking.has_positions or cut,
        aligned=aligned and not cut,
    )
    name = choose(kernel, needs)
    run = KERNELS[name].run
    scoring = Scoring(K**-0.5 if scale is None else scale, bias, soft_cap, sinks, scores, weighting)
    with jax.named_scope(f"attention_{name}"):
        # What reads the scores runs in plain array operations, which XLA divides by itself.
        if axes.divided() and scores is None and weighting is None:
            out = divided(run, q_BTHK, k_BSGK, v_BSGV, masking, scoring)
        else:
            out = run(q_BTHK, k_BSGK, v_BSGV, masking, scoring)
        return checkpoint_name(out, SAVED)


def maps(
    q_BTHK: Array,
    k_BSGK: Array,
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
    sinks: Array | None = None,
    weighting: Weighting | None = None,
    scale: float | None = None,
    aligned: bool = True,
) -> tuple[Array, Array]:
    """Returns (scores, weights), float32 [B, H, T, S], as `reference` has them on the way to what `attend` returns.

    Arguments as of `attend`. A hidden key's score is -inf. Weights of a query add up to 1, to 0 where it sees no key,
    and with sinks to what they leave.
    """
    _check(q_BTHK, k_BSGK, k_BSGK, sinks, weighting, q_segments, kv_segments, causal, window)
    B, T, H, K = q_BTHK.shape
    S = k_BSGK.shape[1]
    masking = Masking(T, S, causal, window, aligned, q_positions, kv_positions, q_segments, kv_segments)
    scoring = Scoring(K**-0.5 if scale is None else scale, bias, soft_cap, sinks, scores, weighting)
    result = scored(q_BTHK, k_BSGK, masking, scoring)
    return result.reshape(B, H, T, S), weighed(result, sinks, weighting, 1).reshape(B, -1, T, S)


def _check(
    q: Array,
    k: Array,
    v: Array,
    sinks: Array | None,
    weighting: Weighting | None,
    q_segments: Array | None,
    kv_segments: Array | None,
    causal: bool,
    window: int | None,
) -> None:
    shapes = (q.shape, k.shape, v.shape)
    alike = 2 if weighting is not None and weighting.combine is not None else 3  # axes of keys and values
    if {len(s) for s in shapes} != {4} or k.shape[:alike] != v.shape[:alike] or q.shape[::3] != k.shape[::3]:
        raise ValueError(f"attention needs q [B, T, H, K], k [B, S, G, K] and v [B, S, G, V], not {shapes}")
    if q.shape[2] % k.shape[2]:
        raise ValueError(f"{k.shape[2]} key/value heads do not divide {q.shape[2]} query heads")
    if sinks is not None and sinks.shape != (q.shape[2],):
        raise ValueError(f"sinks must be [{q.shape[2]}], one for each query head, not {sinks.shape}")
    if (q_segments is None) != (kv_segments is None):
        raise ValueError("segments must be given for queries and keys, or for neither")
    if window is not None and (window < 1 or not causal):
        raise ValueError(f"a window (here {window}) must be 1 or more, and needs a causal mask")
