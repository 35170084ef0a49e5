"""Pairing by seed: arms of a sweep read the same batches, byte for byte, and begin with the same numbers."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from data import pipeline
from models import initialise
from sweeps.spec import expand
from sweeps.spec.sweep import Run
from training.run_directory import run as runs
from training.run_directory.checkpoint import flat

ARMS = {
    "mha": {"model.num_kv_heads": 4},
    "mqa": {"model.num_kv_heads": 1, "model.mlp_width": 71},
    "fused": {"model.attention.qkv": "fused"},
    "mla": {"model.attention.kind": "mla"},
    "learned": {"model.position.kind": "learned"},
    "fire": {"model.position.kind": "fire", "model.attention.qk_norm": True},
    "deep": {"model.num_layers": 3, "optimizer.learning_rate": 0.1, "budget.amount": 77.0},
    "untied": {"model.tie_embeddings": False, "model.dropout": 0.1},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("\n".join(" ".join(str(i * i) for i in range(n, n + 40)) for n in range(300)))
    return path


def arms(path: Path, packing: str) -> dict[str, dict[int, Run]]:
    fixed = {"model.width": 32, "model.num_layers": 2, "model.num_heads": 4, "model.num_kv_heads": 4}
    fixed |= {"model.mlp_width": 64, "data.path": str(path), "data.split": "first", "data.tokenizer": "byte"}
    fixed |= {"data.length": 32, "data.batch_size": 4, "data.packing": packing, "data.weights.mqar": 0.5}
    given = dict(
        base="configs/tiny.py",
        fixed=fixed,
        axes=[{"chain": [changed for changed in ARMS.values()]}],
        seeds=[0, 1],
        arm=lambda config: next(
            name for name, changed in reversed(ARMS.items()) if all(config_of(config, f) == changed[f] for f in changed)
        ),
    )
    results: dict[str, dict[int, Run]] = {}
    for run in expand.expand(given, file=Path("s.py")).runs():
        results.setdefault(run.arm, {})[run.seed] = run
    assert set(results) == set(ARMS)
    return results


def config_of(config, field):
    for part in field.split("."):
        config = config[part]
    return config


def batches(run: Run) -> str:
    """Returns the digest of a run's first batches, every array of them with its name, type and shape."""
    config = run.config
    corpus = runs.open_data(config)
    stream = pipeline.TrainStream(config, runs.open_tokenizer(config, corpus), corpus)
    digest = hashlib.sha256()
    for _ in range(6):
        for name, array in sorted(next(stream).items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + np.asarray(array).tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("packing", ["contiguous", "segments"])
def test_every_arm_reads_the_same_batches_and_another_seed_others(text, packing) -> None:
    read = {seed: {batches(each[seed]) for each in arms(text, packing).values()} for seed in (0, 1)}
    assert len(read[0]) == len(read[1]) == 1, "an arm read other batches than the rest"
    assert read[0] != read[1]


def first(run: Run) -> dict[str, np.ndarray]:
    model = run.config.model
    return {name: np.asarray(x) for name, x in flat(initialise(model, run.seed)[1]).items()}


def test_parameters_of_one_name_and_shape_begin_alike_in_every_arm(text) -> None:
    runs_of = arms(text, "contiguous")
    results = {name: first(each[0]) for name, each in runs_of.items()}
    base = results["mha"]
    shared = 0
    for arm, own in results.items():
        for name in own.keys() & base.keys():
            if own[name].shape == base[name].shape:
                shared += 1
                assert np.array_equal(own[name], base[name]), f"{arm}: {name} begins with other numbers"
            elif arm == "deep":  # begins with the layers of the shallower model; what it adds to the stream is scaled
                scale = np.sqrt(2 / 3) if name.endswith(("out.kernel", "down.kernel")) else 1.0
                assert np.allclose(own[name][:2], scale * base[name], rtol=1e-6), name
    assert shared > 5 * len(ARMS)
    other = first(runs_of["mha"][1])
    random = [name for name in base if np.ptp(base[name]) > 0]
    assert len(random) > 5 and not any(np.array_equal(base[name], other[name]) for name in random)
