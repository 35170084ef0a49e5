from pathlib import Path

import pytest

from configs import base, cli, fields, validate
from configs.errors import ConfigError

PRESETS = [p for p in sorted(Path("configs").glob("*.py")) if "def get_config" in p.read_text() and p.stem != "base"]


def made(**overrides):
    config = base.get_config()
    cli.apply(config, {name.replace("__", "."): value for name, value in overrides.items()})
    return config


@pytest.mark.parametrize("path", PRESETS, ids=str)
def test_every_preset_is_sound(path: Path) -> None:
    overrides = {"data.path": "x.txt"} if "shakespeare" in path.stem else {}
    validate.resolve(cli.load(path, overrides))


def test_resolving_fills_in_what_is_unset_and_keeps_what_is_set() -> None:
    config = validate.resolve(made(model__width=96, model__num_heads=6, data__length=32))
    model = config.model
    assert (model.head_dim, model.num_kv_heads, model.mlp_width, model.vocab_size) == (16, 6, 256, 256)
    assert model.position.rope.scaling.original_length == model.position.max_length == 32
    config = validate.resolve(made(model__head_dim=24, model__num_kv_heads=2, model__mlp="gelu"))
    assert (config.model.head_dim, config.model.num_kv_heads, config.model.mlp_width) == (24, 2, 1024)
    assert fields.to_dict(validate.resolve(config)) == fields.to_dict(config)


def test_vocabulary_is_the_tokenizers_and_never_less_than_recalls() -> None:
    alone = {"data__weights__text": 0.0, "data__weights__mqar": 1.0}
    assert validate.resolve(made(**alone)).model.vocab_size == 64
    assert validate.resolve(made(data__weights__mqar=1.0)).model.vocab_size == 256
    assert validate.resolve(made(data__weights__mqar=1.0, data__mqar__vocab_size=512)).model.vocab_size == 512
    assert validate.resolve(made(data__tokenizer="char")).model.vocab_size is None


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"model__num_heads": 6, "model__head_dim": 32, "model__num_kv_heads": 4}, ["num_kv_heads = 4", "1, 2, 3, 6"]),
        ({"model__num_heads": 7}, ["model.num_heads = 7", "model.width = 256", "head_dim"]),
        ({"model__head_dim": 15}, ["head_dim = 15", "rotary width 15", "even"]),
        ({"model__position__rope__fraction": 0.01}, ["fraction = 0.01", "at least 2"]),
        ({"model__dropout": 1.0}, ["model.dropout = 1.0", "[0, 1)"]),
        ({"model__dropout": -0.1}, ["model.dropout", "[0, 1)"]),
        ({"model__position__rope__scaling__factor": 0.5}, ["factor = 0.5", "1 or more"]),
        ({"model__position__rope__scaling__factor": 4.0}, ["factor = 4.0", "no effect"]),
        ({"model__position__kind": "none", "model__position__rope__scaling__kind": "yarn"}, ["needs RoPE"]),
        ({"model__position__kind": "rotary"}, ["model.position.kind = 'rotary'", "rope"]),
        ({"model__position__kind": "learned", "model__position__max_length": 8}, ["max_length = 8", "256"]),
        ({"model__position__pattern": ("learned", "none")}, ["position.pattern", "embedding"]),
        ({"optimizer__learning_rate": 0.0}, ["optimizer.learning_rate = 0.0", "above 0"]),
        ({"optimizer__learning_rate": float("nan")}, ["optimizer.learning_rate", "finite"]),
        ({"budget__amount": -1.0}, ["budget.amount", "above 0"]),
        ({"seed": -1}, ["seed = -1"]),
        ({"seed": 2**63}, ["seed"]),
        ({"data__micro_batches": 3}, ["data.micro_batches = 3", "16"]),
        ({"data__weights__text": 0.0}, ["data.weights"]),
        ({"data__weights__mqar": 1.0, "data__length": 10}, ["data.mqar.pairs = 4", "data.length = 10", "2 pairs"]),
        ({"data__path": "a", "data__tfds__name": "b"}, ["data.path", "data.tfds.name"]),
        ({"model__vocab_size": 100}, ["model.vocab_size = 100", "256"]),
        ({"model__attention__window": 0}, ["model.attention.window = 0", "above 0"]),
        ({"model__attention__window_pattern": (4, -1)}, ["window_pattern", "-1"]),
        ({"eval__scalings": ("yarn", "linaer")}, ["eval.scalings", "linaer"]),
        ({"eval__multiples": ()}, ["eval.multiples"]),
        ({"data__curriculum": ({"steps": 5},)}, ["curriculum[0].length", "missing"]),
        ({"data__curriculum": ({"steps": 5, "length": 8, "lenght": 1},)}, ["lenght", "did you mean length"]),
        ({"data__curriculum": ({"steps": 5000, "length": 8},)}, ["budget.amount = 1000", "5000 steps"]),
    ],
)
def test_the_impossible_is_refused_naming_field_and_value(overrides: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        validate.check(made(**overrides))
    assert "\n" not in str(caught.value), "one problem, one line"
    for word in words:
        assert word in str(caught.value)


def test_every_problem_is_told_at_once() -> None:
    result = validate.problems(made(model__dropout=2.0, optimizer__beta1=1.0, data__split="random"))
    assert [line.split(" ")[0] for line in result] == ["model.dropout", "data.split", "optimizer.beta1"]


# Fields of which a negative number has a meaning, and those that a rule over several fields bounds.
SIGNED = {
    "model.position.rope.scaling.mscale",
    "model.position.rope.scaling.mscale_all_dim",
    "model.attention.weights.sigmoid_bias",
}
BOUNDED = {"model.position.t5.max_distance", "model.position.rope.scaling.high_freq_factor"}


@pytest.mark.parametrize("name", [name for name, field in base.SCHEMA.items() if field.type in (int, float)])
def test_a_number_that_is_out_of_range_is_refused_by_its_own_field(name: str) -> None:
    field = base.SCHEMA[name]
    wrong = [value for value in (-3, 0, 2**40) if field.problem(name, field.type(value)) is not None]
    assert (-3 in wrong) != (name in SIGNED | BOUNDED)
    if wrong and field.allowed and field.allowed.words.startswith("above 0"):
        assert 0 in wrong
    for value in wrong:
        config = base.get_config()
        cli.apply(config, {name: field.type(value)})
        (line,) = validate.by_field(config)
        assert line.startswith(f"{name} = ") and "must be" in line


@pytest.mark.fault(23)
@pytest.mark.parametrize("rate", [-1e-9, 1.0, 1.5, float("nan")])
def test_dropout_rates_that_are_none_are_refused(rate: float) -> None:
    """Flax #5497: a rate of 1 or more scaled by an infinite or negative number."""
    with pytest.raises(ConfigError, match=r"model\.dropout = "):
        validate.resolve(made(model__dropout=rate))
    assert validate.resolve(made(model__dropout=0.999)).model.dropout == 0.999
