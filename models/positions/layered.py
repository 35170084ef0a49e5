"""How schemes with parameters begin: from the declarations of their kind."""

from flax import nnx
from ml_collections import ConfigDict

from models.declared import model, positions
from models.layers import Initializer


def parameters(config: ConfigDict, kind: str, rngs: nnx.Rngs | None) -> dict[str, nnx.Param]:
    """Returns a scheme's parameters by name, for those layers of config.model that have `kind`.

    Raises:
        ValueError: rngs is None.
    """
    if rngs is None:
        raise ValueError(f"{kind} positions have parameters: rngs must be given")
    initial = Initializer.of(config, rngs)
    layers = model.layers_of(config).get(kind, ())
    return {name: initial.parameter(one) for name, one in positions.parameters(config, kind, layers).items()}
