"""What an attention kernel is given, what a call needs of it, and what it declares."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from jax import Array

from models.kernels.masks import Masking
from models.positions.scheme import BiasFunction, ScoresFunction
from models.switches.weighting import Weighting


@dataclass(frozen=True)
class Scoring:
    """How weights are made of queries and keys; see `attend`.

    Attributes:
        scale: multiplies q.k.
        bias: added to the scores; gradients reach the arrays it closes over.
        soft_cap: of the scores.
        sinks: [H], one more score in each head's softmax.
        scores: added to the scores, which it reads; for kernels with whole scores alone.
        weighting: makes weights of scores in the softmax's place; for kernels with whole scores alone.
    """

    scale: float
    bias: BiasFunction | None = None
    soft_cap: float | None = None
    sinks: Array | None = None
    scores: ScoresFunction | None = None
    weighting: Weighting | None = None


@dataclass(frozen=True)
class Needs:
    """What a call of attention needs of a kernel.

    Attributes:
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
        trains: whether a backward pass is known to follow.
    """

    platform: str
    dtype: Any
    head_dim: int
    q_len: int
    kv_len: int
    value_dim: int | None = None
    batch: int | None = None
    bias: bool = False
    by_head: bool = False
    scores: bool = False
    weighting: str | None = None
    soft_cap: float | None = None
    sinks: bool = False
    window: int | None = None
    segments: bool = False
    positions: bool = False
    aligned: bool = True
    trains: bool = False

    def __post_init__(self) -> None:
        if self.platform in ("cuda", "rocm"):
            object.__setattr__(self, "platform", "gpu")

    @property
    def width(self) -> int:
        """The larger of K and V: a kernel that takes keys and values of one width is given both at the larger."""
        return max(self.head_dim, self.value_dim or 0)

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key, in one head."""
        return self.q_len * self.kv_len


# Where whole score arrays begin to cost more than they save: from this many (query, key) pairs a head on, auto takes
# a kernel whose memory is linear.
WHOLE_SCORES = 2048 * 2048


class Run(Protocol):
    """Attention, [B, T, H, V] in the queries' dtype."""

    def __call__(self, q_BTHK: Array, k_BSGK: Array, v_BSGV: Array, masking: Masking, scoring: Scoring, /) -> Array:
        """Returns the output."""


@dataclass(frozen=True)
class Kernel:
    """One way to compute attention. What it must know of a config is declared in `configs.rules.kernels`.

    Attributes:
        run: computes it.
        rank: `auto` takes, of the kernels that can serve a call and want it, the one with the lowest rank.
        wants: whether `auto` should take the kernel for a call that it can serve.
        platforms: that it runs on; empty: on all.
        soft_cap: it has a soft cap.
        sinks: it has attention sinks.
        any_dims: it takes keys and values of any dims.
        lacks: why it cannot serve a call, in one line after its name; None: it can. Asked after what is declared here.
        interpreted: the platform that it is interpreted for where there is no accelerator (Pallas); empty: it is not.
        copies: it holds keys and values a second time for the backward pass.
        kept: (length, window, whether there is a bias) to the scores of one row and head that the backward pass keeps;
            with `copies` a measured part of the estimate of memory (`eval.cost.memory`).
        calls: platform -> how its custom calls begin in a compiled program; it has none on other platforms.
    """

    run: Run
    rank: int
    wants: Callable[[Needs], bool] = lambda needs: True
    platforms: tuple[str, ...] = ()
    soft_cap: bool = True
    sinks: bool = True
    any_dims: bool = False
    lacks: Callable[[Needs], str | None] = lambda needs: None
    interpreted: str = ""
    copies: bool = False
    kept: Callable[[int, int | None, bool], int] = lambda length, window, bias: 0
    calls: Mapping[str, str] = field(default_factory=dict)
