"""Which core runs: auto by platform and need, and a core that cannot do what is asked is refused by name."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from configs.errors import ConfigError
from configs.sweeps import positions
from models.kernels import Needs, attend, choose, kernel_for
from models.positions import KINDS
from tests.models.common import tiny

GPU: dict[str, Any] = dict(platform="gpu", dtype=jnp.bfloat16, head_dim=64, q_len=1024, kv_len=1024)
CPU: dict[str, Any] = {**GPU, "platform": "cpu", "dtype": jnp.float32}
TPU: dict[str, Any] = {**GPU, "platform": "tpu"}


@pytest.mark.parametrize(
    ("requested", "core"),
    [
        (CPU, "blocked"),
        ({**CPU, "q_len": 1}, "reference"),
        ({**CPU, "bias": True, "soft_cap": 5.0, "segments": True}, "blocked"),
        ({**CPU, "scores": True}, "reference"),
        (GPU, "cudnn"),
        ({**GPU, "platform": "cuda"}, "cudnn"),
        ({**GPU, "window": 64}, "cudnn"),
        ({**GPU, "positions": True}, "cudnn"),
        ({**GPU, "positions": True, "window": 64}, "fused"),
        ({**GPU, "dtype": jnp.float32}, "fused"),
        ({**GPU, "head_dim": 60}, "fused"),
        ({**GPU, "segments": True}, "fused"),
        ({**GPU, "bias": True, "by_head": True}, "fused"),
        ({**GPU, "bias": True}, "xla"),
        ({**GPU, "soft_cap": 5.0}, "fused"),
        ({**GPU, "soft_cap": 5.0, "head_dim": 512}, "blocked"),
        ({**GPU, "bias": True, "q_len": 8192, "kv_len": 8192}, "blocked"),
        ({**GPU, "bias": True, "by_head": True, "q_len": 8192, "kv_len": 8192}, "fused"),
        ({**GPU, "sinks": True}, "fused"),
        ({**GPU, "sinks": True, "q_len": 8192, "kv_len": 8192, "head_dim": 512}, "blocked"),
        ({**GPU, "q_len": 1001, "kv_len": 1001}, "fused"),
        ({**GPU, "q_len": 1}, "reference"),
        ({**GPU, "scores": True}, "reference"),
        ({**GPU, "head_dim": 96, "value_dim": 64}, "cudnn"),
        ({**GPU, "value_dim": 192}, "fused"),
        ({**GPU, "value_dim": 512}, "xla"),
        (TPU, "splash"),
        ({**TPU, "dtype": jnp.float32, "soft_cap": 5.0, "sinks": True, "window": 64}, "splash"),
        ({**TPU, "segments": True, "positions": True}, "splash"),
        ({**TPU, "segments": True, "positions": True, "window": 64}, "fused"),
        ({**TPU, "positions": True, "aligned": False}, "fused"),
        ({**TPU, "bias": True, "by_head": True}, "fused"),
        ({**TPU, "bias": True}, "flash"),
        ({**TPU, "bias": True, "soft_cap": 5.0}, "blocked"),
        ({**TPU, "bias": True, "by_head": True, "soft_cap": 5.0}, "fused"),
        ({**TPU, "bias": True, "sinks": True}, "xla"),
        ({**TPU, "bias": True, "q_len": 8192, "kv_len": 8192}, "blocked"),
        ({**TPU, "q_len": 8192, "kv_len": 8192}, "splash"),
        ({**TPU, "q_len": 1}, "reference"),
    ],
)
def test_auto(requested: dict[str, Any], core: str) -> None:
    assert choose("auto", Needs(**requested)) == core


@pytest.mark.parametrize("kernel", ["reference", "blocked", "xla", "cudnn"])
def test_the_core_named_is_the_core_that_runs(kernel: str) -> None:
    assert choose(kernel, Needs(**GPU)) == kernel
    assert choose(kernel, Needs(**{**GPU, "q_len": 1})) == kernel


@pytest.mark.fault(24)
@pytest.mark.parametrize(
    ("kernel", "requested", "words"),
    [
        ("xla", {**CPU, "soft_cap": 5.0}, "no soft cap.*reference and blocked"),
        ("cudnn", CPU, "NVIDIA GPUs alone, and this is cpu"),
        ("cudnn", {**GPU, "dtype": jnp.float32}, "float16, not float32"),
        ("cudnn", {**GPU, "head_dim": 60}, "multiple of 8, 128 at most, not 60"),
        ("cudnn", {**GPU, "head_dim": 256}, "multiple of 8, 128 at most, not 256"),
        ("cudnn", {**GPU, "soft_cap": 5.0}, "no soft cap"),
        ("cudnn", {**GPU, "sinks": True}, "no attention sinks.*reference, blocked and xla"),
        ("cudnn", {**GPU, "value_dim": 192}, "128 at most, not 192"),
        ("cudnn", {**GPU, "bias": True, "batch": 8}, "at batch 1 alone"),
        ("cudnn", {**GPU, "bias": True, "batch": 1, "q_len": 7}, "even lengths"),
        (
            "cudnn",
            {**GPU, "q_len": 7, "kv_len": 7, "trains": True},
            r"no backward pass at an odd length, 7 \(data.length\)",
        ),
        ("splash", CPU, "runs on TPUs alone, and this is cpu"),
        ("splash", {**TPU, "bias": True}, "no bias.*flash, blocked and reference have"),
        ("splash", {**TPU, "positions": True, "window": 4}, "counts a window in rows"),
        ("splash", {**TPU, "positions": True, "aligned": False}, "a KV cache has not"),
        ("splash", {**TPU, "kv_len": 8}, "1024 queries and 8 keys"),
        ("flash", {**TPU, "soft_cap": 5.0}, "no soft cap"),
        ("flash", {**TPU, "sinks": True}, "no attention sinks"),
        ("fused", CPU, "runs on GPUs and TPUs alone, and this is cpu"),
        ("fused", {**GPU, "bias": True}, "defined by head.*and this scheme's is not"),
        ("fused", {**GPU, "head_dim": 320}, "head_dim of 256 at most, not 320"),
        ("fused", {**GPU, "scores": True}, r"never holds the whole scores, which the positions read \(CoPE\)"),
        ("blokced", CPU, "did you mean blocked"),
    ],
)
def test_refuses_by_name(kernel: str, requested: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"model.attention.kernel = '{kernel}'.*{words}"):
        choose(kernel, Needs(**requested))


def test_attend_refuses_too() -> None:
    zeros = jnp.zeros((1, 4, 1, 8))
    with pytest.raises(ConfigError, match="NVIDIA GPUs alone"):
        attend(zeros, zeros, zeros, kernel="cudnn")


def test_a_core_that_counts_rows_is_not_taken_where_devices_share_a_row() -> None:
    for platform, alone in (("tpu", "splash"), ("gpu", "cudnn")):
        shape = dict(length=16, platform=platform, packed=False)
        assert kernel_for(tiny(head_dim=8), **shape) == alone
        assert kernel_for(tiny(head_dim=8), **shape, cut=True) == "fused"
    with pytest.raises(ConfigError, match="order of rows"):
        config = tiny(attention__kernel="splash")
        kernel_for(config, length=16, platform="tpu", packed=False, cut=True)


def test_kernel_for_run_json() -> None:
    assert kernel_for(tiny(), length=16, platform="cpu", packed=False) == "blocked"
    assert kernel_for(tiny(head_dim=8), length=16, platform="gpu", packed=False) == "cudnn"
    assert kernel_for(tiny(head_dim=8), length=16, platform="gpu", packed=True) == "fused"
    assert kernel_for(tiny(head_dim=8, dtype="float32"), length=16, platform="gpu", packed=False) == "fused"
    config = tiny(attention__kernel="cudnn")
    with pytest.raises(ConfigError, match="no backward pass at an odd length, 15"):
        kernel_for(tiny(attention__kernel="cudnn", head_dim=8), length=15, platform="gpu", packed=False)
    assert kernel_for(tiny(head_dim=8), length=15, platform="gpu", packed=False) != "cudnn"
    with pytest.raises(ConfigError, match="NVIDIA GPUs alone"):
        kernel_for(config, length=16, platform="cpu", packed=False)


def cudnn_call(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """Returns (operands' shapes, parameters) of the cuDNN call that `attend` makes; tracing needs no GPU."""
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    shape = jax.ShapeDtypeStruct((2, 6, 4, 16), jnp.bfloat16)
    function = jax.jit(lambda q, k, v: attend(q, k, v, kernel="cudnn", platform="gpu", **options))
    results: list[Any] = []

    def visit(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive.name.startswith("dot_product_attention"):
                results.append(equation)
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                visit(inner)

    visit(function.trace(shape, shape, shape).jaxpr.jaxpr)
    (equation,) = results
    return [x.aval.shape for x in equation.invars], equation.params


def test_cudnn_keeps_causal_and_window_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, given = cudnn_call(monkeypatch, window=3)
    assert "causal" in str(given["mask_type"]).lower() and given["sliding_window_length"] == 3
    assert (2, 4, 6, 6) not in shapes


@pytest.mark.fault(24)
def test_cudnn_is_given_segments_as_a_whole_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """A [B, 1, 1, K] mask is broadcast first (jax #28974)."""
    segments = jnp.ones((2, 6), jnp.int32)
    shapes, given = cudnn_call(monkeypatch, q_segments=segments, kv_segments=segments)
    assert "causal" not in str(given["mask_type"]).lower() and (2, 4, 6, 6) in shapes


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_every_arm_of_the_positions_sweep_can_run_on_one_kernel(platform: str) -> None:
    """All but CoPE, which reads whole rows of scores: a sweep that asks for `fused` compares like for like."""
    kinds = [kind for kind in positions.KINDS if kind != "cope"]
    assert set(kinds) == {*KINDS} - {"cope"}
    for kind in kinds:
        config = tiny(position__kind=kind, position__max_length=64, attention__kernel="fused")
        for packed in (False, True):
            assert kernel_for(config, length=64, platform=platform, packed=packed) == "fused"
    with pytest.raises(ConfigError, match="CoPE reads the whole scores"):
        tiny(position__kind="cope", attention__kernel="fused")
