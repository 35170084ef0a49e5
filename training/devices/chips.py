"""Published peaks of chips, from their vendors' data sheets, to compare measured figures with."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """A vendor's figures for one chip.

    Attributes:
        flops: of dense bfloat16 matmuls, FLOP/s.
        bandwidth: of its memory, bytes/s.
        memory: bytes.
        source: the page or data sheet.
    """

    flops: float
    bandwidth: float
    memory: float
    source: str


_GOOGLE = "docs.cloud.google.com/tpu/docs/"

# By prefix of `jax.Device.device_kind`; the longest match counts.
CHIPS = {
    "TPU v4": Chip(275e12, 1228e9, 32e9, _GOOGLE + "v4"),
    "TPU v5 lite": Chip(197e12, 819e9, 16e9, _GOOGLE + "v5e"),
    "TPU v5": Chip(459e12, 2765e9, 95e9, _GOOGLE + "v5p"),
    "TPU v6 lite": Chip(918e12, 1638e9, 32e9, _GOOGLE + "v6e"),
    "NVIDIA A100": Chip(312e12, 1555e9, 40e9, "NVIDIA A100 data sheet, 40 GB SXM"),
    "NVIDIA A100-SXM4-80GB": Chip(312e12, 2039e9, 80e9, "NVIDIA A100 data sheet, 80 GB SXM"),
    "NVIDIA A100 80GB PCIe": Chip(312e12, 1935e9, 80e9, "NVIDIA A100 data sheet, 80 GB PCIe"),
    "NVIDIA H100": Chip(989e12, 3350e9, 80e9, "NVIDIA H100 data sheet, SXM"),
    "NVIDIA H100 PCIe": Chip(756e12, 2000e9, 80e9, "NVIDIA H100 data sheet, PCIe"),
    "NVIDIA H200": Chip(989e12, 4800e9, 141e9, "NVIDIA H200 data sheet, SXM"),
    "NVIDIA B200": Chip(2250e12, 8000e9, 180e9, "NVIDIA HGX B200 data sheet, one of eight, without sparsity"),
}


def chip(device_kind: str) -> Chip | None:
    """Returns the published figures of a device, or None if there are none (a CPU)."""
    known = [name for name in CHIPS if device_kind.startswith(name)]
    return CHIPS[max(known, key=len)] if known else None


def peak(device_kind: str) -> float | None:
    """Returns a device's published peak in FLOP/s, or None if unknown."""
    result = chip(device_kind)
    return None if result is None else result.flops
