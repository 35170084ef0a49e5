"""How schemes with parameters begin: from the declarations of their kind."""

from flax import nnx
from ml_collections import ConfigDict

from configs.rules.layers import Heads
from models import pattern
from models.declared import positions
from models.layers import Initializer


def parameters(config: ConfigDict, kind: str, rngs: nnx.Rngs | None) -> dict[str, nnx.Param]:
    """Returns a scheme's parameters by name, for those layers of config.model that have `kind` and config's own heads.

    Raises:
        ValueError: rngs is None.
    """
    if rngs is None:
        raise ValueError(f"{kind} positions have parameters: rngs must be given")
    initial = Initializer.of(config, rngs)
    own = pattern.scheme_key(kind, Heads.of(config))
    layers = tuple(
        layer
        for layer, plan in enumerate(pattern.plans(config))
        if pattern.scheme_key(plan.position, plan.heads) == own
    )
    return {name: initial.parameter(one) for name, one in positions.parameters(config, kind, layers).items()}
