"""Per-head statistics: where each head attends, how similar the heads of a layer are, and the cost of removing one.

With p_j the weight of a query at position i on the visible key at position j (and p_0 that of a learned sink, if the
model has sinks), a head's statistics are means over queries of held-out rows. A sequence's first token, which can only
attend to itself, is not counted.

    entropy        -sum_j p_j ln p_j - p_0 ln p_0, in nats (Clark et al. 2019, arXiv 1906.04341, section 3.3)
    entropy_share  entropy / ln(visible keys, and 1 for the sink); over queries that see two or more
    distance       sum_j p_j (i - j) / sum_j p_j, in tokens
    first          the weight on the sequence's first token, the sink of trained models (2309.17453)
    previous       the weight on the token before the query (Voita et al. 2019, 1905.09418: positional heads)
    largest        max_j p_j (Voita's confidence)
    sink           p_0
    logit          the largest score of any query and key, as the softmax takes it
    written        |o_h W_h|, what the head adds to the residual stream, over the norm of the stream it reads
    importance     the loss with the head's output set to 0 minus the loss, nats per token (Michel et al. 2019,
                   1905.10650, section 3.2; the head alone, without retraining), by the same program on the same rows

Heads of a layer are compared in pairs, over evenly spaced queries (`settings.compared`):

    divergence     Jensen-Shannon divergence of their maps, H((p + q) / 2) - (H(p) + H(q)) / 2 in nats, 0 .. ln 2 (Clark
                   et al., section 6)
    cosine         of their contributions, o_h W_h
    cka            linear CKA of their outputs o_h over tokens, |X'Y|^2 / (|X'X| |Y'Y|) of centred columns (Kornblith et
                   al. 2019, 1905.00414, section 3), which no rotation of a head's values changes

The maps are those of the reference kernel on the exact queries and keys of the kernel that ran; `core_difference` is
how much the maps times the values differ from that kernel's output, relative to the largest output.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy  # a submodule loads at its first use
from ml_collections import ConfigDict

from configs.errors import UserError
from configs.rules import layers, tasks
from data import pipeline
from eval.heads import maps
from eval.progress import Quiet
from eval.quality import intervals, scoring
from eval.quality.loss import source_of
from eval.variants import rows_at, unreachable
from models.declared import switches
from training.run_directory.record import compute_dtype
from training.run_directory.run import Run, open_text

SILENT = 1e-3  # relative to the stream's norm: a head that writes less is dead
UNIFORM = 0.99  # of the maximum entropy: a head above it attends uniformly
DIFFERENT = {"float32": 1e-3, "bfloat16": 0.1}  # core_difference from which the maps are not those of the run
GROUPS = 10  # groups of rows, for the jackknife of CKA


def evaluate(run: Run, progress: Quiet) -> dict[str, Any]:
    """Returns eval/heads.json's content: `heads`, a record for each layer and head, `layers`, and the `dead` heads.

    Intervals are 95% over rows: block bootstrap of the means (stats.column_bootstrap), and for CKA a jackknife over
    groups of rows.

    Raises:
        UserError: there are no held-out rows of that length.
    """
    expected = run.config.eval.heads
    length = expected.length or run.config.data.length
    if reason := unreachable(run.config.model, length):
        raise UserError(f"eval.heads.length = {length}: {reason}")
    if reason := unmeasured(run.config.model):
        raise UserError(f"evals = heads: {reason}")
    batches = list(_batches(run, length, expected.rows))
    if not batches:
        raise UserError(f"eval.heads.length = {length}: there are no held-out rows")
    graph, vocabulary = scoring.graphdef(run.config.model), run.config.model.vocab_size
    results = []
    for batch in progress.track("heads", batches):
        message = maps.measured(graph, run.params, _inputs(batch), _real(batch), vocabulary)
        results.append(_numpy(message))
    sums = _joined([layers for _, layers in results])
    weights = [batch["weights"] for batch in batches]
    plain = _row_losses([losses for losses, _ in results], weights)
    kept = sums["tokens"][0] > 0
    sums = {name: x if name in ("core_difference",) else x[:, kept] for name, x in sums.items()}
    _refuse_other_maps(run, sums["core_difference"])
    resamples = run.config.eval.bootstrap
    importance = _importance(run, batches, plain, progress) if expected.importance else None
    heads = _heads(sums, importance, resamples)
    return {
        "source": tasks.main_task(run.config) if not tasks.uses(run.config, "text") else "text",
        "rows": int(kept.sum()),
        "queries": int(sums["queries"][0].sum()),
        "loss": float(plain[0].sum() / plain[1].sum()) if plain[1].sum() else None,
        "heads": heads,
        "layers": _layers(sums, resamples),
        "dead": [{"layer": head["layer"], "head": head["head"], "why": head["dead"]} for head in heads if head["dead"]],
        "settings": {
            "length": length,
            "compared": len(maps.compared(length)),
            "silent": SILENT,
            "uniform": UNIFORM,
            "confidence": intervals.CONFIDENCE,
        },
    }


def _batches(run: Run, length: int, rows: int) -> Iterator[Mapping[str, np.ndarray]]:
    config = run.config
    if tasks.uses(config, "text"):
        size = rows_at(length, config.data.length, config.eval.batch_size)
        yield from pipeline.validation(
            config,
            run.tokenizer,
            open_text(run),
            length=length,
            batch_size=min(size, rows),
            max_tokens=rows * length,
        )
        return
    source = source_of(run)
    if reason := source.reason(length):
        raise UserError(f"eval.heads.length = {length}: {reason}")
    taken = 0
    for batch in source.at(length).batches:
        if taken >= rows:
            return
        taken += len(batch["tokens"])
        yield batch


def _inputs(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: batch[name] for name in ("tokens", "targets", "positions", "segments") if name in batch}


def _real(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns which tokens are not padding: by segments, else up to the last scored token of the row."""
    if "segments" in batch:
        return batch["segments"] > 0
    scored = batch["weights"] > 0
    return np.cumsum(scored[:, ::-1], axis=1)[:, ::-1] > 0


def _numpy(message: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    losses, layers = message
    return np.asarray(losses, np.float64), {name: np.asarray(x, np.float64) for name, x in layers.items()}


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns the batches' sums as one, [L, rows, ...]; for values without rows the maximum, [L]."""
    results = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        results[name] = np.max(values, axis=0) if values[0].ndim == 1 else np.concatenate(values, axis=1)
    return results


def _row_losses(losses: list[np.ndarray], weights: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (loss summed by row, weight by row), float64 [R]."""
    sums = [np.where(w > 0, x, 0.0) * w for x, w in zip(losses, weights, strict=True)]
    return np.concatenate([x.sum(1, dtype=np.float64) for x in sums]), np.concatenate(
        [w.sum(1, dtype=np.float64) for w in weights]
    )


def unmeasured(model: ConfigDict) -> str | None:
    """Returns why a model's heads have no statistics: its weights are no distributions over keys; None if they have."""
    if len({of.num_heads for of in layers.heads(model)}) > 1:
        return f"model.attention.pattern = {model.attention.pattern!r}: its layers have different numbers of heads"
    if model.attention.kind == "differential":
        return "model.attention.kind = 'differential': its weights may be negative, not a distribution over keys"
    for switch in switches.active(model):
        if not switch.maps:
            return f"{switch.weighting}: its weights need not add up to 1, not a distribution over keys"
    return None


def _refuse_other_maps(run: Run, differences_L: np.ndarray) -> None:
    """Raises if the maps are not those of the kernel that ran: some switch would be missing in them.

    Raises:
        UserError: the run's attention gives NaN.
    """
    most = DIFFERENT[compute_dtype(run.config)]
    worst = float(differences_L.max())
    if np.isnan(worst):
        raise UserError(f"{run.workdir}: its attention gives NaN (it diverged), so its heads cannot be measured")
    if not worst <= most:
        raise RuntimeError(
            f"the attention maps differ from the kernel's output by {worst:.2g} of the largest output in layer "
            f"{int(differences_L.argmax())}; at most {most} was expected"
        )


def _importance(
    run: Run, batches: list[Mapping[str, np.ndarray]], plain: tuple[np.ndarray, np.ndarray], progress: Quiet
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (the increase of the loss without each head, summed by row [R, L * H]; weight by row [R])."""
    model = run.config.model
    graph, shape = scoring.graphdef(model), (model.num_layers, model.num_heads)
    weights = [batch["weights"] for batch in batches]
    inputs = [_inputs(batch) for batch in batches]
    rises = []
    for index in progress.track("heads taken away", range(shape[0] * shape[1])):
        gates = np.ones(shape, np.float32)
        gates.flat[index] = 0.0
        losses = [
            np.asarray(maps.gated_losses(graph, run.params, batch, gates, model.vocab_size), np.float64)
            for batch in inputs
        ]
        rises.append(_row_losses(losses, weights)[0] - plain[0])
    return np.stack(rises, axis=1), plain[1]


def _heads(
    sums: dict[str, np.ndarray], importance: tuple[np.ndarray, np.ndarray] | None, resamples: int
) -> list[dict[str, Any]]:
    layers, _, heads = sums["entropy"].shape
    columns: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def flat(name: str) -> np.ndarray:
        return sums[name].transpose(1, 0, 2).reshape(-1, layers * heads)

    for name in maps.MEASURES:
        columns[name] = (flat(name), sums["choosing" if name == "entropy_share" else "queries"][0])
    columns["written"] = (flat("norm"), sums["tokens"][0])
    estimates = {name: _estimates(*given, resamples) for name, given in columns.items()}
    if importance is not None:
        estimates["importance"] = _estimates(*importance, resamples)
    stream_L = sums["stream"].sum(1) / np.maximum(sums["tokens"].sum(1), 1)
    logit = sums["logit"].max(1)
    results = []
    for index in range(layers * heads):
        layer, head = divmod(index, heads)
        record: dict[str, Any] = {"layer": layer, "head": head}
        for name, (means, ends) in estimates.items():
            scale = 1 / stream_L[layer] if name == "written" and stream_L[layer] > 0 else 1.0
            record[name] = None if means is None else float(means[index]) * scale
            record[f"{name}_interval"] = None if ends is None else [float(end) * scale for end in ends[:, index]]
        record["logit"] = float(logit[layer, head]) if np.isfinite(logit[layer, head]) else None
        results.append({**record, "dead": why_dead(record["written"], record["entropy_share"])})
    return results


def why_dead(written: float | None, entropy_share: float | None) -> str | None:
    """Returns why a head counts as dead, "silent" (it writes nothing) or "uniform" (it attends uniformly), or None."""
    if written is not None and written < SILENT:
        return "silent"
    return "uniform" if entropy_share is not None and entropy_share >= UNIFORM else None


def _estimates(
    sums_RM: np.ndarray, counts_R: np.ndarray, resamples: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns (means [M], their intervals [2, M]); None if nothing was counted, or if rows are too few."""
    if not counts_R.sum():
        return None, None
    return sums_RM.sum(0) / counts_R.sum(), intervals.column_bootstrap(sums_RM, counts_R, resamples=resamples)


def _layers(sums: dict[str, np.ndarray], resamples: int) -> list[dict[str, Any]]:
    results = []
    for layer in range(len(sums["entropy"])):
        divergence = _paired(sums["divergence"][layer], sums["compared"][layer], resamples)
        cosine = _paired(sums["cosine"][layer], sums["tokens"][layer], resamples)
        alike = cka_with_interval(sums["outputs"][layer], sums["real"][layer] > 0)
        results.append(
            {
                "layer": layer,
                "divergence": divergence,
                "cosine": cosine,
                "cka": alike,
                "core_difference": float(sums["core_difference"][layer]),
            }
        )
    return results


def _paired(sums_RHH: np.ndarray, counts_R: np.ndarray, resamples: int) -> dict[str, Any]:
    """Returns the mean over pairs of heads with its interval, and the table of pairs."""
    heads = sums_RHH.shape[1]
    if not counts_R.sum():
        return {"mean": None, "interval": None, "pairs": None}
    pairs_HH = sums_RHH.sum(0) / counts_R.sum()
    if heads < 2:
        return {"mean": None, "interval": None, "pairs": _rounded(pairs_HH)}
    above = np.triu_indices(heads, 1)
    by_row_R1 = sums_RHH[:, above[0], above[1]].mean(1, keepdims=True)
    ends = intervals.column_bootstrap(by_row_R1, counts_R, resamples=resamples)
    interval = None if ends is None else [float(end) for end in ends[:, 0]]
    return {"mean": float(pairs_HH[above].mean()), "interval": interval, "pairs": _rounded(pairs_HH)}


def _rounded(pairs_HH: np.ndarray) -> list[list[float | None]]:
    return [[round(float(x), 6) if np.isfinite(x) else None for x in row] for row in pairs_HH]


def cka(cross_HVHV: np.ndarray) -> np.ndarray:
    """Returns linear CKA of each pair of heads [H, H] from centred cross-products X_g' X_h; nan for a constant head."""
    squared_HH = np.square(cross_HVHV).sum((1, 3))
    own_H = np.sqrt(np.diag(squared_HH))
    both_HH = own_H[:, None] * own_H
    return np.divide(squared_HH, both_HH, out=np.full_like(squared_HH, np.nan), where=both_HH > 0)


def _centred(outputs_NHV: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns the sums for cross-products: products, sums and the number of tokens, which add up over groups."""
    n, heads, values = outputs_NHV.shape
    flat = outputs_NHV.reshape(n, heads * values)
    return flat.T @ flat, flat.sum(0), n


def _cka_of(products: np.ndarray, total: np.ndarray, n: int, heads: int) -> np.ndarray:
    values = len(total) // heads
    cross = products - np.outer(total, total) / max(n, 1)
    # Rounding noise of a constant is not variation.
    cross[np.abs(cross) < 1e-12 * np.abs(products).max(initial=0)] = 0
    return cka(cross.reshape(heads, values, heads, values))


def cka_with_interval(outputs_RNHV: np.ndarray, real_RN: np.ndarray) -> dict[str, Any]:
    """Returns the mean of CKA over pairs of heads, its jackknife interval over groups of rows, and the pairs."""
    rows, heads = len(outputs_RNHV), outputs_RNHV.shape[2]
    above = np.triu_indices(heads, 1)
    groups = np.array_split(np.arange(rows), min(GROUPS, rows))
    parts = [_centred(outputs_RNHV[group][real_RN[group]]) for group in groups]
    products = np.sum([product for product, _, _ in parts], axis=0)
    total = np.sum([one for _, one, _ in parts], axis=0)
    n = sum(count for _, _, count in parts)
    pairs_HH = _cka_of(products, total, n, heads)
    mean = float(np.nanmean(pairs_HH[above])) if np.isfinite(pairs_HH[above]).any() else None
    interval = None
    if mean is not None and len(parts) > 1:
        without = [_cka_of(products - p, total - s, n - count, heads)[above] for p, s, count in parts]
        left = np.array([np.nanmean(one) for one in without if np.isfinite(one).any()])
        if len(left) == len(parts):
            error = np.sqrt((len(left) - 1) * np.var(left))
            half = float(error * scipy.special.stdtrit(len(left) - 1, 0.5 + intervals.CONFIDENCE / 2))
            interval = [max(0.0, mean - half), min(1.0, mean + half)]
    return {"mean": mean, "interval": interval, "pairs": _rounded(pairs_HH)}
