"""Counts by formula against real arrays, and REFERENCE figures of the KV cache."""

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict

from models import counting
from models.decoding.kv_cache import KVCache
from models.initial import abstract
from tests.drawing import configs
from tests.models.common import as_dict, build, tiny


@pytest.mark.fault(11)
@settings(max_examples=50)
@given(whole=configs())
def test_counts_equal_array_sizes(whole: ConfigDict) -> None:
    check_counts(whole)


@pytest.mark.slow
@settings(max_examples=300, derandomize=False, print_blob=True)
@given(whole=configs())
def test_counts_equal_array_sizes_at_length(whole: ConfigDict) -> None:
    check_counts(whole)


def check_counts(whole: ConfigDict) -> None:
    config = whole.model
    sizes = {name: leaf.size for name, leaf in as_dict(abstract(config)[1]).items()}
    parts = counting.parameters(config)
    assert parts["total"] == sum(sizes.values())

    def held(*words: str) -> int:
        return sum(size for name, size in sizes.items() if any(word in name for word in words))

    assert parts["norm"] == held("norm")
    tables = held("embedding", "value_mix.table") - held("embedding_norm", "embedding_lambdas")
    head = held("head") - held("head_norm")
    assert parts["embedding"] == tables
    assert parts["position"] == held("schemes")
    assert parts["head"] == head
    assert parts["mlp"] == held(".mlp.")
    other = held("query_norm", "key_norm", "kv_norm", "head_norm", "value_mix.table")
    assert parts["attention"] == held(".attention.") - other
    assert parts["non_embedding"] == parts["total"] - tables - held("schemes") - head
    # Every matrix that multiplies: kernels, and the output matrix once.
    multiplied = held("kernel") + config.vocab_size * config.width
    assert counting.flops_per_token(config, 10)["N"] == multiplied
    cache = jax.eval_shape(lambda: KVCache.create(config, 2, 7))
    kept = counting.kv_cache_bytes(config, 4, batch=2, capacity=7)
    assert sum(kept.values()) == sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache.entries))
    assert sum(kept.values()) <= 2 * 7 * counting.kv_bytes_per_token(config, 4)


@pytest.mark.fault(11)
def test_flops_formula() -> None:
    config = tiny(head_dim=10, num_heads=2, num_kv_heads=1, num_layers=3)
    flops = counting.flops_per_token(config, 100)
    n = 3 * (16 * 20 * 2 + 16 * 10 * 2 + 3 * 16 * 24) + 32 * 16
    assert flops["N"] == n
    assert flops["value"] == 6 * n + 12 * 3 * 2 * 10 * 101 / 2  # the causal half, the diagonal included
    assert flops["palm"] == 6 * n + 12 * 3 * 2 * 10 * 100
    assert flops["forward"] * 3 == flops["value"]
    assert flops["formula"] == "6 N + L x 12 H K keys; keys = (T + 1) / 2"
    windowed = counting.flops_per_token(tiny(num_layers=3, attention__window_pattern=(8, 0)), 100)
    seen = [sum(min(t + 1, window) for t in range(100)) / 100 for window in (8, 100, 8)]
    assert windowed["value"] == pytest.approx(6 * windowed["N"] + 12 * 4 * 4 * sum(seen), rel=1e-12)
    assert windowed["palm"] == 6 * windowed["N"] + 12 * 4 * 4 * (8 + 100 + 8)
    assert "window" in windowed["formula"]


@given(length=st.integers(1, 200), window=st.none() | st.integers(1, 250))
def test_visible_keys_are_the_mean_over_queries(length: int, window: int | None) -> None:
    expected = sum(min(t + 1, window or length) for t in range(length))
    assert counting.visible_keys(length, window) * length == expected


def test_a_window_saves_what_the_mask_leaves_of_it() -> None:
    # At T = 128 and w = 32, 2.29 times fewer pairs than causal attention has, not 4.
    assert float(counting.visible_keys(128, None) / counting.visible_keys(128, 32)) == pytest.approx(2.2933, abs=1e-4)


def test_heads_leave_counts_alone_at_fixed_width_and_groups_do_not() -> None:
    arms = [tiny(num_heads=h, num_kv_heads=h) for h in (1, 2, 4, 8)]
    assert len({counting.parameters(arm)["total"] for arm in arms}) == 1
    assert len({counting.flops_per_token(arm, 64)["value"] for arm in arms}) == 1
    grouped = [tiny(num_kv_heads=g) for g in (1, 2, 4)]
    assert [counting.kv_bytes_per_token(arm, 2) for arm in grouped] == [32, 64, 128]  # 2 x 2 layers x G x 4 x 2 bytes
    assert len({counting.parameters(arm)["total"] for arm in grouped}) == 3


@pytest.mark.parametrize(
    ("name", "layers", "kv_heads", "head_dim", "kib"),
    [
        ("Llama-2-7B", 32, 32, 128, 512),
        ("Llama-3-8B", 32, 8, 128, 128),
        ("Mistral-7B", 32, 8, 128, 128),
        ("Llama-3-70B", 80, 8, 128, 320),
        ("Llama-3.1-405B", 126, 8, 128, 504),
        ("Qwen2.5-7B", 28, 4, 128, 56),
        ("Qwen3-8B", 36, 8, 128, 144),
    ],
)
def test_published_kv_bytes(name: str, layers: int, kv_heads: int, head_dim: int, kib: int) -> None:
    config = tiny(num_layers=layers, num_heads=kv_heads, num_kv_heads=kv_heads, head_dim=head_dim)
    assert counting.kv_bytes_per_token(config, 2) == kib * 1024


def test_kv_bytes_to_the_byte() -> None:
    layer = tiny(num_layers=1, num_heads=32, num_kv_heads=32, head_dim=128)
    assert counting.kv_bytes_per_token(layer, 2) * 128_000 == 2_097_152_000
    assert counting.kv_bytes_per_token(layer, 2) * 131_072 == 2 * 2**30
    for layers, mib in ((32, 256), (80, 640)):  # llama.cpp's figures at 2,048 tokens, Llama-3 8B and 70B
        config = tiny(num_layers=layers, num_heads=8, num_kv_heads=8, head_dim=128)
        assert counting.kv_bytes_per_token(config, 2) * 2048 == mib * 2**20
    config = tiny(num_layers=3, dtype="bfloat16")
    cache = build(config).cache(2, 10)
    assert cache.nbytes == 2 * 10 * counting.kv_bytes_per_token(config, 2)
    assert cache.layer(2)["k"].shape == (2, 10, 2, 4)
