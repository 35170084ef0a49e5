"""The Transformer and nothing else: no data, no files, no training."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.initial import initialise
    from models.transformer import Transformer

__all__ = ["Transformer", "initialise"]


def __getattr__(name: str) -> Any:
    """Brings the model when it is first asked for: it starts JAX, which who only counts parameters has no use for."""
    if name == "Transformer":
        from models.transformer import Transformer

        return Transformer
    if name == "initialise":
        from models.initial import initialise

        return initialise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
