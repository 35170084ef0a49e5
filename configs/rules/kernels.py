"""The attention kernels by name, and what the config must know of each.

The kernels themselves are in `models/kernels/`; they are declared here, because a config is checked without JAX.
"""

from dataclasses import dataclass

from configs.schema.allowed import either


@dataclass(frozen=True)
class Declared:
    """What a config must know of a kernel. A kernel is a file of `models/kernels` and a line of KERNELS.

    Attributes:
        devices: that it runs on; empty: on all.
        whole_scores: it holds the whole scores of a head, which CoPE and weights other than a softmax read.
    """

    devices: str = ""
    whole_scores: bool = False


KERNELS: dict[str, Declared] = {
    "reference": Declared(whole_scores=True),
    "blocked": Declared(),
    "xla": Declared(),
    "cudnn": Declared("NVIDIA GPUs"),
    "splash": Declared("TPUs"),
    "flash": Declared("TPUs"),
    "fused": Declared("GPUs and TPUs"),
}
WHOLE_SCORES = tuple(name for name, one in KERNELS.items() if one.whole_scores)
_BOUND = [f"{name} is for {one.devices}" for name, one in KERNELS.items() if one.devices]
MEANING = f"of attention; {', '.join(_BOUND)}; auto: by platform and need"


def whole_scores_problem(kernel: str, why: str) -> list[str]:
    """Returns a line where a kernel is set that does not hold the whole scores; `why` says what reads them."""
    if kernel in ("auto", *WHOLE_SCORES):
        return []
    message = f"{why} the whole scores, which only {either(WHOLE_SCORES)} holds; set {either(['auto', *WHOLE_SCORES])}"
    return [f"model.attention.kernel = {kernel!r}: {message}"]
