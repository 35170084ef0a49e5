"""What weight decay reaches."""

import jax
import pytest

from configs import base, fields
from configs.errors import ConfigError
from models import initialise
from tests.models.common import as_dict, tiny
from training.step import optimizer, optimizers


def test_decay_reaches_matrices_and_not_norms_biases_and_sinks() -> None:
    config = tiny(attention__kind="mla", attention__mla__query_rank=6, attention__sinks=True, attention__out_bias=True)
    params = initialise(config, 0)[1]
    decayed = as_dict(optimizer.decays(params))
    # Layers are stacked: a matrix has three axes, a vector two.
    matrices = {name: leaf.ndim == 3 or name == "embedding" for name, leaf in as_dict(params).items()}
    assert {name: bool(value) for name, value in jax.device_get(decayed).items()} == matrices
    assert not matrices["blocks.attention.sinks"] and matrices["blocks.attention.key_up.kernel"]


def test_every_optimizer_of_the_schema_is_registered_with_its_fields() -> None:
    assert tuple(optimizers.OPTIMIZERS) == fields.choices("optimizer.kind")
    for found in optimizers.OPTIMIZERS.values():
        assert {f"optimizer.{name}" for name in found.fields} <= set(base.SCHEMA)
    with pytest.raises(ConfigError, match=r"optimizer\.kind = 'adamm': must be one of .*did you mean adamw\?"):
        optimizers.optimizer("adamm")


@pytest.mark.parametrize("kind", optimizers.OPTIMIZERS)
def test_the_state_is_as_large_as_declared(kind: str) -> None:
    config = base.get_config().optimizer
    config.kind = kind
    params = initialise(tiny(), 0)[1]
    state = jax.eval_shape(optimizer.make(config).init, params)
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree) if leaf.ndim) for tree in (state, params)]
    assert sizes[0] == optimizers.optimizer(kind).state * sizes[1]
