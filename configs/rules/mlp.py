"""The kinds of MLP: declared here, because a config is checked without JAX; `models` reads them."""

import math
from dataclasses import dataclass
from fractions import Fraction

from ml_collections import ConfigDict


@dataclass(frozen=True)
class MLPKind:
    """All that the rest of the project asks of an MLP, beside its activation (`models/layers.py`).

    Attributes:
        title: in tables and docs.
        gated: down(f(gate x) * up x), else down(f(up x)).
        width: the default one, as a multiple of the model's.
    """

    title: str
    gated: bool = False
    width: Fraction = Fraction(4)


KINDS: dict[str, MLPKind] = {
    "swiglu": MLPKind("SwiGLU", gated=True, width=Fraction(8, 3)),
    "gelu": MLPKind("GELU, tanh form"),
    "gelu_exact": MLPKind("GELU"),
    "relu2": MLPKind("squared ReLU"),
    "relu": MLPKind("ReLU"),
}


def default_width(config: ConfigDict) -> int:
    """Returns F where it is unset, rounded up to a multiple of 16."""
    return 16 * math.ceil(config.model.width * KINDS[config.model.mlp].width / 16)
