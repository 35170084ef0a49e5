"""How scores become weights where that is more than a softmax of each head's own scores; `reference` alone does it."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from jax import Array
from ml_collections import ConfigDict

from models.switches.sigmoid import sigmoid
from models.switches.talking import TalkingHeads
from models.switches.top_k import top_k

Function = Callable[[Array], Array]  # of whole scores or weights, float32 [B, H, T, S]


@dataclasses.dataclass(frozen=True)
class Weighting:
    """What is done beside a softmax, in this order; None: nothing.

    Scores are scaled and capped, mixed, biased and masked (hidden ones are -inf); then `less` is subtracted, some are
    selected and softmax makes them weights, or `normalise` does; last the weights are combined.
    """

    name: str  # the field and value that ask for it
    mix: Function | None = None
    less: Array | None = None  # [B, T, S], of every head's scores
    select: Function | None = None
    normalise: Function | None = None
    combine: Function | None = None  # may return fewer heads than it is given

    def weights(
        self, scores_BHTS: Array, sinks: Array | None, softmax: Callable[[Array, Array | None], Array]
    ) -> Array:
        """Returns the weights [B, H', T, S] of masked scores [B, H, T, S]."""
        if self.less is not None:
            scores_BHTS -= self.less[:, None]
        if self.normalise is not None:
            weights = self.normalise(scores_BHTS)
        else:
            weights = softmax(scores_BHTS if self.select is None else self.select(scores_BHTS), sinks)
        return weights if self.combine is None else self.combine(weights)

    def of_queries(self, at: np.ndarray | Array) -> "Weighting":
        """Returns the same for the queries at columns `at`, int [N], alone."""
        return self if self.less is None else dataclasses.replace(self, less=self.less[:, at])


@dataclasses.dataclass(frozen=True)
class Weights:
    """How a model's scores become weights, head by head; softmax where neither is set."""

    sigmoid_bias: float | None
    top_k: int | None
    selective: bool

    @classmethod
    def of(cls, config: ConfigDict) -> "Weights":
        """Reads it from a resolved config.model."""
        weights = config.attention.weights
        return cls(weights.sigmoid_bias, weights.top_k, weights.kind == "selective")

    def weighting(self, name: str, talking: TalkingHeads | None, forgotten_BTS: Array | None = None) -> Weighting:
        """Returns it with heads that mix their scores and weights, where they do.

        Args:
            name: the field and value that need it.
            talking: heads' matrices, where they mix.
            forgotten_BTS: what selective attention subtracts from all heads' scores.
        """
        return Weighting(
            name,
            mix=None if talking is None else talking.mix,
            less=forgotten_BTS,
            select=None if self.top_k is None else functools.partial(top_k, keys=self.top_k),
            normalise=None if self.sigmoid_bias is None else functools.partial(sigmoid, bias=self.sigmoid_bias),
            combine=None if talking is None else talking.combine,
        )
