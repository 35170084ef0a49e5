"""Where the programs that are being built will run: here, or on hardware that is only compiled for."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax

PLATFORMS = ("cpu", "gpu", "tpu")

_TARGET = contextvars.ContextVar[str | None]("target", default=None)


@contextlib.contextmanager
def compiling_for(platform: str) -> Iterator[None]:
    """Within it models are built and traced as `platform` (cpu, gpu or tpu) would run them, though it is not here.

    A function traced outside of it keeps what it was traced with, so trace new ones (`sweeps.plan` does). `auto` in
    config.model then means the target's kernel, compute dtype and layout of layers.
    """
    token = _TARGET.set(platform)
    try:
        yield
    finally:
        _TARGET.reset(token)


def current() -> str:
    """Returns cpu, gpu or tpu: where JAX runs, or what is compiled for within `compiling_for`."""
    return _TARGET.get() or jax.default_backend()


def device_kind() -> str:
    """Returns the kind of the device that programs will run on, as JAX names it; empty if it is not here."""
    return "" if _TARGET.get() is not None else jax.devices()[0].device_kind
