"""Parameters, FLOPs and KV bytes of a config.model, from its declarations alone; JAX is not started.

L layers, H query heads, G KV heads, K head_dim, T length. Latent attention (MLA): K is nope_dim + rope_dim, Kv the
values' dim.
"""

from collections import defaultdict
from fractions import Fraction
from typing import Any

from ml_collections import ConfigDict

from models import pattern
from models.declared import attention, model, positions, switches
from models.declared.parameter import PARTS

N_COUNTS = (
    "every weight that multiplies an activation: attention and MLP matrices of all layers and the output matrix "
    "(also where it is the embedding's transpose); not the embedding table, positional schemes, norms and biases"
)
TOTAL_BYTES = 4  # of what switches keep of each token
SCALE_BYTES = 4  # of 8-bit storage, for each token and head


def parameters(config: ConfigDict) -> dict[str, int]:
    """Returns the number of parameters by part of a resolved config.model, vocab_size included.

    Parts: embedding, position (of positional schemes: tables, biases' numbers and MLPs), attention, mlp, norm, head (0
    where tied); `total`, their sum; and `non_embedding`, the total without embedding, position and head.
    """
    declared = model.parameters(config)
    parts = {part: sum(one.size for one in declared.values() if one.part == part) for part in PARTS}
    blocks = parts["attention"] + parts["mlp"] + parts["norm"]
    return {**parts, "total": sum(parts.values()), "non_embedding": blocks}


def visible_keys(length: int, window: int | None) -> Fraction:
    """Returns the keys that a query of a causal row sees on average: sum over t < T of min(t + 1, window) / T."""
    seen = min(length, window or length)
    return Fraction(seen * (seen + 1) + 2 * (length - seen) * seen, 2 * length)


def flops_per_token(config: ConfigDict, length: int, *, dense: bool = False) -> dict[str, Any]:
    """Returns the FLOPs of one training step for each token, forward and backward, of rows of `length` tokens.

    6 N, and for each layer 12 H K keys, `keys` being what a query sees on average (`visible_keys`): the causal half
    counts, with a window and without. Latent attention (MLA) counts 6 H (K + Kv) keys, as it trains, with keys and
    values of every head. Schemes and switches add the matmuls of their own (FIRE's MLP, T5's lookup, CoPE's table,
    talking heads' mixing), counted for a
    row whose positions are its own: rows that share positions share the bias. Elementwise work and rematerialisation
    are not counted.

    `palm` is PaLM's count (arXiv 2204.02311, appendix B), 6 N + 12 L H K T: no causal half, a window counts
    min(T, window) for T, and no scheme of its own.

    Args:
        config: a resolved config.model, vocab_size included.
        length: T.
        dense: count all T keys of every query, as a kernel does that computes what the mask hides.

    Returns:
        value, forward (its part), formula, N, N_counts, which says what N counts, palm and palm_formula.
    """
    plans = pattern.plans(config)
    n = sum(one.size for one in model.parameters(config).values() if one.multiplies)
    forward, training, words = Fraction(2 * n), Fraction(6 * n), defaultdict[str, int](int)
    palm = 6 * n
    for layer, plan in enumerate(plans):
        keys, of_layer = (
            Fraction(length) if dense else visible_keys(length, plan.window),
            pattern.of_layer(config, layer),
        )
        scores, own = attention.flops(of_layer), [switch.flops(of_layer) for switch in switches.active(of_layer)]
        palm += 3 * scores.pair * min(length, plan.window or length)
        for one in (scores, *own, positions.kind_of(plan.position).flops(of_layer)):
            computed = one.token + one.pair * keys
            forward, training = forward + computed, training + one.training * computed
            words[one.words] += 1
    by_layer = "; H and K by layer" if len({plan.heads[:3] for plan in plans}) > 1 else ""
    return {
        "value": _number(training),
        "forward": _number(forward),
        "formula": _formula(words, len(plans)) + ("; keys = T" if dense else _keys(plans)) + by_layer,
        "N": n,
        "N_counts": N_COUNTS,
        "palm": palm,
        "palm_formula": f"6 N + {attention.kind_of(config).words} sum over layers of min(T, window)",
    }


def _number(x: Fraction) -> int | float:
    return int(x) if x.denominator == 1 else float(x)


def _formula(words: dict[str, int], layers: int) -> str:
    """Returns the terms, each with the number of its layers."""
    terms = [f"{'L' if count == layers else count} x {term}" for term, count in words.items() if term]
    return " + ".join(["6 N", *terms])


def _keys(plans: tuple[pattern.LayerPlan, ...]) -> str:
    if any(plan.window for plan in plans):
        return "; keys = sum over t < T of min(t + 1, window) / T, by layer"
    return "; keys = (T + 1) / 2"


def kv_bytes_per_token(config: ConfigDict, bytes_per_element: int) -> int:
    """Returns the bytes per token in the KV cache while all layers keep it: 2 L G K bytes_per_element.

    L counts the layers that have keys and values of their own (`attention.kv_share`), and 2 is 1 where values are keys
    (`attention.tie_kv`). Stored in 8 bits (`attention.kv_storage`) it is one byte an element, and 4 more for the scale
    of each token and head.
    """
    every = (pattern.of_layer(config, layer) for layer in pattern.owners(config))
    return sum(sum(token_bytes(of_layer, bytes_per_element).values()) for of_layer in every)


def kv_cache_bytes(config: ConfigDict, bytes_per_element: int, *, batch: int, capacity: int) -> dict[str, int]:
    """Returns the bytes of a KV cache of `batch` rows of `capacity` tokens: of `values` and of their `scales`.

    A layer with a window holds min(capacity, window) tokens. int32 positions, segments and the like are not counted.
    """
    plans, results = pattern.plans(config), {"values": 0, "scales": 0}
    for layer in pattern.owners(config):
        tokens = batch * min(capacity, plans[layer].window or capacity)
        for name, size in token_bytes(pattern.of_layer(config, layer), bytes_per_element).items():
            results[name] += tokens * size
    return results


def token_bytes(config: ConfigDict, element: int) -> dict[str, int]:
    """Returns the bytes that a layer with keys and values of its own keeps of one token.

    They are those of `values` (numbers or codes, and float32 totals) and of their `scales`.

    Args:
        config: a resolved config.model, as the layer has it (`pattern.of_layer`).
        element: bytes of a number that is stored as it is.
    """
    shapes = attention.kind_of(config).kept(config).values()
    quantised = config.attention.kv_storage != "auto"
    return {
        "values": sum(heads * numbers for heads, numbers in shapes) * (1 if quantised else element)
        + TOTAL_BYTES * len(switches.totals(config)),
        "scales": sum(heads for heads, _ in shapes) * SCALE_BYTES * quantised,
    }
