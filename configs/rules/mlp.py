"""The default width of the MLP."""

import math
from fractions import Fraction

from ml_collections import ConfigDict

# Of every kind: its default width as a multiple of the model's.
WIDTHS = {
    "swiglu": Fraction(8, 3),
    "gelu": Fraction(4),
    "gelu_exact": Fraction(4),
    "relu2": Fraction(4),
    "relu": Fraction(4),
}


def default_width(config: ConfigDict) -> int:
    """Returns F where it is unset, rounded up to a multiple of 16."""
    return 16 * math.ceil(config.model.width * WIDTHS[config.model.mlp] / 16)
