"""python -m eval.kv_cache: published figures to the byte, and the caches that decoding makes."""

import json

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict

from configs.errors import UserError
from eval import kv_cache
from models.decoding.kv_cache import KVCache
from tests.drawing import configs

PER_TOKEN_KIB = {  # 16 bit
    "llama-2-7b": 512,
    "llama-3-8b": 128,
    "mistral-7b": 128,
    "llama-3-70b": 320,
    "llama-3.1-405b": 504,
    "qwen2.5-7b": 56,
    "qwen3-8b": 144,
}


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, dict[str, float]]:
    assert kv_cache.main([*argv, "--json"]) == 0
    return {size["storage"]: size for size in json.loads(capsys.readouterr().out)}


def test_a_layer_of_32_heads_of_128(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--heads=32", "--head_dim=128")
    plain, int8, _ = told(capsys, *shape, "--length=128000").values()
    assert plain["total"] == 2_097_152_000
    assert f"{plain['GB']:.3f} {plain['GiB']:.3f}" == "2.097 1.953"
    assert int8["scales"] == 2 * 32 * 128_000 * 4
    assert int8["total"] == plain["total"] / 2 + int8["scales"]
    assert told(capsys, *shape, "--length=131072")["bfloat16"]["GiB"] == 2
    assert told(capsys, *shape, "--length=131072", "--dtype=float32")["float32"]["GiB"] == 4
    windowed = told(capsys, *shape, "--length=131072", "--window=4096", "--layers=3", "--batch=5")["bfloat16"]
    assert windowed["total"] == 3 * 5 * windowed["per_token"] // 3 * 4096 == 3 * windowed["per_layer"]


@pytest.mark.parametrize("name", kv_cache.MODELS)
def test_published_models(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert told(capsys, f"--model={name}", "--length=1")["bfloat16"]["per_token"] == PER_TOKEN_KIB[name] * 1024
    held = {"llama-3-8b": 256, "llama-3-70b": 640}  # MiB at 2,048 tokens, as llama.cpp tells
    if name in held:
        assert told(capsys, f"--model={name}", "--length=2048")["bfloat16"]["total"] == held[name] * 2**20


@settings(max_examples=12)
@given(whole=configs(), batch=st.integers(1, 3), length=st.integers(1, 9))
def test_sizes_are_those_of_the_caches_that_decoding_makes(whole: ConfigDict, batch: int, length: int) -> None:
    for size in kv_cache.sizes(whole.model, length=length, batch=batch, dtype="bfloat16"):
        model = whole.model.copy_and_resolve_references()
        model.attention.kv_storage = "auto" if size.storage == "bfloat16" else size.storage
        model.dtype = "bfloat16"
        cache = jax.eval_shape(lambda model=model: KVCache.create(model, batch, length))
        layers = [sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(entry)) for entry in cache.entries]
        assert size.total == sum(layers)
        assert size.per_layer == max(layers)


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ("", "none was given"),
        ("--heads=2", "--head_dim are needed"),
        ("--heads=2 --head_dim=4 --model=qwen3-8b", "at once"),
        ("--model=palm", "unknown; known"),
        ("--model=qwen3-8", "qwen3-8b"),
        ("--heads=0 --head_dim=4", "whole number of 1"),
        ("--heads=2 --head_dim=4 --length=" + "9" * 400, "whole number of 1"),
        ("--heads=3 --kv_heads=2 --head_dim=4", "must divide"),
        ("--heads=3 --head_dim=4 --config.model.width=3", "--config=FILE"),
    ],
)
def test_refusals(argv: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        kv_cache.main([*argv.split(), "--length=8"])
