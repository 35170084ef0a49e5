"""The TPU's Pallas cores, interpreted, against the definition in float64; and that they lower for a TPU."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import ConfigError
from models import kernels
from models.kernels import pallas
from models.kernels.flash import flash
from models.kernels.masks import Masking
from models.kernels.splash import splash
from tests.models.kernels import oracle
from tests.models.kernels.oracle import CASES, Case
from tests.models.kernels.test_cores import run

CORES = {"splash": splash, "flash": flash}
# Beside those of all cores: over more than one block, and all that a core can do at once.
MORE = {
    "blocks": Case(T=300, S=300, B=1, H=2, G=1, window=150),
    "blocks, cap, sinks": Case(T=300, S=300, B=1, H=2, G=1, soft_cap=1.5, sinks=True),
    "blocks, bias": Case(T=200, S=300, B=1, H=2, G=1, bias=True),
    "blocks, documents": oracle.packed((130, 150, -20), H=2, G=1),
    "window, cap": Case(window=6, soft_cap=1.5),
}
QUICK = {("window, cap", "splash"), ("documents", "flash"), ("left padding", "splash")}


def needs(case: Case, **changes: Any) -> dict[str, Any]:
    requested = dict(platform="tpu", dtype=jnp.float32, head_dim=case.K, q_len=case.T, kv_len=case.S, batch=case.B)
    requested |= dict(
        bias=case.bias, soft_cap=case.soft_cap, sinks=case.sinks, window=case.window, aligned=case.aligned
    )
    return requested | dict(segments=case.q_segments is not None, positions=case.q_positions is not None) | changes


def serves(core: str, case: Case) -> bool:
    try:
        return kernels.choose(core, kernels.Needs(**needs(case))) == core
    except ConfigError:
        return False


def cases() -> Iterator[Any]:
    for name, case in {**CASES, **MORE}.items():
        for core in CORES:
            if serves(core, case):
                yield pytest.param(name, core, marks=[] if (name, core) in QUICK else pytest.mark.slow)


@pytest.mark.parametrize(("name", "core"), list(cases()))
def test_equals_the_definition(name: str, core: str) -> None:
    case = {**CASES, **MORE}[name]
    arrays = case.arrays()
    expected = oracle.attention(case, **arrays)
    with kernels.interpreting():
        result = run(CORES[core], case, arrays)
    for part, right, got in zip(expected._fields, expected, result, strict=True):
        np.testing.assert_allclose(got, right, rtol=5e-5, atol=5e-5, err_msg=part)
    hidden = ~case.mask().any(2)
    assert not np.asarray(result.out)[hidden].any() and not np.asarray(result.dq)[hidden].any()


@pytest.mark.slow
@pytest.mark.parametrize("core", CORES)
def test_bfloat16_rounds_the_ends_and_not_the_middle(core: str) -> None:
    case = Case(K=16, scale=0.3)
    arrays = {name: np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for name, x in case.arrays().items()}
    expected = oracle.attention(case, **arrays)
    with kernels.interpreting():
        result = run(CORES[core], case, arrays, jnp.bfloat16)
    for part, right, got in list(zip(expected._fields, expected, result, strict=True))[:4]:
        assert got.dtype == jnp.bfloat16
        assert np.abs(np.asarray(got, np.float64) - right).max() / np.abs(right).max() < 2**-6, part


@pytest.mark.fault(12)
@pytest.mark.slow
def test_bias_cannot_raise_the_dead() -> None:
    """Fault 12: the kernel adds its mask to the bias, so a hidden key must come without one."""
    case = oracle.packed((4, 4))
    given = [jnp.asarray(x, jnp.float32) for x in list(case.arrays().values())[:3]]

    def attended(lift: float) -> np.ndarray:
        def bias(q_places: jax.Array, kv_places: jax.Array) -> jax.Array:
            after = kv_places[:, None, None, :] > q_places[:, None, :, None]
            return jnp.broadcast_to(jnp.where(after, lift, 0.0), (len(q_places), case.H, 8, 8))

        masking = Masking(8, 8, **case.options())
        scoring = kernels.Scoring(bias=bias, soft_cap=None, scale=0.5)
        with kernels.interpreting():
            return np.asarray(jax.jit(lambda *arrays: flash(*arrays, masking, scoring))(*given))

    np.testing.assert_array_equal(attended(float(np.finfo(np.float32).max)), attended(0.0))


@pytest.mark.parametrize(
    ("core", "dims", "options"),
    [
        ("splash", (64, 64), dict(window=100, soft_cap=20.0)),
        ("splash", (96, 64), dict(segments=True)),
        ("flash", (192, 128), dict(bias=True)),
    ],
)
def test_lowers_for_a_tpu(core: str, dims: tuple[int, int], options: dict[str, Any]) -> None:
    """Mosaic takes the forward and the backward kernels; a TPU's compiler is another matter and not here."""
    K, V = dims
    shapes = [jax.ShapeDtypeStruct((2, 300, *last), jnp.bfloat16) for last in ((4, K), (2, K), (2, V))]
    rows = jnp.arange(300)[None]
    given = {name: value for name, value in options.items() if name in ("window", "soft_cap")}
    if "segments" in options:
        ids = jnp.ones((1, 300), jnp.int32)
        given |= dict(q_segments=ids, kv_segments=ids, q_positions=rows, kv_positions=rows)
    if "bias" in options:
        given["bias"] = lambda q, kv: jnp.broadcast_to(
            -jnp.abs(q[:, None, :, None] - kv[:, None, None]), (1, 4, 300, 300)
        )

    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(kernels.attend(q, k, v, kernel="auto", platform="tpu", **given))

    lowered = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*shapes).lower(lowering_platforms=("tpu",))
    text = lowered.as_text(debug_info=True)
    assert f"attention_{core}" in text and text.count("tpu_custom_call") >= 3


def test_whole_blocks() -> None:
    assert [pallas.whole(n) for n in (1, 128, 300, 512, 1025, 8192)] == [
        (128, 128), (128, 128), (384, 384), (512, 512), (1152, 384), (8192, 512),
    ]  # fmt: skip
    ids = pallas.segments(jnp.asarray([[1, 2]]), 2, 2, 4)
    np.testing.assert_array_equal(ids, [[1, 2, 0, 0]] * 2)
    np.testing.assert_array_equal(pallas.segments(None, 1, 2, 3), [[1, 1, 0]])


def test_interpreted_where_asked_and_there_alone() -> None:
    zeros = jnp.zeros((1, 4, 1, 8))
    with pytest.raises(ConfigError, match=r"'splash': runs on TPUs alone, and this is cpu"):
        kernels.attend(zeros, zeros, zeros, kernel="splash")
    with kernels.interpreting():
        assert pallas.platform() == "tpu"
        assert kernels.attend(zeros, zeros, zeros, kernel="splash").shape == zeros.shape
    assert pallas.platform() == "cpu"
