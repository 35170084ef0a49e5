"""Every attention kernel that is declared has its file, a place in what `auto` tries, an oracle and a line of docs."""

from pathlib import Path

import pytest

from configs import fields
from configs.rules import kernels as declared
from models.kernels import KERNELS, Needs, choose
from tests.models.kernels import test_cores, test_fused, test_pallas

ROOT = Path(__file__).parents[3]
# Where there is no GPU here that cuDNN runs on, no test compares it: `python -m eval.equivalence` does, on one.
ON_ITS_DEVICE = {"cudnn"}


def test_every_kernel_is_allowed_declared_made_and_described() -> None:
    folder = ROOT / "models/kernels"
    files = {path for path in folder.rglob("*.py") if "\nKERNEL = Kernel(" in path.read_text(encoding="utf-8")}
    names = {path.parent.name if path.name == "__init__.py" else path.stem for path in files}
    assert {*declared.KERNELS} == {*KERNELS} == names == {*fields.choices("model.attention.kernel")} - {"auto"}
    page = (ROOT / "docs/kernels.md").read_text(encoding="utf-8")
    assert not [name for name in KERNELS if f"| `{name}` |" not in page]


def test_what_is_declared_agrees() -> None:
    assert len({kernel.rank for kernel in KERNELS.values()}) == len(KERNELS)
    for name, kernel in KERNELS.items():
        assert bool(kernel.platforms) == bool(declared.KERNELS[name].devices), name
        assert kernel.interpreted in ("", *kernel.platforms) and {*kernel.calls} <= {*kernel.platforms}, name
    assert declared.WHOLE_SCORES, "CoPE and sigmoid weights have no kernel"


def test_every_kernel_is_compared_with_the_oracle() -> None:
    assert {*test_cores.CORES} | {*test_pallas.CORES} | {test_fused.fused.__name__} | ON_ITS_DEVICE >= {*KERNELS}


@pytest.mark.parametrize("name", KERNELS)
def test_auto_takes_every_kernel_for_some_call(name: str) -> None:
    platforms = KERNELS[name].platforms or ("cpu", "gpu")
    shape = {"dtype": "bfloat16", "head_dim": 64, "kv_len": 64}
    calls = [
        Needs(platform, q_len=length, bias=bias, **shape)
        for platform in platforms
        for length in (1, 64)
        for bias in (False, True)
    ]
    calls += [Needs(platform, q_len=64, window=8, positions=True, **shape) for platform in platforms]
    assert name in {choose("auto", call) for call in calls}
