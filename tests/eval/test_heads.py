"""What eval.heads says of heads: against float64 NumPy written from the formulas, and where the answer is known."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.errors import UserError
from eval import run as command
from eval.heads import maps, per_head
from eval.progress import Quiet
from eval.quality import intervals, scoring
from tests.models.common import build
from tests.switches import cases, oracle

LENGTH, ROWS = cases.LENGTH, 3
# Between them every kind of switch: windows, sinks, soft cap, QK-norm, temperature, biases, scores, latents, scalings.
FEW = ("many at once", "schemes by layer", "MLA, yarn with both mscales", "value residual, fixed", "talking heads")


def seen_by_oracle(name: str) -> tuple[Any, Any, np.ndarray, np.ndarray, np.ndarray]:
    """Returns (graph, params, tokens [R, T], weights [L, R, H, T, S], heads' outputs [L, R, H, T, V])."""
    config = cases.config_of(name)
    graph, params = nnx.split(build(config))
    tokens = np.random.default_rng(5).integers(0, config.vocab_size, (ROWS, LENGTH), np.int32)
    plain = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(params))
    weights, outputs = [], []
    for row in tokens:
        seen: list[tuple[np.ndarray, np.ndarray]] = []
        oracle.logits(config, plain, row, seen)
        shape = (config.num_layers, config.num_heads, LENGTH)
        weights.append(np.stack([w for w, _ in seen]).reshape(*shape, LENGTH))
        outputs.append(np.stack([o for _, o in seen]).reshape(*shape, -1))
    return graph, params, tokens, np.stack(weights, 1), np.stack(outputs, 1)


def entropy(p: np.ndarray) -> float:
    p = np.append(p, max(1 - p.sum(), 0.0) if abs(1 - p.sum()) > 1e-9 else 0.0)
    return -sum(x * np.log(x) for x in p if x > 0)


def by_hand(weights: np.ndarray, sinks: bool, window: list[int]) -> dict[str, np.ndarray]:
    """Means over queries, by loops, [L, H]."""
    layers, rows, count, length, _ = weights.shape
    results = {name: np.zeros((layers, count)) for name in maps.MEASURES}
    for layer, head in np.ndindex(layers, count):
        messages: dict[str, list[float]] = {name: [] for name in maps.MEASURES}
        for row in range(rows):
            for i in range(1, length):
                p = weights[layer, row, head, i]
                keys = min(i + 1, window[layer] or length) + sinks
                messages["entropy"].append(entropy(p))
                if keys >= 2:
                    messages["entropy_share"].append(entropy(p) / np.log(keys))
                messages["distance"].append(sum(p[j] * (i - j) for j in range(length)) / p.sum())
                messages["first"].append(p[0])
                messages["previous"].append(p[i - 1])
                messages["largest"].append(max(p))
                messages["sink"].append(1 - p.sum())
        for name, values in messages.items():
            results[name][layer, head] = np.mean(values)
    return results


def close(got: Any, expected: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    "name", [*FEW, *(pytest.param(name, marks=pytest.mark.slow) for name in cases.CASES if name not in FEW)]
)
def test_every_switch_is_in_the_maps_or_refused(name: str):
    if reason := per_head.unmeasured(cases.config_of(name)):
        assert any(word in reason for word in ("different numbers of heads", "may be negative", "need not add up to 1"))
        return
    graph, params, tokens, weights, outputs = seen_by_oracle(name)
    config = cases.config_of(name)
    batch = {"tokens": tokens, "targets": tokens}
    real = np.ones(tokens.shape, bool)
    layers = maps.measured(graph, params, batch, real, config.vocab_size)[1]
    sums = {key: np.asarray(x, np.float64) for key, x in layers.items()}
    pattern = tuple(config.attention.window_pattern) or (config.attention.window or 0,)
    windows = [pattern[layer % len(pattern)] for layer in range(config.num_layers)]
    for measure, expected in by_hand(weights, config.attention.sinks, windows).items():
        queries = sums["choosing" if measure == "entropy_share" else "queries"].sum(1)
        close(sums[measure].sum(1) / queries[:, None], expected)
    close(sums["outputs"].transpose(0, 1, 3, 2, 4), outputs[:, :, :, maps.compared(LENGTH)])
    assert sums["core_difference"].max() < 1e-5
    apart = [
        [
            np.mean(
                [
                    entropy((p[i] + q[i]) / 2) - (entropy(p[i]) + entropy(q[i])) / 2
                    for row in range(ROWS)
                    for p, q in [(weights[0, row, one], weights[0, row, other])]
                    for i in range(1, LENGTH)
                ]
            )
            for other in range(config.num_heads)
        ]
        for one in range(config.num_heads)
    ]
    close(sums["divergence"][0].sum(0) / sums["compared"][0].sum(), apart)


def test_long_rows_go_through_in_pieces_with_the_same_numbers(monkeypatch):
    config = cases.config_of("attention sinks", num_layers=1)
    graph, params = nnx.split(build(config))
    tokens = np.random.default_rng(5).integers(0, config.vocab_size, (ROWS, LENGTH), np.int32)
    batch, real = {"tokens": tokens, "targets": tokens}, np.ones(tokens.shape, bool)
    real[0, 7:] = False
    whole = maps.measured(graph, params, batch, real, config.vocab_size)[1]
    monkeypatch.setattr(maps, "HELD", ROWS * config.num_heads * LENGTH * 6)
    maps.measured.clear_cache()
    cut = maps.measured(graph, params, batch, real, config.vocab_size)[1]
    maps.measured.clear_cache()
    for name in maps.MEASURES:
        close(cut[name], whole[name])
    close(cut["logit"], whole["logit"])
    assert np.asarray(whole["queries"])[:, 0].tolist() == [6] * config.num_layers, "padding is no query"


@pytest.fixture
def heads_run(make):
    """A run of two layers of 4 heads; head 1 of layer 0 is head 0 again, head 2 writes nothing, head 3 is uniform."""
    run = make(model__num_layers=2, model__num_heads=4, model__num_kv_heads=4, model__position__kind="none")
    pure = nnx.to_pure_dict(run.params)
    attention = pure["blocks"]["attention"]
    for name in ("query", "key", "value"):
        kernel = np.array(attention[name]["kernel"])
        size = kernel.shape[2] // 4
        kernel[0, :, size : 2 * size] = kernel[0, :, :size]
        if name != "value":
            kernel[0, :, 3 * size :] = 0.0
        attention[name]["kernel"] = jnp.asarray(kernel)
    out = np.array(attention["out"]["kernel"])
    size = out.shape[1] // 4
    out[0, size : 2 * size] = out[0, :size]
    out[0, 2 * size : 3 * size] = 0.0
    attention["out"]["kernel"] = jnp.asarray(out)
    nnx.replace_by_pure_dict(run.params, pure)
    return run


def test_known_heads_have_known_numbers(heads_run):
    result = per_head.evaluate(heads_run, Quiet())
    by_head = {(head["layer"], head["head"]): head for head in result["heads"]}
    length = heads_run.config.data.length
    assert result["rows"] == heads_run.config.eval.heads.rows and len(by_head) == 8
    expected = np.mean([np.log(n) for n in range(2, length + 1)])
    assert by_head[0, 3]["entropy"] == pytest.approx(expected, abs=1e-5)
    assert by_head[0, 3]["entropy_share"] == pytest.approx(1.0, abs=1e-5)
    assert by_head[0, 3]["distance"] == pytest.approx(np.mean([i / 2 for i in range(1, length)]), abs=1e-4)
    assert result["dead"] == [
        {"layer": 0, "head": 2, "why": "silent"},
        {"layer": 0, "head": 3, "why": "uniform"},
    ]
    assert by_head[0, 2]["importance"] == pytest.approx(0.0, abs=1e-6)
    assert max(abs(head["importance"]) for head in result["heads"]) > 1e-3
    layer = result["layers"][0]
    assert layer["divergence"]["pairs"][0][1] == pytest.approx(0.0, abs=1e-5)
    assert layer["cosine"]["pairs"][0][1] == pytest.approx(1.0, abs=1e-5)
    assert layer["cka"]["pairs"][0][1] == pytest.approx(1.0, abs=1e-5)
    assert layer["divergence"]["pairs"][0][3] > 0.01 and layer["cka"]["pairs"][0][3] < 0.9
    for head in result["heads"]:
        low, high = head["entropy_interval"]
        assert low <= head["entropy"] <= high
    json.dumps(result, allow_nan=False)


def test_importance_is_the_rise_of_the_loss_of_a_model_without_the_head(heads_run):
    run = heads_run
    model = run.config.model
    result = per_head.evaluate(run, Quiet())
    pure = nnx.to_pure_dict(run.params)
    kernel = np.array(pure["blocks"]["attention"]["out"]["kernel"])
    size = kernel.shape[1] // model.num_heads
    kernel[1, size : 2 * size] = 0.0  # what convert.surgery drop_heads masks
    pure["blocks"]["attention"]["out"]["kernel"] = jnp.asarray(kernel)
    masked = jax.tree.map(lambda x: x, run.params)
    nnx.replace_by_pure_dict(masked, pure)
    total = count = 0.0
    for batch in per_head._batches(run, run.config.data.length, run.config.eval.heads.rows):
        losses = [scoring.score(model, params, batch)[0] for params in (masked, run.params)]
        total += float(((losses[0] - losses[1]) * batch["weights"]).sum())
        count += float(batch["weights"].sum())
    head = next(head for head in result["heads"] if (head["layer"], head["head"]) == (1, 1))
    assert head["importance"] == pytest.approx(total / count, abs=1e-6)


def test_cka_against_its_definition_by_centred_gram_matrices():
    draw = np.random.default_rng(0)
    outputs = draw.standard_normal((5, 7, 3, 4))
    outputs[:, :, 2] = outputs[:, :, 0] @ np.linalg.qr(draw.standard_normal((4, 4)))[0] * 3 + 1  # turned, scaled, moved
    result = per_head.cka_with_interval(outputs, np.ones((5, 7), bool))
    flat = outputs.reshape(35, 3, 4)
    centre = np.eye(35) - 1 / 35
    grams = [centre @ (flat[:, h] @ flat[:, h].T) @ centre for h in range(3)]
    hsic = [[np.sum(a * b) for b in grams] for a in grams]
    expected = [[hsic[a][b] / np.sqrt(hsic[a][a] * hsic[b][b]) for b in range(3)] for a in range(3)]
    close(result["pairs"], expected, 1e-6)
    assert result["pairs"][0][2] == pytest.approx(1.0) and result["pairs"][0][1] < 0.6
    still = outputs.copy()
    still[:, :, 1] = 2.5
    assert per_head.cka_with_interval(still, np.ones((5, 7), bool))["pairs"][0][1] is None, "a still head has no CKA"


def test_the_interval_of_a_column_is_the_block_bootstraps():
    draw = np.random.default_rng(0)
    counts = draw.integers(1, 9, 20).astype(float)
    sums = draw.standard_normal((20, 2)) * counts[:, None]
    ends = intervals.column_bootstrap(sums, counts, resamples=200)
    assert ends is not None
    for column in range(2):
        assert ends[:, column].tolist() == pytest.approx(
            intervals.block_bootstrap(sums[:, column], counts, resamples=200), abs=1e-12
        )
    assert intervals.column_bootstrap(sums[:1], counts[:1]) is None


def test_maps_of_other_numbers_are_refused(heads_run, monkeypatch):
    monkeypatch.setattr(maps.Layer, "sinks", True)  # as if a switch were forgotten
    monkeypatch.setattr(per_head, "DIFFERENT", {"float32": 1e-9, "bfloat16": 1e-9})
    with pytest.raises(RuntimeError, match="the attention maps differ from the kernel's output"):
        per_head.evaluate(heads_run, Quiet())


def test_packed_rows_and_tasks_are_looked_at(make, recall_run):
    packed = make(data__packing="segments", eval__heads__importance=False, eval__heads__rows=4)
    result = per_head.evaluate(packed, Quiet())
    assert "importance" not in result["heads"][0]
    assert result["rows"] == 4 and 0 < result["queries"] < 4 * packed.config.data.length
    recalled = per_head.evaluate(recall_run(eval__heads__rows=8), Quiet())
    assert recalled["source"] == "mqar" and len(recalled["heads"]) == 2


def test_one_head_one_token_and_a_window_of_one_have_what_numbers_they_can(make):
    run = make(model__num_heads=1, model__width=2, model__attention__window=1, data__length=2, eval__heads__rows=4)
    result = per_head.evaluate(run, Quiet())
    (head,) = result["heads"]
    assert (head["entropy"], head["entropy_share"], head["largest"]) == (0.0, None, 1.0)
    assert result["layers"][0]["divergence"]["mean"] is None
    json.dumps(result, allow_nan=False)


def test_a_length_beyond_the_learned_table_is_refused_by_name(make):
    run = make(model__position__kind="learned", eval__heads__length=64)
    with pytest.raises(UserError, match=r"eval\.heads\.length = 64: the learned table has 16 positions"):
        per_head.evaluate(run, Quiet())


def test_heads_are_asked_for_by_name():
    assert "heads" in command.EVALUATIONS and "heads" not in command.DEFAULT
