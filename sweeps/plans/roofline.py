"""The roofline (Williams et al. 2009): the minimum time of a program, from a chip's published rates.

    seconds >= max(FLOPs / peak FLOP/s, bytes / memory bandwidth)

A bound, not an estimate: it leaves out kernel launches, collectives, and everything that is not a matmul at peak. The
peak is that of dense bfloat16; float32 matmuls are slower, so the bound holds for them too.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.devices.chips import Chip


@dataclass(frozen=True)
class Roofline:
    """The bound of one program on one device.

    Attributes:
        flops: by formula, on one device.
        bytes: read and written in its memory.
        compute_seconds, memory_seconds: at the published rates.
        seconds: the larger of the two.
        bound_by: "compute" or "memory".
        source: of the rates.
    """

    flops: float
    bytes: int
    compute_seconds: float
    memory_seconds: float
    seconds: float
    bound_by: str
    source: str

    @classmethod
    def of(cls, chip: Chip | None, flops: float, nbytes: int) -> Roofline | None:
        """Returns the bound; None if nothing is published for the chip."""
        if chip is None:
            return None
        compute, memory = flops / chip.flops, nbytes / chip.bandwidth
        bound_by = "compute" if compute >= memory else "memory"
        return cls(flops, nbytes, compute, memory, max(compute, memory), bound_by, chip.source)
