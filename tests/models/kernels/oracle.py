"""Attention and its gradients in float64 NumPy, written from the definition alone, and cases to try cores on."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Ints = list[list[int]]


class Result(NamedTuple):
    out: np.ndarray
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dslope: np.ndarray
    dsinks: np.ndarray


@dataclasses.dataclass(frozen=True)
class Case:
    """What is asked of a core. Positions and segments are rows of numbers; one row serves the whole batch."""

    T: int = 21
    S: int = 21
    H: int = 4
    G: int = 2
    K: int = 5
    V: int = 5
    B: int = 2
    causal: bool = True
    window: int | None = None
    soft_cap: float | None = None
    scale: float | None = None
    bias: bool = False
    sinks: bool = False
    aligned: bool = True
    q_positions: Ints | None = None
    kv_positions: Ints | None = None
    q_segments: Ints | None = None
    kv_segments: Ints | None = None

    def arrays(self, seed: int = 0) -> dict[str, np.ndarray]:
        draw = np.random.default_rng(seed).standard_normal
        return {
            "q": draw((self.B, self.T, self.H, self.K)),
            "k": draw((self.B, self.S, self.G, self.K)),
            "v": draw((self.B, self.S, self.G, self.V)),
            "slope": draw(self.H),
            "sinks": draw(self.H),
            "d_out": draw((self.B, self.T, self.H, self.V)),
        }

    def options(self) -> dict[str, Any]:
        names = ("q_positions", "kv_positions", "q_segments", "kv_segments")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {name: np.asarray(value, np.int32) for name, value in given.items()}

    def row(self, name: str, b: int) -> list[int]:
        given = getattr(self, name)
        if given is not None:
            return given[b % len(given)]
        length = self.T if name.startswith("q") else self.S
        if name.endswith("segments"):
            return [1] * length
        return [i + (self.S - self.T if name.startswith("q") else 0) for i in range(length)]

    def sees(self, b: int, i: int, j: int) -> bool:
        q, kv = self.row("q_positions", b)[i], self.row("kv_positions", b)[j]
        q_segment, kv_segment = self.row("q_segments", b)[i], self.row("kv_segments", b)[j]
        if q_segment != kv_segment or kv_segment == 0:
            return False
        return not self.causal or (kv <= q and (self.window is None or q - kv < self.window))

    def mask(self) -> np.ndarray:
        return np.array(
            [[[self.sees(b, i, j) for j in range(self.S)] for i in range(self.T)] for b in range(self.B)], bool
        )


def bias_of(slope: Any, q_positions: Any, kv_positions: Any, sin: Callable[[Any], Any]) -> Any:
    """A bias [B|1, H, T, S] that depends on position and on a parameter: sin(slope_h (q - k) / 4)."""
    distance = q_positions[:, None, :, None] - kv_positions[:, None, None, :]
    return sin(slope[None, :, None, None] * distance / 4)


def attention(
    case: Case,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    slope: np.ndarray,
    sinks: np.ndarray,
    d_out: np.ndarray,
    added: np.ndarray | None = None,
) -> Result:
    """The output, and the gradients of sum(out * d_out); `added` [B, H, T, S] is another bias."""
    scale = case.K**-0.5 if case.scale is None else case.scale
    out, dq, dk, dv, dslope, dsinks = (np.zeros_like(x, np.float64) for x in (d_out, q, k, v, slope, sinks))
    mask = case.mask()
    for b in range(case.B):
        q_positions, kv_positions = np.array(case.row("q_positions", b)), np.array(case.row("kv_positions", b))
        distance = q_positions[:, None] - kv_positions[None, :]
        for h in range(case.H):
            g = h // (case.H // case.G)
            raw = scale * q[b, :, h] @ k[b, :, g].T
            capped = raw if case.soft_cap is None else case.soft_cap * np.tanh(raw / case.soft_cap)
            scores = capped + (np.sin(slope[h] * distance / 4) if case.bias else 0)
            scores = scores if added is None else scores + added[b, h]
            # The sink is one more key, seen by all, with a value of zero.
            scores = np.concatenate([scores, np.full((case.T, 1), sinks[h])], axis=1)
            seen = np.concatenate([mask[b], np.full((case.T, 1), case.sinks)], axis=1)
            weights = np.where(seen, np.exp(scores - scores.max()), 0)
            total = weights.sum(1, keepdims=True)
            weights, sink = np.split(weights / np.where(total == 0, 1, total), [case.S], axis=1)
            out[b, :, h] = weights @ v[b, :, g]
            d_weights = d_out[b, :, h] @ v[b, :, g].T
            d_scores = weights * (d_weights - (weights * d_weights).sum(1, keepdims=True))
            dsinks[h] += (sink * (0 - (weights * d_weights).sum(1, keepdims=True))).sum()
            if case.bias:
                dslope[h] += (d_scores * np.cos(slope[h] * distance / 4) * distance / 4).sum()
            if case.soft_cap is not None:
                d_scores = d_scores * (1 - (capped / case.soft_cap) ** 2)
            dq[b, :, h] = scale * d_scores @ k[b, :, g]
            dk[b, :, g] += scale * d_scores.T @ q[b, :, h]
            dv[b, :, g] += weights.T @ d_out[b, :, h]
    return Result(out, dq, dk, dv, dslope, dsinks)


def documents(*lengths: int, start: int = 1) -> tuple[list[int], list[int]]:
    """Positions and segments of documents side by side; a negative length is padding."""
    positions: list[int] = []
    segments: list[int] = []
    for number, length in enumerate(lengths, start):
        positions += list(range(abs(length)))
        segments += [0 if length < 0 else number] * abs(length)
    return positions, segments


def packed(*rows: tuple[int, ...], **changes: Any) -> Case:
    """A case of packed rows, self-attention."""
    laid = [documents(*row) for row in rows]
    positions, segments = [p for p, _ in laid], [s for _, s in laid]
    length = len(positions[0])
    return Case(
        T=length, S=length, B=len(rows), q_positions=positions, kv_positions=positions, q_segments=segments,
        kv_segments=segments, **changes,
    )  # fmt: skip


def cached(**changes: Any) -> Case:
    """Three queries of two rows against a cache of 24 slots, of which 17 and 12 hold tokens, one row left padded."""
    slots = [[1] * 17 + [0] * 7, [0] * 5 + [2] * 12 + [0] * 7]
    places = [[*range(17), *[0] * 7], [*[0] * 5, *range(12), *[0] * 7]]
    return Case(
        T=3, S=24, q_positions=[[14, 15, 16], [9, 10, 11]], kv_positions=places, q_segments=[[1] * 3, [2] * 3],
        kv_segments=slots, aligned=False, **changes,
    )  # fmt: skip


CASES = {
    "plain": Case(),
    "whole blocks, MHA": Case(T=24, S=24, H=3, G=3, K=4, V=4),
    "MQA, its own scale": Case(H=4, G=1, scale=0.3),
    "window of one": Case(window=1),
    "window": Case(window=6, H=2, G=1),
    "window, whole blocks": Case(T=24, S=24, window=10),
    "soft cap, window over blocks": Case(T=30, S=30, window=19, soft_cap=1.5, bias=True),
    "bias": Case(bias=True),
    "sinks": Case(sinks=True, window=6),
    "sinks, bias and soft cap": Case(H=4, G=1, sinks=True, bias=True, soft_cap=1.5),
    "sinks, padding": packed((5, 11, -5), (-3, 2, 16), window=5, sinks=True),
    "sinks, padding alone": packed((-21,), (21,), sinks=True),
    "sinks, cache": cached(sinks=True),
    "narrow values": Case(K=6, V=4, bias=True, sinks=True),
    "wide values": Case(K=3, V=7, H=2, G=1, window=6),
    "last queries": Case(T=9, bias=True),
    "queries before any key": Case(T=21, S=10, window=4),
    "all see all": Case(causal=False, T=13, S=19, bias=True),
    "documents": packed((9, 12), (21,), bias=True),
    "documents, padding, window": packed((5, 11, -5), (-3, 2, 16), window=5, soft_cap=2.0),
    "left padding": packed((-8, 13), (-1, 20)),
    "padding alone": packed((-21,), (21,)),
    "gaps in positions": Case(
        window=7, q_positions=[[i + i // 4 * 5 for i in range(21)]], kv_positions=[[i + i // 4 * 5 for i in range(21)]]
    ),
    "cache": cached(bias=True),
    "cache, window": cached(window=4, soft_cap=3.0),
    "padding, all see all": packed((16, -5), (7, 14), causal=False),
}
