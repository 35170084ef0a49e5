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
