"""Heads joined, masked and removed, against the model itself and plain slices."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict

from configs.errors import UserError
from convert import heads
from models.initial import abstract
from tests.models.common import build, tiny, tokens
from training.run_directory.checkpoint import flat, unflat

IDS = tokens(2, 6)
PLAIN = dict(num_kv_heads=4)
FULL = dict(
    num_kv_heads=4,
    attention__qkv="fused",
    attention__qkv_bias=True,
    attention__out_bias=True,
    attention__qk_norm=True,
    attention__sinks=True,
    attention__gate__kind="head",
    attention__exclusive=True,
)
OUT = "blocks.attention.out.kernel"
K = 4  # head_dim of tests.models.common.tiny


def made(**changes: Any) -> tuple[ConfigDict, dict[str, np.ndarray]]:
    config = tiny(**changes)
    return config, {name: np.asarray(x) for name, x in flat(nnx.split(build(config))[1]).items()}


def logits(config: ConfigDict, params: dict[str, np.ndarray]) -> np.ndarray:
    graphdef, shapes = abstract(config)
    forward = jax.jit(lambda params: nnx.merge(graphdef, params)(IDS))
    return np.asarray(forward(unflat(params, shapes)))


def key_and_value_heads(config: ConfigDict, params: dict[str, np.ndarray], kind: str) -> list[list[np.ndarray]]:
    """Returns (keys, values), each a list of the heads' matrices or biases [L, ..., K], cut out by hand."""
    groups, queries = config.num_kv_heads, config.num_heads
    if config.attention.qkv == "fused":
        whole = params[f"blocks.attention.qkv.{kind}"]
        starts = (queries * K, (queries + groups) * K)
    else:
        whole = np.concatenate([params[f"blocks.attention.{part}.{kind}"] for part in ("key", "value")], axis=-1)
        starts = (0, groups * K)
    return [[whole[..., start + g * K : start + (g + 1) * K] for g in range(groups)] for start in starts]


REMOVED = [(0, 0), (0, 1), (1, 2), (1, 3)]
# switch -> whether heads can be removed, and key/value heads joined.
SWITCHED: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "gate by element": ({"attention__gate__kind": "element"}, True, True),
    "exclusive": ({"attention__exclusive": True}, True, True),
    "sigmoid": ({"attention__weights__kind": "sigmoid", "attention__weights__sigmoid_bias": -2.0}, True, True),
    "top-k": ({"attention__weights__kind": "top_k", "attention__weights__top_k": 3}, True, True),
    "K = V": ({"attention__tie_kv": True}, True, True),
    "value residual": ({"attention__value_residual": "learned"}, False, True),
    "talking heads": ({"attention__talking_heads": True}, False, True),
    "selective": ({"attention__weights__kind": "selective"}, False, True),
    "value embeddings": ({"attention__value_embedding": "layer"}, False, False),
    "differential": ({"attention__kind": "differential"}, False, False),
    "CLA": ({"attention__kv_share": 2}, False, False),
}


@pytest.mark.parametrize("name", [name for name, (_, removable, _) in SWITCHED.items() if not removable])
def test_a_switch_that_needs_every_head_refuses_their_removal_by_name(name: str) -> None:
    changes, _, joinable = SWITCHED[name]
    config, params = made(num_kv_heads=4, **changes)
    field = next(iter(changes)).replace("__", ".")
    with pytest.raises(UserError, match=field):
        heads.removed(config, params, REMOVED)
    if not joinable:
        with pytest.raises(UserError, match=field):
            heads.grouped(config, params, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (_, removable, _) in SWITCHED.items() if removable])
def test_removed_heads_are_masked_heads_with_a_switch(name: str) -> None:
    config, params = made(num_kv_heads=4, **SWITCHED[name][0])
    masked = logits(config, heads.masked(config, params, REMOVED))
    assert np.abs(masked - logits(config, params)).max() > 1e-2
    np.testing.assert_allclose(logits(*heads.removed(config, params, REMOVED)), masked, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (_, _, joinable) in SWITCHED.items() if joinable])
def test_joining_equal_heads_changes_nothing_with_a_switch(name: str) -> None:
    config, params = made(num_kv_heads=4, **SWITCHED[name][0])
    for part in ("key", "value"):
        if (kernel := f"blocks.attention.{part}.kernel") in params:
            by_head = params[kernel].reshape(*params[kernel].shape[:-1], 4, K).copy()
            by_head[..., 1::2, :] = by_head[..., ::2, :]
            params[kernel] = by_head.reshape(params[kernel].shape)
    joined = heads.grouped(config, params, 2)
    np.testing.assert_allclose(logits(*joined), logits(config, params), atol=2e-5)


@pytest.mark.parametrize("changes", [PLAIN, FULL], ids=["split", "fused"])
@pytest.mark.parametrize("num_kv_heads", [1, 2])
def test_pooled_heads_are_those_of_their_group(changes: dict[str, Any], num_kv_heads: int) -> None:
    config, params = made(**changes)
    ratio = 4 // num_kv_heads
    kinds = ["kernel", "bias"] if changes is FULL else ["kernel"]
    results = {pool: heads.grouped(config, params, num_kv_heads, pool, seed=1) for pool in heads.POOLS}
    chosen: dict[tuple[int, int], set[int]] = {}
    for kind in kinds:
        old = key_and_value_heads(config, params, kind)
        new = {pool: key_and_value_heads(*after, kind) for pool, after in results.items()}
        for part in (0, 1):
            for g in range(num_kv_heads):
                group = np.stack(old[part][g * ratio : (g + 1) * ratio])
                np.testing.assert_allclose(new["mean"][part][g], group.mean(axis=0), atol=1e-7)
                np.testing.assert_array_equal(new["first"][part][g], group[0])
                for layer in range(2):
                    same = [i for i in range(ratio) if (group[i][layer] == new["random"][part][g][layer]).all()]
                    chosen.setdefault((layer, g), set()).update(same)
                    assert len(same) == 1
                if kind == "kernel":
                    assert not np.isin(new["fresh"][part][g], group).any()
                else:
                    assert (new["fresh"][part][g] == 0).all()
    # Keys and values come from one head, kernel and bias alike; which one differs by layer or group.
    assert all(len(which) == 1 for which in chosen.values())
    assert len(set(map(frozenset, chosen.values()))) > 1
    for pool, (after, values) in results.items():
        assert after.num_kv_heads == num_kv_heads, pool
        changed = {f"blocks.attention.{part}.{kind}" for part in ("qkv", "key", "value") for kind in kinds}
        assert all((values[name] == params[name]).all() for name in set(params) - changed)
        if changes is FULL:
            for kind in kinds:
                queries = f"blocks.attention.qkv.{kind}"
                assert (values[queries][..., : 4 * K] == params[queries][..., : 4 * K]).all()
    with pytest.raises(UserError, match=r"num_kv_heads = 3: the run has 4; must be one of 1, 2"):
        heads.grouped(config, params, 3)


@pytest.mark.parametrize("changes", [PLAIN, FULL], ids=["split", "fused"])
def test_joining_equal_heads_leaves_the_logits(changes: dict[str, Any]) -> None:
    config, params = made(**changes)
    twins = dict(params)
    for kind in ("kernel", "bias"):
        for part, start in (("qkv", 4 * K), ("qkv", 8 * K), ("key", 0), ("value", 0)):
            if (name := f"blocks.attention.{part}.{kind}") in params:
                whole = twins[name].copy()
                for g in (0, 2):  # heads 1 and 3 become 0 and 2
                    at = start + g * K
                    whole[..., at + K : at + 2 * K] = whole[..., at : at + K]
                twins[name] = whole
    expected = logits(config, twins)
    got = [heads.grouped(config, twins, 2, pool) for pool in ("mean", "first", "random")]
    for after in got[1:]:
        assert all((after[1][name] == x).all() for name, x in got[0][1].items())
    np.testing.assert_allclose(logits(*got[0]), expected, atol=1e-5)
    # Unequal heads do differ, so the comparison can fail.
    assert np.abs(logits(*heads.grouped(config, params, 2)) - logits(config, params)).max() > 1e-2


def noised(x: np.ndarray, columns: slice) -> np.ndarray:
    changed = x.copy()
    changed[..., columns] += np.random.default_rng(0).normal(size=changed[..., columns].shape).astype(np.float32)
    return changed


def test_nothing_of_a_masked_head_reaches_the_output() -> None:
    """Whatever its queries, keys and values are, the logits are the same to the bit; those of another head matter."""
    config, params = made(**PLAIN)
    masked = heads.masked(config, params, [(0, 1), (1, 1)])
    graphdef, shapes = abstract(config)
    forward = jax.jit(lambda params: nnx.merge(graphdef, params)(IDS))

    def run(head: int | None) -> np.ndarray:
        changed = dict(masked)
        for part in ("query", "key", "value"):
            if head is not None:
                name = f"blocks.attention.{part}.kernel"
                changed[name] = noised(changed[name], slice(head * K, (head + 1) * K))
        return np.asarray(forward(unflat(changed, shapes)))

    assert (run(1) == run(None)).all()
    assert np.abs(run(2) - run(None)).max() > 1e-2
    assert np.abs(run(None) - forward(unflat(params, shapes))).max() > 1e-2
    assert (params[OUT] != 0).all()  # the given parameters stay
    everything = [(layer, head) for layer in range(2) for head in range(4)]
    assert (heads.masked(config, params, everything)[OUT] == 0).all()


@pytest.mark.parametrize(
    ("changes", "gone", "left"),
    [
        (PLAIN, ["0:1", "1:3"], (3, 3)),  # one head of each layer, with its own keys and values
        (FULL, ["0:0", "0:2", "1:1", "1:2"], (2, 2)),
        (dict(), ["0:0", "0:1", "1:2", "1:3"], (2, 1)),  # a whole group
        (dict(position__kind="kerple_log"), ["0:0", "0:3", "1:1", "1:3"], (2, 2)),  # one head of each group
        (dict(position__pattern=("fire", "none")), ["0:1", "0:2", "1:0", "1:2"], (2, 2)),
        (dict(position__kind="t5"), ["0:1", "0:2", "1:1", "1:2"], (2, 2)),
        (dict(position__kind="cope"), ["0:1", "0:2", "1:0", "1:2"], (2, 2)),
    ],
    ids=str,
)
def test_a_model_without_heads_is_the_one_with_them_masked(
    changes: dict[str, Any], gone: list[str], left: tuple[int, int]
) -> None:
    config, params = made(**changes)
    pairs = [(int(text[0]), int(text[2])) for text in gone]
    smaller, fewer = heads.removed(config, params, pairs)
    assert (smaller.num_heads, smaller.num_kv_heads, smaller.head_dim) == (*left, K)
    assert sum(x.size for x in fewer.values()) < sum(x.size for x in params.values())
    expected = logits(config, heads.masked(config, params, pairs))
    np.testing.assert_allclose(logits(smaller, fewer), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "gone", "message"),
    [
        (
            PLAIN,
            [(0, 1)],
            r"layer 1: would keep 4 heads, 1 per KV group, layer 0 3, 1 per group; every layer must lose",
        ),
        (
            dict(),
            [(0, 1), (1, 1)],
            r"layer 0: its KV groups would keep 1, 2 heads; .* equally many in each group, or none",
        ),
        (
            dict(),
            [(0, 0), (0, 1), (1, 0), (1, 2)],
            r"layer 1: would keep 2 heads, 1 per KV group, layer 0 2, 2 per group",
        ),
        (PLAIN, [(0, h) for h in range(4)], "layer 0: would lose all heads"),
        (PLAIN, [(2, 0)], r"head 2:0: the run has layers 0 \.\. 1 with heads 0 \.\. 3"),
        (PLAIN, [(0, 4)], "head 0:4: the run has"),
        (dict(position__kind="alibi"), [(0, 0), (0, 2), (1, 0), (1, 2)], "'alibi': its slopes depend on the number"),
        (dict(position__kind="t5"), [(0, 0), (0, 2), (1, 1), (1, 3)], "'t5': its table serves all layers"),
    ],
    ids=str,
)
def test_heads_that_cannot_go_are_refused(changes: dict[str, Any], gone: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        heads.removed(*made(**changes), gone)


def test_heads_of_latent_attention_are_masked_alone() -> None:
    """Its heads have values of a dim of their own, and no keys and values to join."""
    config, params = made(attention__kind="mla", num_kv_heads=4, attention__mla__value_dim=6)
    masked = heads.masked(config, params, [(1, 2)])[OUT]
    assert masked.shape == (2, 4 * 6, 16)
    zero = (masked == 0).all(axis=2)
    assert not zero[0].any()
    assert np.flatnonzero(zero[1]).tolist() == list(range(12, 18))
    with pytest.raises(UserError, match="'mla': has no key/value heads"):
        heads.grouped(config, params, 2)
    with pytest.raises(UserError, match="'mla': has no removable heads"):
        heads.removed(config, params, [(0, 1), (1, 1)])
