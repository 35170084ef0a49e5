"""Layouts of tensors, against loops that say what each entry is."""

import numpy as np
import pytest

from convert.hf.tensors import BY_HEAD, COLUMNS, ROWS, fuse, split

H, K, D = 3, 4, 5
RNG = np.random.default_rng(0)


def parts(*sizes: int) -> list[np.ndarray]:
    return [RNG.standard_normal((D, size)).astype(np.float32) for size in sizes]


@pytest.mark.fault(10)
def test_rows_are_outputs_one_part_below_the_other() -> None:
    q, k, v = parts(H * K, K, K)  # GQA: the parts differ in width (fault 10: never three equal parts)
    joined = ROWS.join([q, k, v], H)
    assert joined.shape == ROWS.shape([p.shape for p in (q, k, v)]) == ((H + 2) * K, D)
    for name, part, first in (("q", q, 0), ("k", k, H * K), ("v", v, (H + 1) * K)):
        for row in range(part.shape[1]):
            np.testing.assert_array_equal(joined[first + row], part[:, row], err_msg=name)


def test_columns_lie_as_ours_do() -> None:
    q, k = parts(6, 2)
    np.testing.assert_array_equal(COLUMNS.join([q, k], H), np.concatenate([q, k], axis=1))


@pytest.mark.parametrize("bias", [False, True])
def test_by_head_each_head_has_its_q_k_v_together(bias: bool) -> None:
    three = [part[0] if bias else part for part in parts(H * K, H * K, H * K)]
    joined = BY_HEAD.join(three, H)
    assert joined.shape == BY_HEAD.shape([p.shape for p in three]) == ((3 * H * K,) if bias else (3 * H * K, D))
    for head in range(H):
        for index, part in enumerate(three):
            for dim in range(K):
                np.testing.assert_array_equal(joined[(head * 3 + index) * K + dim], part[..., head * K + dim])


@pytest.mark.parametrize("layout", [ROWS, COLUMNS, BY_HEAD])
@pytest.mark.parametrize("bias", [False, True])
def test_cut_undoes_join(layout, bias: bool) -> None:
    three = [part[0] if bias else part for part in parts(H * K, H * K, H * K)]
    again = layout.cut(layout.join(three, H), [part.shape for part in three], H)
    for one, other in zip(three, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_split_and_fuse_undo_one_another() -> None:
    fused = {"blocks.attention.qkv.kernel": RNG.standard_normal((2, D, (H + 2) * K)), "embedding": np.ones((2, 2))}
    fused["blocks.attention.qkv.bias"] = RNG.standard_normal((2, (H + 2) * K))
    apart = split(fused, H, 1, K)
    np.testing.assert_array_equal(apart["blocks.attention.key.bias"], fused["blocks.attention.qkv.bias"][:, H * K : -K])
    assert apart["blocks.attention.value.kernel"].shape == (2, D, K)
    again = fuse(apart)
    assert again.keys() == fused.keys()
    assert all(np.array_equal(again[name], fused[name]) for name in fused)
