"""Checkpoints made by transformers 5.24, one a family: its logits and its greedy continuation come out of ours."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from configs import fields, validate
from convert.from_hf import convert
from convert.to_hf import export
from eval.run import evaluate
from models.decoding import decode
from training.run_directory import run as runs
from training.run_directory.checkpoint import flat

VECTORS = Path(__file__).parent / "vectors"
CASES = sorted(path.name for path in VECTORS.iterdir())
KIN = ("llama_gqa_llama3", "qwen2_bias")  # decode as qwen3 does
TOLERANCE = 2e-4


class Case:
    """An imported checkpoint, what transformers computed with it, and what we do."""

    def __init__(self, name: str, folder: Path) -> None:
        self.expected = load_file(VECTORS / name / "expected.safetensors")
        self.run = runs.load(convert(VECTORS / name, folder / name))
        self.ids = self.expected["input_ids"].astype(np.int32)
        self.mask = self.expected["attention_mask"].astype(np.int32)
        graphdef = self.run.graphdef

        def forward(params: Any, ids: Any, positions: Any, segments: Any) -> Any:
            return nnx.merge(graphdef, params)(ids, positions, segments)

        # One program for the rows as they are and for those padded.
        mask = np.concatenate([np.ones_like(self.mask), self.mask])
        positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
        given = (self.run.params, np.concatenate([self.ids, self.ids]), positions, mask)
        quickly = {"xla_backend_optimization_level": "0"}  # half the time to compile
        logits = jax.jit(forward).lower(*given).compile(compiler_options=quickly)(*given)
        self.logits, self.padded = np.split(np.asarray(logits), 2)


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("hf"))


@pytest.mark.fault(6)
def test_logits_are_those_of_transformers(case: Case) -> None:
    assert np.abs(case.logits - case.expected["logits"]).max() < TOLERANCE


@pytest.mark.fault(7)
def test_padding_on_the_left_changes_nothing_at_real_tokens(case: Case) -> None:
    real = case.mask.astype(bool)
    assert not real.all()
    assert np.abs(case.padded - case.expected["logits_left_padded"])[real].max() < TOLERANCE


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.slow) if name in KIN else name for name in CASES], indirect=True
)
def test_greedy_continuation_through_the_cache_is_the_same(case: Case) -> None:
    """Both rows, the second left-padded, so that one compiled program also shows that its neighbour changes nothing."""
    length, greedy = case.ids.shape[1], case.expected["greedy"][0]
    result = decode.generate(
        case.run.graphdef, case.run.params, case.ids, mask_BT=case.mask, max_new=len(greedy) - length
    )
    np.testing.assert_array_equal(result[0], greedy[length:])
    # The same tokens without a cache: each new one is the likeliest after all before it.
    assert int(result[1, 0]) == int(case.expected["logits_left_padded"][1, -1].argmax())


def test_what_the_run_directory_holds(case: Case) -> None:
    run, record = case.run, json.loads((case.run.workdir / "run.json").read_text())
    validate.check(run.config)
    assert record["status"] == "done"
    assert (
        record["origin"]["model_type"]
        == json.loads((VECTORS / run.config.name / "config.json").read_text())["model_type"]
    )
    assert record["parameters"]["total"] == sum(leaf.size for leaf in flat(run.params).values())


def test_out_and_in_again_is_the_same_run(case: Case, tmp_path: Path) -> None:
    exported = export(case.run.workdir, tmp_path / "out")
    with np.errstate(all="raise"):
        theirs, ours = (
            load_file(VECTORS / case.run.config.name / "model.safetensors"),
            load_file(exported / "model.safetensors"),
        )
    assert theirs.keys() == ours.keys()
    assert all(np.array_equal(theirs[name], ours[name]) for name in theirs)
    again = runs.load(convert(exported, tmp_path / "again"))
    params, before = flat(again.params), flat(case.run.params)
    assert params.keys() == before.keys()
    assert all(np.array_equal(params[name], before[name]) for name in before)
    assert fields.to_dict(again.config.model) == fields.to_dict(case.run.config.model)


def test_evaluation_accepts_it(tmp_path: Path) -> None:
    workdir = convert(VECTORS / "gpt2_learned", tmp_path / "run", {"eval.multiples": (1,), "eval.tokens": 256})
    assert np.isfinite(evaluate(workdir, ["loss"])["loss"]["loss"])


def test_an_existing_directory_is_never_written_to(tmp_path: Path) -> None:
    for name, call in (("run", convert), ("out", export)):
        target = tmp_path / name
        shutil.copytree(VECTORS / "gpt2_learned", target)
        before = sorted(path.name for path in target.iterdir())
        with pytest.raises(validate.UserError, match="nothing is overwritten"):
            call(VECTORS / "gpt2_learned", target)
        assert sorted(path.name for path in target.iterdir()) == before
