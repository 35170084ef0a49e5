"""What is allowed of attention's switches together."""

import pytest

from configs import fields, validate
from configs.errors import ConfigError
from tests.configs.test_validate import made

MLA = {"model__attention__kind": "mla"}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            {"model__attention__scale": 0.3, "model__attention__scale_rule": "mup"},
            ["model.attention.scale = 0.3", "scale_rule = 'mup'"],
        ),
        ({"model__attention__scale": 0.3, "model__attention__scale_rule": "sqrt"}, ["scale_rule = 'sqrt'"]),
        ({**MLA, "model__position__kind": "alibi"}, ["model.position.kind = 'alibi'", "kind = 'mla'", "rope", "none"]),
        ({**MLA, "model__position__pattern": ("rope", "t5")}, ["model.position.pattern = ('rope', 't5')", "'mla'"]),
        ({**MLA, "model__position__kind": "p_rope"}, ["model.position.kind = 'p_rope'"]),
        ({**MLA, "model__position__rope__fraction": 0.5}, ["fraction = 0.5", "must be 1", "mla.rope_dim"]),
        ({**MLA, "model__attention__mla__rope_dim": 5}, ["model.attention.mla.rope_dim = 5", "even"]),
        ({**MLA, "model__attention__mla__kv_rank": 0}, ["model.attention.mla.kv_rank = 0", "above 0"]),
        ({**MLA, "model__num_kv_heads": 2}, ["model.num_kv_heads = 2", "'mla'", "mla.kv_rank"]),
        ({**MLA, "model__attention__qkv": "fused"}, ["model.attention.qkv = 'fused'", "'mla'"]),
        ({**MLA, "model__attention__qkv_bias": True}, ["model.attention.qkv_bias = True", "'mla'"]),
        ({**MLA, "model__attention__qk_norm": True}, ["model.attention.qk_norm = True", "latents"]),
        ({**MLA, "model__attention__exclusive": True}, ["model.attention.exclusive = True", "'mla'"]),
        (
            {"model__attention__kind": "differential", "model__num_kv_heads": 1},
            ["model.num_kv_heads = 1", "even", "'differential'"],
        ),
        (
            {"model__attention__kind": "differential", "model__attention__weights__kind": "sigmoid"},
            ["weights.kind = 'sigmoid'", "'differential'"],
        ),
        (
            {"model__attention__weights__kind": "sigmoid", "model__attention__sinks": True},
            ["model.attention.sinks = True", "'sigmoid'"],
        ),
        (
            {"model__attention__weights__kind": "selective", "model__attention__window": 8},
            ["model.attention.window = 8", "'selective'", "all earlier queries"],
        ),
        ({**MLA, "model__attention__weights__kind": "selective"}, ["model.attention.kind = 'mla'", "whole keys"]),
        (
            {"model__attention__weights__kind": "selective", "model__attention__kernel": "blocked"},
            ["model.attention.kernel = 'blocked'", "kind = 'selective'", "auto or reference"],
        ),
        ({"model__attention__weights__kind": "top_k"}, ["model.attention.weights.top_k", "must be set"]),
        ({"model__attention__weights__top_k": 3}, ["weights.top_k = 3", "no effect", "'softmax'"]),
        (
            {"model__attention__talking_heads": True, "model__attention__kernel": "xla"},
            ["model.attention.kernel = 'xla'", "talking_heads = True", "auto or reference"],
        ),
        ({**MLA, "model__attention__value_residual": "fixed"}, ["value_residual = 'fixed'", "'mla'"]),
        ({**MLA, "model__attention__value_embedding": "layer"}, ["value_embedding = 'layer'", "'mla'"]),
        (
            {"model__attention__value_residual": "fixed", "model__attention__qkv": "fused"},
            ["model.attention.qkv = 'fused'", "value_residual = 'fixed'"],
        ),
        ({"model__attention__gate__dims": 4}, ["model.attention.gate.dims = 4", "gate.kind = 'none'"]),
        (
            {"model__attention__gate__kind": "head", "model__attention__gate__dims": 4000},
            ["model.attention.gate.dims = 4000", "at most model.width"],
        ),
        ({**MLA, "model__attention__tie_kv": True}, ["model.attention.tie_kv = True", "'mla'"]),
        (
            {"model__attention__tie_kv": True, "model__attention__qkv": "fused"},
            ["model.attention.qkv = 'fused'", "tie_kv = True", "split"],
        ),
        ({"model__attention__kv_share": 5}, ["model.attention.kv_share = 5", "at most 4"]),
        (
            {"model__attention__pattern": ({"heads": 4},)},
            ["model.attention.pattern[0].heads = 4", "num_heads, num_kv_heads"],
        ),
        ({"model__attention__pattern": ({}, {"theta": 0.5})}, ["pattern[1].theta = 0.5", "above 1"]),
        ({"model__attention__pattern": ({"num_heads": True},)}, ["pattern[0].num_heads = True", "whole number"]),
        ({"model__attention__pattern": (4,)}, ["pattern[0] = 4", "dict(num_heads="]),
        ({"model__attention__pattern": ({"num_heads": 6},)}, ["pattern[0]", "num_kv_heads = 8", "num_heads = 6"]),
        ({"model__attention__pattern": ({}, {"head_dim": 7})}, ["pattern[1]", "7", "even"]),
        (
            {"model__attention__pattern": ({"theta": 50.0},), "model__position__kind": "alibi"},
            ["pattern[0].theta = 50.0", "alibi"],
        ),
        ({**MLA, "model__attention__pattern": ({"head_dim": 8},)}, ["pattern[0].head_dim = 8", "'mla'"]),
        (
            {"model__attention__kv_share": 2, "model__attention__pattern": ({"theta": 50.0}, {})},
            ["layer 1", "theta = 10000", "layer 0", "theta = 50", "kv_share = 2"],
        ),
        (
            {"model__attention__kv_share": 2, "model__attention__exclusive": True},
            ["model.attention.exclusive = True", "kv_share = 2"],
        ),
        (
            {"model__attention__value_residual": "fixed", "model__attention__kv_share": 2},
            ["model.attention.value_residual = 'fixed'", "kv_share = 2", "set none"],
        ),
        (
            {"model__attention__value_embedding": "layer", "model__attention__tie_kv": True},
            ["model.attention.value_embedding = 'layer'", "tie_kv = True", "set none"],
        ),
        (
            {"model__attention__value_embedding": "shared", "model__attention__pattern": ({"num_kv_heads": 4},)},
            ["model.attention.value_embedding = 'shared'", "model.attention.pattern", "set none"],
        ),
        ({"model__attention__kv_share_from": 2}, ["kv_share_from = 2", "no effect"]),
        (
            {"model__attention__kv_share": 2, "model__attention__kv_share_from": 4},
            ["kv_share_from = 4", "model.num_layers = 4"],
        ),
        (
            {"model__attention__kv_share": 2, "model__position__pattern": ("rope", "none")},
            ["pattern = ('rope', 'none')", "layer 1 (none)", "layer 0 (rope)", "kv_share = 2"],
        ),
        (
            {"model__attention__kv_share": 2, "model__attention__window_pattern": (8, 0)},
            ["window_pattern = (8, 0)", "layer 1 (window none)", "at most 8"],
        ),
        ({"model__attention__kind": "mha"}, ["model.attention.kind = 'mha'", "gqa, mla or differential"]),
        ({"model__attention__scale_rule": "mpu"}, ["scale_rule = 'mpu'", "auto, sqrt or mup", "did you mean mup"]),
    ],
)
def test_refused_naming_field_and_value(overrides: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        validate.check(made(**overrides))
    assert "\n" not in str(caught.value), "one problem, one line"
    for word in words:
        assert word in str(caught.value)


def test_latent_attention_resolves_to_the_papers_proportions_and_keeps_what_is_set() -> None:
    config = validate.resolve(made(**MLA, model__head_dim=20, model__num_heads=4))
    mla = config.model.attention.mla
    assert mla.to_dict() == dict(kv_rank=80, query_rank=None, nope_dim=20, rope_dim=10, value_dim=20)
    assert config.model.num_kv_heads == 4
    assert fields.to_dict(validate.resolve(config)) == fields.to_dict(config)
    given = {"model__attention__mla__kv_rank": 7, "model__attention__mla__rope_dim": 6}
    mla = validate.resolve(made(**MLA, **given)).model.attention.mla
    assert (mla.kv_rank, mla.rope_dim, mla.value_dim) == (7, 6, 32)
    assert validate.resolve(made()).model.attention.mla.kv_rank is None


@pytest.mark.parametrize(
    "overrides",
    [
        {"model__attention__window": 8, "model__attention__soft_cap": 5.0, "model__attention__sinks": True},
        {"model__position__pattern": ("rope", "none"), "model__position__temperature__kind": "llama4"},
        {"model__position__rope__scaling__kind": "yarn", "model__position__rope__scaling__mscale_all_dim": 1.0},
        {"model__attention__out_bias": True, "model__attention__scale_rule": "mup"},
    ],
    ids=str,
)
def test_what_applies_to_latent_attention_is_allowed(overrides: dict) -> None:
    validate.check(made(**MLA, **overrides))
