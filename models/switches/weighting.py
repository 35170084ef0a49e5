"""How scores become weights where that is more than a softmax of each head's own scores; `reference` alone does it."""

import dataclasses
import functools
from collections.abc import Callable

from jax import Array
from ml_collections import ConfigDict

from models.switches.sigmoid import sigmoid
from models.switches.talking import TalkingHeads
from models.switches.top_k import top_k

Function = Callable[[Array], Array]  # of whole scores or weights, float32 [B, H, T, S]


@dataclasses.dataclass(frozen=True)
class Weighting:
    """What is done beside a softmax, in this order; None: nothing.

    Scores are scaled and capped, mixed, biased and masked (hidden ones are -inf); then some are selected and softmax
    makes them weights, or `normalise` does; last the weights are combined.
    """

    name: str  # the field and value that ask for it
    mix: Function | None = None
    select: Function | None = None
    normalise: Function | None = None
    combine: Function | None = None  # may return fewer heads than it is given

    def weights(
        self, scores_BHTS: Array, sinks: Array | None, softmax: Callable[[Array, Array | None], Array]
    ) -> Array:
        """Returns the weights [B, H', T, S] of masked scores [B, H, T, S]."""
        if self.normalise is not None:
            weights = self.normalise(scores_BHTS)
        else:
            weights = softmax(scores_BHTS if self.select is None else self.select(scores_BHTS), sinks)
        return weights if self.combine is None else self.combine(weights)


@dataclasses.dataclass(frozen=True)
class Weights:
    """How a model's scores become weights, head by head; softmax where neither is set."""

    sigmoid_bias: float | None
    top_k: int | None

    @classmethod
    def of(cls, config: ConfigDict) -> "Weights":
        """Reads it from a resolved config.model."""
        return cls(config.attention.weights.sigmoid_bias, config.attention.weights.top_k)

    def weighting(self, name: str, talking: TalkingHeads | None) -> Weighting:
        """Returns it with heads that mix their scores and weights, where they do; `name` is the field that asks."""
        return Weighting(
            name,
            mix=None if talking is None else talking.mix,
            select=None if self.top_k is None else functools.partial(top_k, keys=self.top_k),
            normalise=None if self.sigmoid_bias is None else functools.partial(sigmoid, bias=self.sigmoid_bias),
            combine=None if talking is None else talking.combine,
        )
