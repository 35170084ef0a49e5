"""Declarations of parameters: every parameter has one, and the rest of the project follows it."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from hypothesis import given, settings
from ml_collections import ConfigDict

from configs import fields, validate
from configs.rules import positions
from models import layers, transformer
from models.declared import attention as attentions
from models.declared import mlp
from models.declared import positions as schemes
from models.declared.model import parameters
from models.declared.parameter import Parameter
from models.initial import abstract
from models.metadata import each
from models.positions import SCHEMES
from models.positions.rope_scaling import SCALINGS
from tests.drawing import configs
from tests.models.common import as_dict, tiny
from training.run_directory.checkpoint import flat
from training.step import optimizer


@settings(max_examples=40)
@given(whole=configs())
def test_every_parameter_is_as_declared(whole: ConfigDict) -> None:
    check_declared(whole)


@pytest.mark.slow
@settings(max_examples=200, derandomize=False, print_blob=True)
@given(whole=configs())
def test_every_parameter_is_as_declared_at_length(whole: ConfigDict) -> None:
    check_declared(whole)


def check_declared(whole: ConfigDict) -> None:
    """The abstract model's paths and shapes are those declared, and each parameter carries its own declaration."""
    params, declared = abstract(whole.model)[1], parameters(whole.model)
    assert {path: leaf.shape for path, leaf in flat(params).items()} == {
        path: one.full_shape for path, one in declared.items()
    }
    carried = jax.tree.leaves(params, is_leaf=lambda node: isinstance(node, nnx.Variable))
    assert [one.get_metadata("declared") for one in carried] == [declared[path] for path in flat(params)]


# The names that decided about weight decay before parameters carried it.
NO_DECAY = ("norm", "bias", "scale", "sinks", "talking", "lambdas")


@settings(max_examples=100)
@given(whole=configs())
def test_what_decays_is_what_always_did(whole: ConfigDict) -> None:
    for path, one in parameters(whole.model).items():
        assert one.decay == (not any(word in path for word in NO_DECAY)), path
        # A matrix is cast where a matmul reads it, and a vector never decays.
        assert one.group != "hidden" or (one.decay and one.cast and one.multiplies and path.endswith("kernel"))
        assert one.group != "vector" or not one.decay


def test_an_undeclared_parameter_is_refused() -> None:
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.extra = nnx.Param(jnp.zeros(3))

    params = nnx.split(Model())[1]
    with pytest.raises(ValueError, match="carries no declaration"):
        optimizer.decays(params)
    with pytest.raises(ValueError, match="carries no declaration"):
        each({"extra": jnp.zeros(3)}, lambda declared: declared.cast)


@pytest.mark.parametrize(
    "wrong", [{"part": "heads"}, {"group": "matrices"}, {"axes": ("embed",)}], ids=lambda wrong: next(iter(wrong))
)
def test_a_declaration_is_checked(wrong: dict[str, Any]) -> None:
    sound = parameters(tiny())["embedding"]
    whole = {name: getattr(sound, name) for name in sound.__dataclass_fields__}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Parameter(**(whole | wrong))


def test_optimizer_groups_are_trees_like_the_parameters() -> None:
    config = tiny(position__kind="fire", tie_embeddings=False, attention__sinks=True)
    params = abstract(config)[1]
    result = as_dict(optimizer.groups(params))
    assert result["embedding"] == "embedding" and result["head"] == "head"
    assert result["blocks.mlp.up.kernel"] == "hidden" and result["blocks.attention.sinks"] == "vector"
    assert result["schemes.fire.out"] == "position"
    assert jax.tree.structure(optimizer.groups(params)) == jax.tree.structure(params)


def test_every_registry_has_the_same_keys() -> None:
    """A choice that the config allows is declared, and has its module; in every other place a missing one fails."""
    assert [*positions.KINDS] == [*schemes.KINDS] == [*SCHEMES]
    assert sorted(positions.SCALINGS) == sorted(SCALINGS)
    assert [*fields.choices("model.mlp")] == [*mlp.KINDS] == [*layers.ACTIVATIONS]
    assert [*fields.choices("model.attention.kind")] == [*attentions.KINDS] == [*transformer.ATTENTIONS]


def test_unknown_kinds_are_refused() -> None:
    for field, ask in (
        ("position.kind", lambda: schemes.kind_of("ropes")),
        ("mlp", lambda: mlp.kind_of("swigl")),
    ):
        with pytest.raises(validate.ConfigError, match=f"model.{field} = .*did you mean"):
            ask()
    config = tiny()
    with config.ignore_type():
        config.attention.kind = "gqaa"
    with pytest.raises(validate.ConfigError, match=r"model.attention.kind = 'gqaa'.*did you mean gqa"):
        parameters(config)
