"""What the Pallas kernels share: whole blocks, and running them interpreted where there is no accelerator."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax.numpy as jnp
from jax import Array

from models.padding import raised
from models.platform import current

LANES = 128  # a block of queries or keys is a multiple of this
BLOCKS = (512, 384, 256, 128)  # queries, and keys, a block: the largest that divides the padded length

_INTERPRETED = contextvars.ContextVar[str | None]("interpreted", default=None)


@contextlib.contextmanager
def interpreting(platform: str = "tpu") -> Iterator[None]:
    """Within it Pallas kernels run interpreted on any platform, and `attend` decides as on a TPU (or, if asked, a gpu).

    For tests and for `eval.equivalence`: slow, and the arithmetic is this platform's. What is differentiated must be
    differentiated within it too, and a function compiled outside of it stays as it was.
    """
    from jax.experimental.pallas import tpu

    token = _INTERPRETED.set(platform)
    try:
        # True is the plain interpreter; the default would also simulate the TPU's memories, far more slowly.
        with tpu.force_tpu_interpret_mode(True):  # type: ignore[arg-type]
            yield
    finally:
        _INTERPRETED.reset(token)


def platform() -> str:
    """Returns where what is built will run (`models.platform`), or what is interpreted within `interpreting`."""
    return _INTERPRETED.get() or current()


def interpreted() -> bool:
    """Returns whether this is within `interpreting`."""
    return _INTERPRETED.get() is not None


def whole(length: int) -> tuple[int, int]:
    """Returns (a length raised to a multiple of LANES, the size of the blocks that make it up)."""
    padded = -(-length // LANES) * LANES
    return padded, next(size for size in BLOCKS if padded % size == 0)


def segments(given: Array | None, rows: int, length: int, padded: int) -> Array:
    """Returns int32 [rows, padded] segment ids, 0 for what padding added; None: one sequence per row."""
    ids = jnp.ones((rows, length), jnp.int32) if given is None else given
    return raised(jnp.broadcast_to(ids, (rows, length)).astype(jnp.int32), 1, padded)
