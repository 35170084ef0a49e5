"""Combinations of positions: what is refused, each problem in one line that names the field."""

from typing import Any

import pytest

from configs import base, cli, fields, validate
from configs.errors import ConfigError

LONGROPE = {
    "model.position.rope.scaling.kind": "longrope",
    "model.position.rope.scaling.factor": 4.0,
    "model.position.rope.scaling.short_factor": (1.0,) * 16,
    "model.position.rope.scaling.long_factor": (2.0,) * 16,
}


def made(**overrides: Any) -> Any:
    config = base.get_config()
    cli.apply(config, overrides)
    return config


@pytest.mark.parametrize("kind", fields.choices("model.position.kind"))
def test_every_kind_alone_is_sound(kind: str) -> None:
    validate.resolve(made(**{"model.position.kind": kind}))


@pytest.mark.parametrize(
    "pattern",
    [("alibi", "none"), ("rope", "rope", "none"), ("fire", "xpos", "t5"), ("cope", "p_rope"), ("kerple_log", "rope")],
)
def test_schemes_of_attention_mix_by_layer(pattern: tuple[str, ...]) -> None:
    validate.resolve(made(**{"model.position.pattern": pattern}))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"model.position.kind": "albi"}, ["model.position.kind = 'albi'", "did you mean alibi"]),
        ({"model.position.pattern": ("alibi", "learned")}, ["position.pattern", "acts on the embedding", "cope"]),
        ({"model.position.pattern": ("alibi", "rop")}, ["position.pattern", "'rop' is not allowed"]),
        ({"model.position.kind": "alibi", "model.position.rope.scaling.kind": "yarn"}, ["needs RoPE", "'alibi'"]),
        ({"model.position.kind": "xpos", "model.position.rope.scaling.kind": "linear"}, ["needs RoPE", "'xpos'"]),
        ({"model.position.kind": "xpos", "model.head_dim": 15}, ["head_dim = 15", "even"]),
        ({"model.position.kind": "xpos", "data.length": 20_000}, ["xpos.base = 512.0", "16384 positions", "20000"]),
        ({"model.position.kind": "p_rope", "model.head_dim": 15}, ["head_dim = 15", "even"]),
        ({"model.position.kind": "p_rope", "model.position.rope.fraction": 0.01}, ["fraction = 0.01", "no frequency"]),
        ({"model.position.kind": "t5", "model.position.t5.buckets": 31}, ["t5.buckets = 31", "even"]),
        ({"model.position.kind": "t5", "model.position.t5.max_distance": 16}, ["t5.max_distance = 16", "buckets = 32"]),
        ({"model.position.fire.hidden": 0}, ["fire.hidden = 0", "above 0"]),
        ({"model.position.fire.c": -1.0}, ["fire.c = -1.0", "above 0"]),
        ({"model.position.cope.rows": 0}, ["cope.rows = 0", "above 0"]),
        ({"model.position.kind": "cope", "model.attention.kernel": "xla"}, ["attention.kernel = 'xla'", "CoPE"]),
        ({"model.position.temperature.kind": "llama5"}, ["temperature.kind = 'llama5'", "did you mean llama4"]),
        ({"model.position.temperature.kind": "llama4"}, ["temperature.layers = 'auto'", "there are none"]),
        (
            {"model.position.temperature.kind": "log_n", "model.position.temperature.length": 1},
            ["temperature.length = 1", "2 or more"],
        ),
        ({"model.position.rope.scaling.kind": "longrope"}, ["short_factor = ()", "16 rotary pairs"]),
        ({**LONGROPE, "model.position.rope.fraction": 0.5}, ["short_factor", "8 rotary pairs"]),
        ({**LONGROPE, "model.position.rope.scaling.long_factor": (0.0,) * 16}, ["long_factor", "above 0"]),
        (
            {"model.position.rope.scaling.kind": "ntk_by_parts", "model.position.rope.scaling.beta_fast": 1.0},
            ["beta_fast = 1.0", "above beta_slow = 1.0"],
        ),
    ],
)
def test_the_impossible_is_refused_naming_field_and_value(overrides: dict[str, Any], words: list[str]) -> None:
    problems = validate.problems(made(**overrides))
    assert problems and all(word in problems[0] for word in words), problems
    assert all("\n" not in problem for problem in problems)
    with pytest.raises(ConfigError):
        validate.check(made(**overrides))


def test_longropes_lists_survive_json_and_the_command_line() -> None:
    config = validate.resolve(made(**LONGROPE))
    again = fields.from_dict(fields.to_dict(config))
    assert tuple(again.model.position.rope.scaling.long_factor) == (2.0,) * 16
    assert again.model.position.temperature.length == config.data.length


@pytest.mark.fault(5)
def test_explicit_scaling_does_not_follow_the_runs_length() -> None:
    explicit = {
        "model.position.rope.scaling.kind": "yarn",
        "model.position.rope.scaling.factor": 4.0,
        "model.position.rope.scaling.original_length": 64,
    }
    short, long = (validate.resolve(made(**explicit, **{"data.length": n})) for n in (64, 512))
    assert short.model.position.rope == long.model.position.rope
