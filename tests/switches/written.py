"""Positions as their papers write them, in float64 NumPy: what the product's own are held against.

Nothing here is shared with `models`: the formulas are written again, by loops and complex numbers where those read like
the paper. `model` is a resolved config.model everywhere, `p` an array of positions [T].
"""

import math
from typing import Any

import numpy as np
from ml_collections import ConfigDict

Arrays = dict[str, Any]  # parameters by name, float64


def width_of_turn(model: ConfigDict) -> int:
    """Returns how many dims of a head there are to turn."""
    return model.attention.mla.rope_dim if model.attention.kind == "mla" else model.head_dim


def frequencies(model: ConfigDict, kind: str, length: int) -> tuple[np.ndarray, float]:
    """Returns (w [r/2], the factor on cos and sin) of a sequence of `length` tokens."""
    rope = model.position.rope
    r = width_of_turn(model) if kind == "p_rope" else int(width_of_turn(model) * rope.fraction)
    scaling = rope.scaling
    w = np.array([rope.theta ** (-2 * i / r) for i in range(r // 2)])
    factor = 1.0
    if scaling.kind != "none" and kind != "xpos":
        w, factor = scaled(scaling, w, rope.theta, r, length)
    if kind == "p_rope":
        w = np.where(np.arange(r // 2) < math.floor(rope.fraction * r / 2), w, 0.0)
    return w, factor


def scaled(scaling: ConfigDict, w: np.ndarray, theta: float, r: int, length: int) -> tuple[np.ndarray, float]:
    """Returns a RoPE scaling's frequencies, from the plain w, and its factor."""
    s, trained = scaling.factor, scaling.original_length
    pairs = range(len(w))
    match scaling.kind:
        case "linear":
            return w / s, 1.0
        case "ntk":
            return np.array([(theta * s ** (r / (r - 2))) ** (-2 * i / r) for i in pairs]), 1.0
        case "dynamic":
            base = theta * (s * max(length, trained) / trained - (s - 1)) ** (r / (r - 2))
            return np.array([base ** (-2 * i / r) for i in pairs]), 1.0
        case "ntk_by_parts":
            return np.array([_by_parts(scaling, x, s, trained) for x in w]), 1.0
        case "llama3":
            return np.array([_llama3(scaling, x, s, trained) for x in w]), 1.0
        case "longrope":
            lists = scaling.long_factor if length > trained else scaling.short_factor
            factor = scaling.attention_factor or math.sqrt(1 + math.log(s) / math.log(trained) if s > 1 else 1)
            return w / np.array(lists), factor
        case "yarn":
            return _yarn(scaling, w, theta, r)
    raise ValueError(f"no formula is written for the RoPE scaling {scaling.kind!r}")


def _by_parts(scaling: ConfigDict, w: float, s: float, trained: int) -> float:
    rotations = trained / (2 * math.pi / w)
    if rotations < scaling.beta_slow:
        return w / s
    if rotations > scaling.beta_fast:
        return w
    gamma = (rotations - scaling.beta_slow) / (scaling.beta_fast - scaling.beta_slow)
    return (1 - gamma) * w / s + gamma * w


def _llama3(scaling: ConfigDict, w: float, s: float, trained: int) -> float:
    wavelength = 2 * math.pi / w
    if wavelength < trained / scaling.high_freq_factor:
        return w
    if wavelength > trained / scaling.low_freq_factor:
        return w / s
    smooth = (trained / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - smooth) * w / s + smooth * w


def _yarn(scaling: ConfigDict, w: np.ndarray, theta: float, r: int) -> tuple[np.ndarray, float]:
    def dim(rotations: float) -> float:
        return r * math.log(scaling.original_length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dim(scaling.beta_fast), dim(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, r - 1)
    high += 0.001 if low == high else 0
    results = []
    for i, x in enumerate(w):
        ramp = min(max((i - low) / (high - low), 0), 1)
        results.append(ramp * x / scaling.factor + (1 - ramp) * x)
    both = scaling.mscale and scaling.mscale_all_dim
    quotient = mscale(scaling, scaling.mscale) / mscale(scaling, scaling.mscale_all_dim) if both else mscale(scaling, 1)
    return np.array(results), scaling.attention_factor or quotient


def mscale(scaling: ConfigDict, m: float) -> float:
    """Returns YaRN's g(m) = 0.1 m ln s + 1."""
    return 0.1 * m * math.log(scaling.factor) + 1


def turned(
    model: ConfigDict, kind: str, x: np.ndarray, p: np.ndarray, length: int, *, keys: bool = False
) -> np.ndarray:
    """Returns x [T, heads, K] turned by its positions, a pair of dims as a complex number."""
    if kind not in ("rope", "p_rope", "xpos"):
        return x
    w, factor = frequencies(model, kind, length)
    r = 2 * len(w)
    pairs = [(i, i + r // 2) if model.position.rope.pairing == "half" else (2 * i, 2 * i + 1) for i in range(r // 2)]
    result = x.copy()
    for i, (a, b) in enumerate(pairs):
        spin = factor * np.exp(1j * p * w[i])
        if kind == "xpos":
            zeta = (2 * i / r + 0.4) / 1.4
            spin = spin * zeta ** ((-p if keys else p) / model.position.xpos.base)
        z = (x[:, :, a] + 1j * x[:, :, b]) * spin[:, None]
        result[:, :, a], result[:, :, b] = z.real, z.imag
    return result


def embedded(model: ConfigDict, kind: str, schemes: Arrays, p: np.ndarray) -> np.ndarray:
    """Returns what is added to the token embedding [T, D]."""
    result = np.zeros((len(p), model.width))
    if kind == "learned":
        result += schemes["learned"]["table"][p]
    if kind == "sinusoidal":
        for d in range(model.width):
            angle = p / 10000 ** (2 * (d // 2) / model.width)
            result[:, d] = np.sin(angle) if d % 2 == 0 else np.cos(angle)
    return result


def slope(head: int, heads: int) -> float:
    """Returns ALiBi's m of a head, counted from 0."""
    below = 2 ** math.floor(math.log2(heads))
    if head < below:
        return 2 ** (-8 * (head + 1) / below)
    return 2 ** (-8 * (2 * (head - below) + 1) / (2 * below))


def bucket(distance: int, buckets: int, most: int) -> int:
    """Returns T5's bucket of a key `distance` before the query."""
    exact = buckets // 2
    if distance < exact:
        return max(distance, 0)
    growth = np.log(np.float32(distance) / np.float32(exact)) / np.float32(math.log(most / exact))
    return min(exact + int(growth * np.float32(buckets - exact)), buckets - 1)


def bias(model: ConfigDict, kind: str, own: Arrays, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Returns what is added to the scores, [H, T, S], of queries at q [T] and keys at k [S]; `own`: of one layer."""
    heads = model.num_heads
    distance = np.abs(q[:, None] - k[None, :])
    match kind:
        case "alibi":
            return np.stack([-slope(h, heads) * distance for h in range(heads)]).astype(np.float64)
        case "t5":
            t5 = model.position.t5
            rows = [[bucket(int(i - j), t5.buckets, t5.max_distance) for j in k] for i in q]
            return np.moveaxis(own["bias_table"][np.array(rows)], 2, 0)
        case "kerple_log" | "kerple_power":
            r1, r2 = (np.maximum(own[name], 0.01)[:, None, None] for name in ("bias_r1", "bias_r2"))
            return -r1 * np.log(1 + r2 * distance) if kind == "kerple_log" else -r1 * distance ** np.minimum(r2, 2)
        case "fire":
            c, limit = abs(own["distance_scale"][0]), abs(model.position.fire.threshold * own["threshold_scale"][0])
            x = np.log(c * distance + 1) / (np.log(c * np.maximum(q, limit)[:, None] + 1) + 1e-6)
            hidden = np.maximum(x[..., None] * own["hidden"] + own["hidden_bias"], 0)
            return np.moveaxis(hidden @ own["out"] + own["out_bias"], 2, 0)
        case "none" | "learned" | "sinusoidal" | "rope" | "p_rope" | "xpos" | "cope":  # act elsewhere
            return np.zeros((heads, len(q), len(k)))
    raise ValueError(f"no formula is written for positions {kind!r}")


def cope(table: np.ndarray, q: np.ndarray, scores: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Returns what CoPE adds to a head's scores [T, T], from its queries [T, K]."""
    gates = np.where(visible, 1 / (1 + np.exp(-scores)), 0)
    result = np.zeros_like(scores)
    for i in range(len(q)):
        at = q[i] @ table.T
        for j in range(i + 1):
            p = min(gates[i, j:].sum(), len(table) - 1)
            low, high = math.floor(p), math.ceil(p)
            result[i, j] = (1 - (p - low)) * at[low] + (p - low) * at[high]
    return result


def temperature(model: ConfigDict, kind: str, p: np.ndarray) -> np.ndarray:
    """Returns the factor on queries [T] in a layer with this kind of positions."""
    heat = model.position.temperature
    nope = heat.layers == "nope" or (heat.layers == "auto" and heat.kind == "llama4")
    if heat.kind == "none" or (nope and kind != "none"):
        return np.ones(len(p))
    if heat.kind == "log_n":
        return np.array([max(1.0, math.log(x + 1) / math.log(heat.length)) for x in p])
    start = 1 if heat.kind == "llama4" else 0
    return np.array([1 + heat.beta * math.log(1 + (int(x) + start) // heat.length) for x in p])
