"""Writes sweep and run directories in the formats that training, evaluation and sweeps write, with made-up numbers."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from configs import provenance

SCALING_LOSS = {"trained": 0.24, "linear": 0.36, "ntk": 0.13, "yarn": 0.11}  # nats for each doubling of the length
SCALING_SHARE = {"trained": 0.10, "linear": 0.28, "ntk": 0.03, "yarn": 0.001}  # share lost for each doubling


def config(heads: int = 4, seed: int = 0, kind: str = "rope") -> dict[str, Any]:
    scaling = {"kind": "none", "factor": 1.0}
    rope = {"theta": 10000.0, "scaling": scaling}
    return {
        "name": "",
        "seed": seed,
        "model": {"width": 64, "num_heads": heads, "head_dim": 64 // heads, "position": {"kind": kind, "rope": rope}},
        "data": {"length": 128, "batch_size": 16},
    }


def run_json(seed: int = 0, **changes: Any) -> dict[str, Any]:
    parts = {"embedding": 16384, "position": 0, "attention": 32768, "mlp": 90000, "norm": 400, "head": 0}
    base = {
        "schema": 1,
        "name": "",
        "status": "done",
        "error": None,
        "started": "2026-01-02T03:04:05Z",
        "updated": "2026-01-02T03:14:05Z",
        "step": 1000,
        "tokens": 2048000,
        "flops": 1.7e12,
        "budget": {"kind": "steps", "amount": 1000.0},
        "seed": seed,
        "git_commit": "0123456789abcdef0123456789abcdef01234567",
        "git_dirty": False,
        "versions": {"jax": "0.10.2", "python": "3.11.7"},
        "host": "host",
        "pid": 1,
        "devices": [{"kind": "cpu", "platform": "cpu", "count": 1}],
        "mesh": {},
        "data": {
            "fingerprint": "f" * 64,
            "source": "stdlib",
            "files": 700,
            "bytes": 9000000,
            "sha256": "a" * 64,
            "tokenizer": {"kind": "byte"},
        },
        "parameters": {"total": 139584, "non_embedding": 123200, **parts},
        "flops_per_token": {"value": 837504, "formula": "6 N + 12 L H K T", "N": 139584, "N_counts": "matrices"},
        "kv_bytes_per_token": 1024,
        "attention_kernel": "blocked",
        "dtype": "float32",
        "wall_time": {"compile": 5.0, "train": 60.0, "eval": 9.0, "total": 75.0},
        "train_loss": 1.7,
        "val_loss": 1.75,
        "best_val_loss": 1.74,
    }
    return base | changes


def metrics(
    final: float, seed: int = 0, lines: int = 100, per_line: int = 20480, noise: float = 0.05
) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed + round(final * 1e6))
    rows = []
    for index in range(lines):
        step = (index + 1) * 10
        value = final + 3.6 * math.exp(-step / 60) + 0.5 * math.exp(-step / 400) + noise * rng.normal()
        row = {
            "step": step,
            "tokens": (index + 1) * per_line,
            "flops": (index + 1) * 1.7e10,
            "train_loss": value,
            "learning_rate": 1e-3,
            "grad_norm": 0.5,
            "tokens_per_second": 30000.0,
            "stage": 0,
            "length": 128,
        }
        if index % 10 == 9:
            row["val_loss"] = value + 0.02
        rows.append(row)
    return rows


def loss_json(
    loss: float,
    scalings: tuple[str, ...] = (),
    multiples: tuple[int, ...] = (1, 2, 4),
    half: float = 0.01,
    wobble: float = 0.0,
) -> dict[str, Any]:
    edges = [0, 1, 2, 4, 8, 16, 32, 64, 128]
    by_position = {
        "start": edges[:-1],
        "end": edges[1:],
        "loss": [loss + 1.2 / (start + 1) - 0.05 for start in edges[:-1]],
        "tokens": [1000] * 8,
    }
    by_length = []
    for times in multiples:
        for scaling in ("trained", *scalings):
            value = loss + SCALING_LOSS[scaling] * math.log2(times) ** 1.3 + wobble * math.log2(times)
            entry = {
                "length": 128 * times,
                "multiple": times,
                "scaling": scaling,
                "factor": float(times),
                "loss": value,
            }
            by_length.append(
                entry | {"interval": [value - half, value + half], "tokens": 65536, "by_position": by_position}
            )
    bits = loss / math.log(2)
    return {
        "schema": 1,
        "eval": "loss",
        "step": 1000,
        "settings": {"batch_size": 16, "bootstrap": 1000},
        "loss": loss,
        "loss_interval": [loss - half, loss + half],
        "bits_per_byte": bits,
        "bits_per_byte_interval": [bits - half, bits + half],
        "tokens": 650000,
        "bytes": 650000,
        "by_position": by_position,
        "by_length": by_length,
        "seconds": 3.0,
    }


def retrieval_json(
    start: float = 1.0, scalings: tuple[str, ...] = (), multiples: tuple[int, ...] = (1, 2, 4, 8), examples: int = 64
) -> dict[str, Any]:
    cells, by_length = [], []
    for times in multiples:
        for scaling in ("trained", *scalings):
            setting = {
                "length": 63 * times,
                "multiple": times,
                "pairs": 16 * times,
                "scaling": scaling,
                "factor": float(times),
            }
            row = 0
            for depth in (0.1, 0.3, 0.5, 0.7, 0.9):
                lost = SCALING_SHARE[scaling] * math.log2(times) * (1.6 - 1.2 * depth)
                right = round(examples * min(1.0, max(0.0, start - lost)))
                row += right
                share = {"examples": examples, "correct": right, "accuracy": right / examples, "interval": [0.0, 1.0]}
                known = {"exact_match": None, "measures_distance": None if times <= 1 else True}
                cells.append(setting | {"depth": depth} | share | known)
            share = {"examples": 5 * examples, "correct": row, "accuracy": row / (5 * examples), "interval": [0.0, 1.0]}
            by_length.append(
                {k: v for k, v in setting.items() if k != "pairs"}
                | share
                | {"loss": 0.1, "exact_match": None, "measures_distance": None if times <= 1 else True}
            )
    return {
        "schema": 1,
        "eval": "retrieval",
        "step": 1000,
        "task": "mqar",
        "settings": {},
        "accuracy": start,
        "cells": cells,
        "by_length": by_length,
        "seconds": 2.0,
    }


def throughput_json(train: float = 30000.0, decode: float = 900.0) -> dict[str, Any]:
    def timed(rate: float) -> dict[str, Any]:
        spread = [0.97 * rate, 1.02 * rate]
        rest = {"seconds": 0.07, "batch_size": 16, "length": 128, "repeats": 5, "compile_seconds": 4.0}
        return {"tokens_per_second": rate, "spread": spread, **rest}

    decoding = timed(decode) | {"new_tokens": 32, "kernel": "reference"}
    parts = {"train": timed(train), "prefill": timed(3 * train), "decode": decoding}
    return {
        "schema": 1,
        "eval": "throughput",
        "step": 1000,
        "settings": {},
        "device": "cpu",
        "attention_kernel": "blocked",
        **parts,
    }


def profile_json(mlp: float = 0.4, kv_read: float = 0.5) -> dict[str, Any]:
    def program(shares: dict[str, float], ways: tuple[str, ...]) -> dict[str, Any]:
        shares = {**shares, "rest": 1 - sum(shares.values())}
        entries = [
            {"part": part, "direction": way, "share": share / len(ways), "seconds": 0.1 * share / len(ways), "bytes": 9}
            for part, share in shares.items()
            for way in (ways if part != "optimizer" else ("update",))
        ]
        return {"seconds": 0.1, "shares": shares, "by_direction": entries, "unnamed": 0.0, "answer": "bound by the MLP"}

    train = {"qkv_projection": 0.12, "attention_scores": 0.15, "value_mixing": 0.08, "output_projection": 0.05}
    train |= {"mlp": mlp, "embedding_logits": 0.06, "norm": 0.05, "optimizer": 0.04}
    decoding = {"qkv_projection": 0.1, "mlp": 0.2, "kv_read": kv_read, "kv_write": 0.02}
    programs = {"train": program(train, ("forward", "backward")), "decode": program(decoding, ("forward",))}
    return {"schema": 1, "eval": "profile", "settings": {}, "programs": programs, "answer": ""}


def memory_json(peak: int = 48 << 20) -> dict[str, Any]:
    formula = {
        "parameters": 558336,
        "gradients": 558336,
        "optimizer": 1116672,
        "kv_cache": 131072,
        "kv_bytes_per_token": 1024,
    }
    compiled = {"train_step": {"argument": 1 << 20, "output": 1 << 20, "temp": 1 << 24, "alias": 0, "peak": peak}}
    return {"schema": 1, "eval": "memory", "settings": {}, "formula": formula, "compiled": compiled, "measured": None}


def heads_json(layers: int, heads: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    records = []
    for layer in range(layers):
        for head in range(heads):
            share = 0.3 + 0.6 * float(rng.random())
            record = {"layer": layer, "head": head, "entropy": 3 * share, "entropy_share": share, "distance": 9.0}
            record |= {"entropy_share_interval": [share - 0.01, share + 0.01], "first": 0.2, "previous": 0.1}
            records.append(record | {"importance": 0.01, "dead": None})
    records[-1] |= {"entropy_share": 0.995, "entropy_share_interval": [0.99, 1.0], "dead": "uniform"}
    divergence = {"mean": 0.2, "interval": [0.1, 0.3], "pairs": [[0.0] * heads] * heads}
    by_layer = [{"layer": layer, "divergence": divergence} for layer in range(layers)]
    return {"schema": 1, "eval": "heads", "settings": {}, "heads": records, "layers": by_layer}


def write_run(
    directory: Path,
    *,
    info: dict[str, Any] | None = None,
    configuration: dict[str, Any] | None = None,
    lines: list[dict[str, Any]] | None = None,
    evals: dict[str, dict[str, Any]] | None = None,
) -> Path:
    (directory / "eval").mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(configuration or config()))
    (directory / "run.json").write_text(json.dumps(info or run_json()))
    rows = metrics(1.7) if lines is None else lines
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, content in (evals or {}).items():
        step = content.get("step", json.loads((directory / "run.json").read_text()).get("step"))
        of = provenance.of_result(directory, name, configuration or config(), content, step)
        content = {"of": of, **content}
        (directory / "eval" / f"{name}.json").write_text(json.dumps(content))
    return directory


def name_again(workdir: Path) -> None:
    """Has a run's results say that they are of the run as it stands now, as if evaluated again."""
    for path in (workdir / "eval").glob("*.json"):
        content = json.loads(path.read_text())
        now = provenance.directory(workdir)
        path.write_text(json.dumps(content | {"of": {**content.get("of", {}), **now}}))


def study_json(name: str, arms: dict[str, dict[str, Any]], seeds: list[int], **changes: Any) -> dict[str, Any]:
    listed = [
        {"name": arm, "overrides": {"model.num_heads": one["model"]["num_heads"]}, "config": one}
        for arm, one in arms.items()
    ]
    base = {
        "name": name,
        "title": name.capitalize(),
        "question": "",
        "baseline": next(iter(arms), None),
        "evals": ["loss"],
    }
    return copy.deepcopy(base | {"arms": listed, "seeds": seeds} | changes)


def write_sweep(directory: Path, studies: list[dict[str, Any]], **changes: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    base = {
        "schema": 1,
        "name": "sweep",
        "title": "A sweep",
        "file": "configs/sweeps/x.py",
        "text": "",
        "studies": studies,
    }
    (directory / "sweep.json").write_text(json.dumps(base | {"created": "2026-01-02T03:00:00Z"} | changes))
    return directory


def losses(directory: Path, values: dict[str, list[float]], **changes: Any) -> Path:
    """Writes a sweep of one study whose arms have these validation losses, one a seed; the first arm is baseline."""
    count = max(len(one) for one in values.values())
    study = study_json(
        "heads", {arm: config(2**index) for index, arm in enumerate(values)}, list(range(count)), **changes
    )
    for arm, by_seed in values.items():
        for seed, value in enumerate(by_seed):
            write_run(
                directory / "runs" / arm / f"seed{seed}",
                info=run_json(seed),
                lines=metrics(value, seed, lines=20),
                evals={"loss": loss_json(value)},
            )
    return write_sweep(directory, [study])


def demo(directory: Path) -> Path:
    """Writes a sweep as `make demo` makes one: head counts on text, and a retrieving model under RoPE scalings."""
    rng = np.random.default_rng(0)
    heads = {"h1": (1, 1.792), "h2": (2, 1.752), "h4": (4, 1.7405), "h8": (8, 1.7412)}
    for index, (arm, (count, value)) in enumerate(heads.items()):
        for seed in range(3):
            measured = value + 0.006 * seed + 0.0012 * float(rng.normal())
            evals = {
                "loss": loss_json(measured, ("linear", "ntk", "yarn"), (1, 2, 4, 8), wobble=0.01 * float(rng.normal())),
                "throughput": throughput_json(31000 - 2500 * index, 950 - 30 * index),
                "memory": memory_json((44 + 6 * index) << 20),
                "heads": heads_json(2, count, seed),
                "profile": profile_json(0.3 + 0.05 * index, 0.6 - 0.12 * index),
            }
            write_run(
                directory / "runs" / arm / f"seed{seed}",
                info=run_json(seed),
                configuration=config(count, seed),
                lines=metrics(measured - 0.03, seed),
                evals=evals,
            )
    for seed in range(3):
        changed = run_json(seed, tokens=900000, parameters={"total": 120000, "non_embedding": 100000})
        evals = {"retrieval": retrieval_json(1.0 - 0.004 * seed, ("linear", "ntk", "yarn"))}
        write_run(directory / "runs" / "recall" / f"seed{seed}", info=changed, lines=metrics(0.02, seed), evals=evals)
    question = "At a fixed width and budget, what does the number of heads do to the loss on real text?"
    first = study_json("heads", {arm: config(count) for arm, (count, _) in heads.items()}, [0, 1, 2])
    first |= {"title": "Heads at a fixed width", "question": question, "baseline": "h4"}
    first |= {"evals": ["loss", "throughput", "memory"]}
    second = study_json("recall", {"recall": config(2)}, [0, 1, 2], evals=["retrieval"], baseline="recall")
    second |= {"title": "Retrieval past the training length", "question": "Which RoPE scaling keeps key-value recall?"}
    return write_sweep(directory, [first, second], name="demo", title="Head counts and RoPE scalings, a demonstration")
