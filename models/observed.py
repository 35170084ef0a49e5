"""A forward pass that is looked at: what each layer attends with, its maps, and what each head writes."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from models import kernels
from models.transformer import Block, Transformer

Found = TypeVar("Found")


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer's attention in a forward pass.

    Attributes:
        x_BTD: the residual stream that it reads, before the norm.
        q_BTHK: queries, rotated.
        k_BSGK: keys, rotated.
        v_BSGV: values.
        attended_BTHV: what the heads attended to, as the kernel that runs computed it.
        out_BTHV: what the heads give: the same, unless a switch changes it afterwards (a gate).
        out_HVD: the output matrix, a block a head.
        asked: positions, segments, window, bias, soft cap, sinks, scale, as `kernels.attend` took them.
    """

    x_BTD: Array
    q_BTHK: Array
    k_BSGK: Array
    v_BSGV: Array
    attended_BTHV: Array
    out_BTHV: Array
    out_HVD: Array
    asked: dict[str, Any]

    @property
    def sinks(self) -> bool:
        """Whether part of each query's weight may lie on no key."""
        return self.asked["sinks"] is not None

    def positions(self) -> Array:
        """Returns the tokens' positions, int32 [B|1, T]."""
        result = self.asked["q_positions"]
        return jnp.arange(self.q_BTHK.shape[1], dtype=jnp.int32)[None] if result is None else result

    def maps(self, at: np.ndarray | Array) -> tuple[Array, Array]:
        """Returns (scores, weights), float32 [B, H, N, T], of the queries at columns `at`, int [N].

        By the reference kernel's own functions, on the numbers that the kernel which runs was given, with every switch.
        """
        q, k = (x.astype(jnp.float32) for x in (self.q_BTHK[:, at], self.k_BSGK))
        segments, weighting = self.asked["q_segments"], self.asked["weighting"]
        own: dict[str, Any] = {
            "q_positions": self.positions()[:, at],
            "kv_positions": self.positions(),
            "q_segments": None if segments is None else segments[:, at],
            "weighting": None if weighting is None else weighting.of_queries(at),
            "aligned": False,
        }
        return kernels.maps(q, k, **self.asked | own)

    def written(self, at: np.ndarray | Array) -> Array:
        """Returns what each head adds to the residual stream at columns `at`, float32 [B, N, H, D], without a bias."""
        return jnp.einsum("bnhv,hvd->bnhd", self.out_BTHV[:, at].astype(jnp.float32), self.out_HVD)


class Wrapped:
    """A block that is called by `call(block, x, ...)`; everything else is the block's."""

    def __init__(self, block: Block, call: Callable[..., Any]) -> None:
        self.block, self.call = block, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self.block, name)

    def __call__(self, *args: Any, **how: Any) -> Any:
        """Calls the block through `call`."""
        return self.call(self.block, *args, **how)


def observe(
    model: Transformer,
    tokens_BT: Array,
    positions_BT: Array | None = None,
    segments_BT: Array | None = None,
    *,
    look: Callable[[Layer], Found] | None = None,
    gates_LH: Array | None = None,
) -> tuple[Array, list[Found]]:
    """Returns (the final hidden states [B, T, D], what `look` returned of each layer), to be called inside a jit.

    Args:
        model: merged for this call; it is changed.
        tokens_BT: int32; positions and segments as of `Transformer.hidden`.
        positions_BT: int32.
        segments_BT: int32.
        look: called with each layer in order.
        gates_LH: multiply each head's output: 0 takes it away.
    """
    results: list[Found] = []

    def seen(
        index: int,
        x_BTD: Array,
        kernel_WD: Array,
        q: Array,
        k: Array,
        v: Array,
        attended: Array,
        out: Array,
        requested: dict[str, Any],
    ) -> Array:
        if gates_LH is not None:
            out = out * gates_LH[index].astype(out.dtype)[:, None]
        if look is not None:
            out_HVD = kernel_WD.astype(jnp.float32).reshape(*out.shape[2:], -1)
            results.append(look(Layer(x_BTD, q, k, v, attended, out, out_HVD, requested)))
        return out

    def watched(index: int, block: Block, x_BTD: Array, *args: Any, **how: Any) -> Any:
        block.attention.look = functools.partial(seen, index, x_BTD, block.attention.out.kernel[...])
        return block(x_BTD, *args, **how)

    # A scan or a recomputed layer would keep what was seen for itself.
    model.scan, model.remat = False, "none"
    layers: Any = [Wrapped(block, functools.partial(watched, index)) for index, block in enumerate(model.layers())]
    return model.hidden(tokens_BT, positions_BT, segments_BT, layers=layers), results
