"""The Transformer and nothing else: no data, no files, no training."""

from models.initial import initialise
from models.transformer import Transformer

__all__ = ["Transformer", "initialise"]
