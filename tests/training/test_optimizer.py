"""What weight decay reaches."""

import jax

from models import initialise
from tests.models.common import as_dict, tiny
from training.step import optimizer


def test_decay_reaches_matrices_and_not_norms_biases_and_sinks() -> None:
    config = tiny(attention__kind="mla", attention__mla__query_rank=6, attention__sinks=True, attention__out_bias=True)
    params = initialise(config, 0)[1]
    decayed = as_dict(optimizer.decays(params))
    # Layers are stacked: a matrix has three axes, a vector two.
    matrices = {name: leaf.ndim == 3 or name == "embedding" for name, leaf in as_dict(params).items()}
    assert {name: bool(value) for name, value in jax.device_get(decayed).items()} == matrices
    assert not matrices["blocks.attention.sinks"] and matrices["blocks.attention.key_up.kernel"]
