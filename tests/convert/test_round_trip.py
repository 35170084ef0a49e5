"""Any model a family can say goes out and comes in again as it was; what none can say is refused by its field."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict

from configs import base, cli, validate
from configs.errors import ConfigError
from convert.families import FAMILIES
from convert.families.family import resolved
from convert.hf import pairing, tensors
from convert.hf.keys import Keys
from convert.to_hf import choose, differences, significant
from models import initial
from training.run_directory.checkpoint import flat

LLAMAS = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3")
PER_HEAD = ("gpt_neox", "gpt2", "bloom")  # no KV groups, head_dim is width / heads


def config_of(values: dict[str, Any]) -> ConfigDict:
    config = base.get_config()
    cli.apply(config, {"data.tokenizer": "char", "data.length": 32, "model.init_std": 0.02} | values)
    return validate.resolve(config)


@st.composite
def scalings(draw, pairs: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    kind = draw(st.sampled_from(kinds))
    numbers = st.floats(1.0, 9.0)
    results: dict[str, Any] = {"kind": kind}
    if kind != "none":
        results |= {"factor": draw(numbers), "original_length": draw(st.integers(2, 64))}
    if kind == "yarn":
        results |= {"beta_fast": draw(st.floats(8, 40)), "beta_slow": draw(st.floats(0.5, 4))}
        results["truncate"] = draw(st.booleans())
        for name in ("mscale", "mscale_all_dim"):
            results[name] = draw(st.none() | st.floats(0.1, 2))
    if kind == "llama3":
        results |= {"low_freq_factor": draw(st.floats(0.5, 2)), "high_freq_factor": draw(st.floats(3, 8))}
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            results[name] = tuple(draw(st.lists(numbers, min_size=pairs, max_size=pairs)))
    if kind in ("yarn", "longrope"):
        results["attention_factor"] = draw(st.none() | st.floats(0.5, 2))
    return {f"position.rope.scaling.{name}": value for name, value in results.items()}


@st.composite
def models(draw, name: str) -> dict[str, Any]:
    """Draws fields of config.model that a family can say."""
    heads, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    head_dim = draw(st.sampled_from((4, 6, 8)))
    results: dict[str, Any] = {
        "vocab_size": draw(st.integers(3, 40)),
        "num_layers": draw(st.integers(1, 4)),
        "num_heads": heads * groups,
        "norm_eps": draw(st.sampled_from((1e-6, 1e-5, 1e-3))),
        "tie_embeddings": draw(st.booleans()),
        "attention.qkv": draw(st.sampled_from(("split", "fused"))),
        "width": heads * groups * head_dim,
        "mlp_width": draw(st.integers(1, 24)),
        "position.rope.theta": draw(st.sampled_from((500.0, 10000.0, 2e6))),
    }
    layers = results["num_layers"]
    if name in LLAMAS:
        results |= {"num_kv_heads": groups, "head_dim": draw(st.sampled_from((4, 6, 8)))}
        if name != "llama":
            results["width"] = draw(st.integers(4, 24))  # transformers' Llama insists on a multiple of the heads
        kinds = ("none", "longrope") if name == "phi3" else ("none", "linear", "dynamic", "yarn", "llama3", "longrope")
        results |= draw(scalings(results["head_dim"] // 2, kinds))
        window = draw(st.integers(1, 9))
        if name in ("mistral", "phi3"):
            results["attention.window"] = draw(st.none() | st.just(window))
        if name in ("qwen2", "qwen3", "smollm3"):
            results["attention.window_pattern"] = draw(st.lists(st.sampled_from((0, window)), max_size=3).map(tuple))
        if name == "smollm3":
            kinds = st.lists(st.sampled_from(("rope", "none")), max_size=3)
            results["position.pattern"] = draw(
                kinds.filter(lambda kinds: not kinds or "rope" in kinds[:layers]).map(tuple)
            )
        bias = draw(st.booleans())
        if name in ("llama", "smollm3", "qwen3"):
            results |= {"attention.qkv_bias": bias, "attention.out_bias": bias}
        if name in ("llama", "smollm3"):
            results["mlp_bias"] = draw(st.booleans())
        results["attention.qkv_bias"] = results.get("attention.qkv_bias", name == "qwen2")
        return results | {"attention.qk_norm": name == "qwen3"}
    results |= {"norm": "layernorm", "norm_bias": True, "mlp_bias": True}
    results["mlp"] = draw(st.sampled_from(("gelu", "gelu_exact", "relu", "relu2")))
    bias = name != "gpt_neox" or draw(st.booleans())
    results |= {"attention.qkv_bias": bias, "attention.out_bias": bias}
    if name == "gpt_neox":
        results["residual"] = draw(st.sampled_from(("serial", "parallel")))
        results["position.rope.fraction"] = draw(st.sampled_from((1.0, 0.5)) if head_dim != 6 else st.just(1.0))
        pairs = int(head_dim * results["position.rope.fraction"]) // 2
        results |= draw(scalings(pairs, ("none", "linear", "yarn") if pairs > 1 else ("none", "linear")))
    if name == "gpt2":
        results |= {"position.kind": "learned", "position.max_length": draw(st.integers(32, 50))}
        results["attention.scale"] = draw(st.sampled_from((None, 1.0)))
    if name == "bloom":
        results |= {"position.kind": "alibi", "mlp": "gelu", "mlp_width": 4 * results["width"], "embedding_norm": True}
    return results


def drawn_params(config: ConfigDict) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {name: leaf.shape for name, leaf in flat(initial.abstract(config.model)[1]).items()}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_out_and_in_again(name: str, data: Any) -> None:
    values = data.draw(models(name))
    config = config_of({f"model.{key}": value for key, value in values.items()})
    family, model = FAMILIES[name], config.model
    theirs = json.loads(json.dumps(family.write_config(config)))
    assert differences(config, family, theirs) == []
    back = resolved({**family.read_config(Keys(theirs)), "data.tokenizer": "char"})
    assert significant(back.model) == significant(model)

    params = tensors.split(drawn_params(config), model.num_heads, model.num_kv_heads, model.head_dim)
    written = dict(family.write_tensors(params, model.num_heads))
    shapes = {key: value.shape for key, value in params.items()}
    assert {k: v.shape for k, v in written.items()} == {
        family.full_name(k): shape for k, shape in family.wanted(shapes, model.num_layers).items()
    }
    again = family.read_tensors(
        {key: value.shape for key, value in written.items()}, written.__getitem__, shapes, model.num_heads, "here"
    )
    assert again.keys() == params.keys()
    for key in params:
        np.testing.assert_array_equal(again[key], params[key], err_msg=key)


def test_longrope_says_its_original_length_where_phi3_looks_for_it() -> None:
    """transformers' Phi-3 takes 4096 for it, whatever stands beside rope_type, where the top level does not say it."""
    scaling = {"kind": "longrope", "factor": 2.0, "original_length": 24, "short_factor": (1.0,) * 4}
    values = {"vocab_size": 9, "width": 16, "num_heads": 2, "mlp_width": 8, "position.rope.fraction": 1.0}
    values |= {f"position.rope.scaling.{key}": value for key, value in (scaling | {"long_factor": (2.0,) * 4}).items()}
    config = config_of({f"model.{key}": value for key, value in values.items()})
    theirs = choose(config, "phi3")[1]
    assert theirs["original_max_position_embeddings"] == 24
    assert theirs["rope_parameters"]["original_max_position_embeddings"] == 24
    assert theirs["max_position_embeddings"] == 48
    # transformers 4 refuses any other key there, and computes the factor from the lengths.
    assert theirs["rope_scaling"].keys() == {"type", "short_factor", "long_factor"}
    config.model.position.rope.scaling.attention_factor = 1.5
    assert choose(config, "phi3")[1]["rope_scaling"]["attention_factor"] == 1.5  # which transformers 4 refuses


OUTSIDE = {
    "position.kind": {"position.kind": "t5"},
    "position.rope.pairing": {"position.rope.pairing": "interleaved"},  # `export` permutes before it asks
    "position.rope.scaling.kind": {"position.rope.scaling.kind": "ntk", "position.rope.scaling.factor": 2.0},
    "attention.soft_cap": {"attention.soft_cap": 30.0},
    "logit_soft_cap": {"logit_soft_cap": 30.0},
    "mup_base_width": {"mup_base_width": 16},
    "attention.scale": {"attention.scale_rule": "mup"},
    "attention.window": {"attention.window_pattern": (4, 8)},
    "position.temperature.kind": {"position.temperature.kind": "log_n"},
    "embedding_norm": {"embedding_norm": True},
    "residual": {"residual": "parallel"},
    "attention.out_bias": {"attention.out_bias": True},
    "mlp": {"mlp": "relu2"},
    "norm": {"norm": "layernorm"},
    "attention.kind": {"attention.kind": "mla"},
    "attention.sinks": {"attention.sinks": True},
    "attention.gate.kind": {"attention.gate.kind": "head"},
    "attention.value_residual": {"attention.value_residual": "fixed"},
    "attention.value_embedding": {"attention.value_embedding": "shared"},
    "attention.talking_heads": {"attention.talking_heads": True},
    "attention.weights.kind": {"attention.weights.kind": "sigmoid"},
    "attention.weights.kind = 'selective'": {"attention.weights.kind": "selective"},
    "attention.weights.top_k": {"attention.weights.kind": "top_k", "attention.weights.top_k": 3},
    "attention.kind = 'differential'": {"attention.kind": "differential"},
    "attention.exclusive": {"attention.exclusive": True},
}


@pytest.mark.parametrize("field", OUTSIDE)
def test_what_no_family_can_say_is_refused_by_its_field(field: str) -> None:
    values = {"vocab_size": 32, "width": 32, "num_heads": 4, "mlp_width": 16} | OUTSIDE[field]
    config = config_of({f"model.{key}": value for key, value in values.items()})
    with pytest.raises(ConfigError, match=f"model.{field}") as refused:
        choose(config)
    assert "no family can" in str(refused.value)


def test_a_field_nobody_here_knows_counts() -> None:
    config = config_of({"model.vocab_size": 32})
    assert choose(config)[0].name == "llama"
    with config.model.unlocked():
        config.model.attention.novelty = 3
    with pytest.raises(ConfigError, match="novelty"):
        choose(config)


def test_the_family_a_run_came_from_is_tried_first() -> None:
    config = config_of({"model.vocab_size": 32})
    assert choose(config, first="mistral")[0].name == "mistral"
    assert choose(config, first="bloom")[0].name == "llama"
    with pytest.raises(ConfigError, match="bloom cannot express"):
        choose(config, "bloom")


def test_phi3_says_the_length_before_stretching_where_its_config_class_looks() -> None:
    """On top; its class has a default of 4096 there, which counts before what stands in rope_parameters."""
    scaling = {"kind": "longrope", "factor": 2.0, "original_length": 32} | dict.fromkeys(
        ("short_factor", "long_factor"), (1.0, 1.5, 2.5, 4.0)
    )
    values = {"vocab_size": 32, "width": 32, "num_heads": 4, "attention.qkv": "fused"}
    values |= {f"position.rope.scaling.{key}": value for key, value in scaling.items()}
    family, theirs = choose(config_of({f"model.{key}": value for key, value in values.items()}), "phi3")
    assert family.name == "phi3"
    assert theirs["original_max_position_embeddings"] == 32
    assert theirs["rope_parameters"]["original_max_position_embeddings"] == 32


@pytest.mark.fault(6)
@pytest.mark.parametrize("values", [{}, {"position.rope.fraction": 0.5}, {"position.kind": "p_rope"}])
def test_interleaved_pairs_become_halves_with_the_same_scores(values: dict[str, Any]) -> None:
    """Fault 6: keys are permuted with their own number of heads. Scores are computed here, plainly, in float64."""
    heads, groups, size, width = 6, 2, 8, 10
    overrides = {"vocab_size": 9, "width": width, "num_heads": heads, "num_kv_heads": groups, "head_dim": size}
    overrides |= {"num_layers": 1, "attention.qk_norm": True, "attention.qkv_bias": True}
    overrides |= {"position.rope.pairing": "interleaved"}
    config = config_of({f"model.{key}": value for key, value in (overrides | values).items()})
    params = drawn_params(config)
    changed, after = pairing.to_half(params, config)
    x = np.random.default_rng(1).standard_normal((5, width))
    before, result = scores(params, config, x), scores(changed, after, x)
    assert after.model.position.rope.pairing == "half"
    np.testing.assert_allclose(result, before, rtol=1e-6, atol=1e-9)
    assert np.abs(scores(changed, config, x) - before).max() > 0.1  # the pairing does matter


def scores(params: dict[str, np.ndarray], config: ConfigDict, x: np.ndarray) -> np.ndarray:
    """q.k [T, T, H] of one layer by complex numbers: pair (a, b) is a + ib, turned by e^(i p w)."""
    model, length = config.model, len(x)
    rotation = model.head_dim if model.position.kind == "p_rope" else int(model.head_dim * model.position.rope.fraction)
    w = model.position.rope.theta ** (-np.arange(0, rotation, 2) / rotation)
    if model.position.kind == "p_rope":
        w[int(model.position.rope.fraction * model.head_dim / 2) :] = 0

    def turned(part: str, heads: int) -> np.ndarray:
        name = f"blocks.attention.{part}"
        y = x @ params[f"{name}.kernel"][0].astype(np.float64) + params[f"{name}.bias"][0]
        y = y.reshape(length, heads, model.head_dim)
        y = y / np.sqrt((y**2).mean(-1, keepdims=True) + model.norm_eps) * params[f"{name}_norm.scale"][0]
        half = model.position.rope.pairing == "half"
        a, b = np.split(y[..., :rotation], 2, axis=-1) if half else (y[..., :rotation:2], y[..., 1:rotation:2])
        z = (a + 1j * b) * np.exp(1j * np.arange(length)[:, None, None] * w)
        return np.concatenate([z.real, z.imag, y[..., rotation:]], axis=-1)

    q, k = turned("query", model.num_heads), turned("key", model.num_kv_heads)
    return np.einsum("thk,shk->tsh", q, np.repeat(k, model.num_heads // model.num_kv_heads, axis=1))
