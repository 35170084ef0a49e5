"""The rows of a batch that one of several processes makes."""

import numpy as np
import pytest

from data.pipeline import WHOLE, Mixture, Share


class Numbers:
    """Rows that know who made them and which they are; remembers what it was asked for."""

    def __init__(self, base: int) -> None:
        self.base, self.asked = base, 0

    def rows(self, first: int, count: int) -> dict[str, np.ndarray]:
        self.asked += count
        return {"tokens": (self.base + first + np.arange(count))[:, None]}


def mixture() -> tuple[Mixture, list[Numbers]]:
    sources = [Numbers(0), Numbers(1000), Numbers(2000)]
    named = dict(zip("abc", sources, strict=True))
    return Mixture(named, {"a": 1.0, "b": 0.3, "c": 0.7}, 24), sources


@pytest.mark.parametrize("shares", [
    [Share((0,), 2), Share((1,), 2)],
    [Share((index,), 8) for index in range(8)],
    [Share((0, 2), 4), Share((1, 3), 4)],
    [Share((0, 1, 2), 6), Share((3, 4, 5), 6)],
])  # fmt: skip
def test_shares_make_up_the_batch_and_each_makes_its_own_rows_alone(shares: list[Share]) -> None:
    for number in (0, 1, 7):
        whole = mixture()[0].batch(number, WHOLE)["tokens"]
        for share in shares:
            made, sources = mixture()
            expected = np.concatenate([whole[low:high] for low, high in share.spans(24)])
            np.testing.assert_array_equal(made.batch(number, share)["tokens"], expected)
            assert sum(source.asked for source in sources) == 24 * len(share.parts) // share.of
    assert sorted(part for share in shares for part in share.parts) == list(range(shares[0].of))


def test_neighbouring_parts_are_made_at_once() -> None:
    assert list(Share((0, 1, 3), 4).spans(8)) == [(0, 4), (6, 8)]
