"""Sliding-window evaluation: overlapping windows, of which only the last tokens are scored.

In windows laid end to end the first tokens of each have little context, and longer windows have fewer such tokens. So a
loss that decreases with the window's length need not come from use of the length: with ALiBi most of it does not (Press
et al., arXiv 2108.12409, section 4 and appendix B). Here a window advances by a share of its length and scores only its
new tokens, so that each token is predicted from nearly a whole window for every window length.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np


def stride(window: int, share: float) -> int:
    """Returns by how many tokens a window advances."""
    return max(1, round(share * window))


def count(scored: int, window: int, share: float, rows: int, batches: int, batch_size: int) -> int:
    """Returns how many batches `windows` yields for `batches` batches of `rows` rows, `scored` tokens each."""
    return batches * -(-rows * -(-scored // stride(window, share)) // batch_size)


def windows(
    batches: Iterable[Mapping[str, np.ndarray]], window: int, share: float, batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Cuts rows [B, 2 N], whose second half is to be scored, into overlapping windows, each token scored once.

    Args:
        batches: tokens, targets, weights, [B, 2 N].
        window: tokens per window, at most N.
        share: of the window by which it advances, in (0, 1].
        batch_size: windows per batch; the last batch of each input batch is padded with weight 0.

    Yields:
        tokens, targets, weights, [batch_size, window], in the text's order.
    """
    step = stride(window, share)
    for batch in batches:
        half = batch["tokens"].shape[1] // 2
        begins = np.arange(half, 2 * half, step)  # of the scored part of each window
        ends = np.minimum(begins + step, 2 * half)
        columns = ends[:, None] - window + np.arange(window)
        cut = {name: batch[name][:, columns].reshape(-1, window) for name in ("tokens", "targets", "weights")}
        new = np.broadcast_to(columns >= begins[:, None], (len(batch["tokens"]), *columns.shape)).reshape(-1, window)
        cut["weights"] = cut["weights"] * new
        for first in range(0, len(new), batch_size):
            part = {name: x[first : first + batch_size] for name, x in cut.items()}
            short = batch_size - len(part["tokens"])
            yield {name: np.pad(x, ((0, short), (0, 0))) for name, x in part.items()} if short else part
