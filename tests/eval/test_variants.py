"""Which lengths and scalings a run is evaluated at."""

import pytest
from ml_collections import ConfigDict

from configs import tiny, validate
from eval import variants
from eval.quality import scoring


def resolved(**fields) -> ConfigDict:
    config = tiny.get_config()
    for name, value in fields.items():
        node = config
        *parents, last = name.split("__")
        for parent in parents:
            node = node[parent]
        node[last] = value
    return validate.resolve(config)


def test_every_length_under_every_scaling():
    config = resolved(eval__multiples=(4, 1, 2), eval__scalings=("linear", "yarn"), data__length=32)
    result = variants.variants(config)
    assert [(v.scaling, v.length) for v in result[:6]] == [
        ("trained", 32), ("trained", 64), ("trained", 128), ("linear", 32), ("linear", 64), ("linear", 128)
    ]  # fmt: skip
    assert all(v.reason is None for v in result)
    assert [v.factor for v in result] == [1, 1, 1, 1, 2, 4, 1, 2, 4]


def test_scalings_are_equally_strong_at_every_length():
    kinds = ("linear", "ntk", "yarn", "dynamic")
    config = resolved(eval__multiples=(1, 2, 4), eval__scalings=kinds, data__length=32)
    results = [v for v in variants.variants(config) if v.scaling != "trained"]
    assert [v.stretch for v in results] == pytest.approx([1, 2, 4] * 4, rel=1e-5)
    assert [v.factor for v in results if v.scaling == "dynamic"] == [1, 1, 1]
    assert all(v.entry["stretch"] == v.stretch for v in results)
    # A factor that is asked for is taken as it stands, and the strength says what it comes to.
    config = resolved(eval__multiples=(4,), eval__scalings=("ntk", "dynamic"), eval__scaling_factor=4.0)
    assert [v.stretch for v in variants.variants(config)] == pytest.approx([1, 4, 13], rel=1e-5)


def test_trained_is_the_runs_own_model_and_others_change_only_the_scaling():
    config = resolved(eval__multiples=(2,), eval__scalings=("yarn",))
    own, yarn = variants.variants(config)
    assert own.model == config.model
    assert (yarn.model.position.rope.scaling.kind, yarn.model.position.rope.scaling.factor) == ("yarn", 2.0)
    assert yarn.model.position.rope.scaling.original_length == config.data.length
    back = validate.from_dict({"model": yarn.model.to_dict()}).model
    back.position.rope.scaling.kind, back.position.rope.scaling.factor = "none", 1.0
    assert back.to_dict() == config.model.to_dict()
    assert config.model.position.rope.scaling.kind == "none"  # the run's config is not touched


def test_a_factor_can_be_fixed_and_raw_rope_has_none():
    config = resolved(eval__multiples=(1, 2), eval__scalings=("linear", "none"), eval__scaling_factor=8.0)
    assert [v.factor for v in variants.variants(config)] == [1, 1, 8, 8, 1, 1]


def test_the_factor_reaches_the_length_from_the_original_one():
    config = resolved(
        eval__multiples=(1, 2), eval__scalings=("yarn", "none"), data__length=64,
        model__position__rope__scaling__kind="yarn", model__position__rope__scaling__factor=4.0,
        model__position__rope__scaling__original_length=16, model__position__rope__scaling__attention_factor=1.0,
    )  # fmt: skip
    own, _, yarn, longer, raw, _ = variants.variants(config)
    assert (own.factor, yarn.factor, longer.factor, raw.factor) == (4, 4, 8, 1)
    assert own.model.position.rope.scaling.attention_factor == 1.0
    assert yarn.model == own.model  # the same kind and factor: the same function
    assert longer.model.position.rope.scaling.attention_factor is None  # it was chosen for the run's own factor
    assert raw.model.position.rope.scaling.kind == "none"


SCALED = {
    "yarn, both mscales": {"kind": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn, given factor": {"kind": "yarn", "attention_factor": 1.2, "beta_fast": 16.0, "truncate": False},
    "longrope": {"kind": "longrope", "attention_factor": 1.1, "short_factor": (1.0,) * 4, "long_factor": (2.0,) * 4},
    "llama3": {"kind": "llama3", "low_freq_factor": 1.5},
    "linear": {"kind": "linear"},
    "ntk": {"kind": "ntk"},
    "ntk_by_parts": {"kind": "ntk_by_parts"},
    "dynamic": {"kind": "dynamic"},
}


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("mla", [False, True])
def test_the_runs_own_scaling_asked_for_again_is_the_same_function(name: str, mla: bool):
    fields = {f"model__position__rope__scaling__{key}": value for key, value in SCALED[name].items()}
    fields |= {"model__attention__kind": "mla"} if mla else {"model__head_dim": 8}
    config = resolved(
        eval__multiples=(1, 2), eval__scalings=(SCALED[name]["kind"],), eval__scaling_factor=40.0, data__length=64,
        model__position__rope__scaling__factor=40.0, model__position__rope__scaling__original_length=64, **fields,
    )  # fmt: skip
    own, own_longer, again, again_longer = variants.variants(config)
    assert again.reason is None and again.factor == own.factor == 40
    assert again.model == own.model and again_longer.model == own_longer.model
    for one, two in ((own, again), (own_longer, again_longer)):
        assert scoring.function_key(one.model, one.length) == scoring.function_key(two.model, two.length)


def test_mscale_is_a_rule_of_the_factor_and_stays_with_yarn_alone():
    config = resolved(
        eval__multiples=(2,), eval__scalings=("yarn", "linear"), eval__scaling_factor=80.0, data__length=64,
        model__position__rope__scaling__kind="yarn", model__position__rope__scaling__factor=40.0,
        model__position__rope__scaling__mscale=1.0, model__position__rope__scaling__mscale_all_dim=1.0,
    )  # fmt: skip
    _, yarn, linear = (variant.model.position.rope.scaling for variant in variants.variants(config))
    assert (yarn.factor, yarn.mscale, yarn.mscale_all_dim) == (80, 1.0, 1.0)
    assert (linear.mscale, linear.mscale_all_dim) == (None, None)


def test_a_learned_table_ends():
    config = resolved(
        model__position__kind="learned", eval__multiples=(1, 2), data__length=32, eval__scalings=("yarn",)
    )
    result = variants.variants(config)
    assert [v.reason for v in result[:2]] == [None, "the learned table has 32 positions"]
    assert all(v.model is None for v in result[1:]) and "position.kind = learned" in result[2].reason
    assert result[1].entry["reason"] == result[1].reason and "reason" not in result[0].entry


def test_xpos_ends_where_float32_does():
    config = resolved(
        model__position__kind="xpos", model__position__xpos__base=1.5, data__length=32, eval__multiples=(1, 1.5, 2)
    )
    reasons = [v.reason for v in variants.variants(config)]
    assert reasons == [None, None, "xPos reaches 48 positions in float32"]


def test_longrope_needs_its_lists():
    config = resolved(eval__scalings=("longrope", "ntk_by_parts"), eval__multiples=(2,))
    reasons = [v.reason for v in variants.variants(config)]
    assert reasons[0] is None and "longrope needs a number" in reasons[1] and reasons[2] is None


def test_scalings_need_rope_in_some_layer():
    pattern = resolved(model__position__pattern=("rope", "none"), eval__scalings=("ntk",), eval__multiples=(2,))
    assert variants.variants(pattern)[1].reason is None
    nope = resolved(model__position__kind="none", eval__scalings=("ntk",), eval__multiples=(2,))
    assert "nothing to act on" in variants.variants(nope)[1].reason


def test_an_impossible_scaling_is_a_reason_not_an_error():
    config = resolved(model__head_dim=2, eval__scalings=("ntk",), eval__multiples=(2,))
    assert "rotary width" in variants.variants(config)[1].reason


@pytest.mark.parametrize(("length", "rows"), [(32, 16), (64, 8), (512, 1), (2048, 1), (16, 32)])
def test_longer_rows_come_in_smaller_batches(length: int, rows: int):
    assert variants.rows_at(length, training_length=32, batch_size=16) == rows
