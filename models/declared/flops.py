"""FLOPs of what a layer computes beside its matrices: by token, and by pair of a query and a key that it sees."""

from typing import NamedTuple


class Flops(NamedTuple):
    """Two for each product and sum of a matmul; elementwise work is not counted."""

    token: int = 0  # forward, for each token
    pair: int = 0  # forward, for each key that a query sees
    training: int = 3  # forward and backward, as a multiple of forward
    words: str = ""  # the formula of training, with `keys` for the keys that a query sees
