"""FLOPs by formula against the matmuls of the traced model, for every registered choice."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from configs import fields
from models import counting
from models.initial import abstract
from tests.models.common import tiny
from training.step.loss import token_losses

LENGTH = 12
CASES: dict[str, dict[str, Any]] = {
    **{kind: {"position__kind": kind} for kind in fields.choices("model.position.kind")},
    **{
        f"scaling {kind}": {"position__rope__scaling__kind": kind, "position__rope__scaling__original_length": 4}
        for kind in fields.choices("model.position.rope.scaling.kind")
        if kind != "longrope"
    },
    "scaling longrope": {
        "position__rope__scaling__kind": "longrope",
        "position__rope__scaling__original_length": 4,
        "position__rope__scaling__short_factor": (1.0, 1.5),
        "position__rope__scaling__long_factor": (2.0, 3.0),
    },
    **{f"mlp {kind}": {"mlp": kind} for kind in fields.choices("model.mlp")},
    "layers that share keys, values that are keys": {
        "num_layers": 3,
        "attention__kv_share": 2,
        "attention__tie_kv": True,
        "attention__qk_norm": True,
    },
    "heads by layer": {
        "num_layers": 3,
        "attention__pattern": ({}, {"num_heads": 2, "num_kv_heads": 1, "head_dim": 6}),
        "position__pattern": ("rope", "t5", "cope"),
    },
    "mla, latents of two layers": {"attention__kind": "mla", "attention__kv_share": 2},
    "mla": {"attention__kind": "mla", "attention__mla__value_dim": 6},
    "mla, latent queries": {"attention__kind": "mla", "attention__mla__query_rank": 6},
    "mqa, head_dim apart from the width": {"num_kv_heads": 1, "head_dim": 10},
    "fused, biases, sinks, QK-norm": {
        "attention__qkv": "fused",
        "attention__qkv_bias": True,
        "attention__sinks": True,
        "attention__qk_norm": True,
        "mlp_bias": True,
    },
    "output gate by head, of 5 dims": {"attention__gate__kind": "head", "attention__gate__dims": 5},
    "output gate by element, exclusive": {"attention__gate__kind": "element", "attention__exclusive": True},
    "talking heads": {"attention__talking_heads": True},
    "value residual and embeddings": {"attention__value_residual": "learned", "attention__value_embedding": "layer"},
    "value residual in a compiled loop": {
        "num_layers": 4,
        "scan_layers": "yes",
        "attention__value_residual": "learned",
    },
    "value embeddings, shared": {"attention__value_embedding": "shared", "tie_embeddings": False},
    "sigmoid": {"attention__weights__kind": "sigmoid"},
    "top-k": {"attention__weights__kind": "top_k", "attention__weights__top_k": 3},
    "selective": {"attention__weights__kind": "selective"},
    "differential": {"attention__kind": "differential", "num_kv_heads": 2},
    "untied, parallel": {"tie_embeddings": False, "residual": "parallel", "embedding_norm": True},
    "schemes and windows by layer": {
        "num_layers": 4,
        "position__pattern": ("fire", "t5"),
        "attention__window_pattern": (3, 0),
    },
    "one compiled layer": {"num_layers": 4, "scan_layers": "yes", "position__pattern": ("fire", "cope")},
}


def inner(value: Any) -> Iterator[Any]:
    """Yields the jaxprs in an equation's parameter."""
    for one in value if isinstance(value, tuple | list) else (value,):
        one = getattr(one, "jaxpr", one)
        if hasattr(one, "eqns"):
            yield one


def dots(jaxpr: Any) -> int:
    """Returns the FLOPs of the matmuls of a jaxpr, two for a product and its sum; loops count as often as they run."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            left = eqn.invars[0].aval.shape
            total += 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
        assert eqn.primitive.name not in ("while", "cond", "conv_general_dilated"), eqn.primitive.name
        often = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        total += often * sum(dots(one) for value in eqn.params.values() for one in inner(value))
    return total


@pytest.mark.parametrize("case", CASES)
def test_flops_are_the_matmuls_of_the_traced_model(case: str) -> None:
    """The reference kernel computes every pair of the row, which is what `dense` counts; the mask's share is exact."""
    config = tiny(attention__kernel="reference", **CASES[case])
    graphdef, params = abstract(config)
    tokens = jax.ShapeDtypeStruct((1, LENGTH), jnp.int32)

    def loss(params: Any, tokens: Any) -> Any:
        return token_losses(nnx.merge(graphdef, params)(tokens), tokens).sum()

    counted = counting.flops_per_token(config, LENGTH, dense=True)
    assert dots(jax.make_jaxpr(loss)(params, tokens).jaxpr) == counted["forward"] * LENGTH
    assert dots(jax.make_jaxpr(jax.grad(loss))(params, tokens).jaxpr) == counted["value"] * LENGTH


def test_differential_attention_costs_what_its_baseline_does() -> None:
    """The same matrices and FLOPs; what it has more is lambda's vectors and the norm of its heads, 6 K a layer."""
    plain, pairs = tiny(), tiny(attention__kind="differential", num_kv_heads=2)
    assert counting.flops_per_token(pairs, 64)["value"] == counting.flops_per_token(plain, 64)["value"]
    more = counting.parameters(pairs)["total"] - counting.parameters(plain)["total"]
    assert more == plain.num_layers * 6 * plain.head_dim
    assert counting.kv_bytes_per_token(pairs, 2) == counting.kv_bytes_per_token(plain, 2)


def test_what_a_scheme_computes_counts() -> None:
    plain = counting.flops_per_token(tiny(), 64)
    for kind in ("t5", "fire", "cope"):
        more = counting.flops_per_token(tiny(position__kind=kind), 64)
        assert more["value"] > plain["value"] and more["palm"] == plain["palm"]
