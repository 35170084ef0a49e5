"""Parameters of the MLP, by its kind (`configs/rules/mlp.py`)."""

from ml_collections import ConfigDict

from configs.errors import ConfigError, nearest
from configs.rules.mlp import KINDS, MLPKind
from models.declared.parameter import Parameters, linear, nested


def kind_of(name: str) -> MLPKind:
    """Returns a kind of MLP.

    Raises:
        ConfigError: an unknown kind.
    """
    if name not in KINDS:
        raise ConfigError(f"model.mlp = {name!r}: must be one of {', '.join(KINDS)}{nearest(name, KINDS)}")
    return KINDS[name]


def parameters(model: ConfigDict) -> Parameters:
    """Returns the declarations of one layer's MLP."""
    width, hidden, bias = model.width, model.mlp_width, model.mlp_bias
    into = ["gate", "up"] if kind_of(model.mlp).gated else ["up"]
    parts = {
        name: linear({f"mlp.{name}": hidden}, width, part="mlp", axes=("embed", "mlp"), bias=bias) for name in into
    }
    down = linear({"mlp.down": width}, hidden, part="mlp", axes=("mlp", "embed"), bias=bias, residual=True)
    return nested({**parts, "down": down})
