"""Numbers at the edge of what a config may hold train and are evaluated to a right number, or are refused by name."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict

from configs import cli, validate
from configs.errors import ConfigError, UserError
from data import pipeline
from eval import generate
from eval.progress import Quiet
from eval.quality import loss as loss_evaluation
from eval.variants import variants
from models import initialise
from sweeps.spec import expand
from tests.models.common import close, numpy_logits
from tests.models.common import run as call
from training.loop import trainer
from training.run_directory import run as runs
from training.run_directory.files import read_json, read_lines
from training.step import schedule
from training.step.budget import Budget
from training.step.rng import root_key

SHARE = 0.9  # of the text that trains
LARGE = (0, 2**32, 2**40, 2**62, 2**63 - 1, 1, 1 + 2**32, 2**31, 2**32 - 1)


@pytest.fixture
def trained(make_tiny: Callable[..., ConfigDict], tmp_path: Path) -> Callable[..., runs.Run]:
    """Trains one layer for two steps on a text of characters, by the real command's path, and loads the run."""

    def train(text: str, **overrides: Any) -> runs.Run:
        (tmp_path / "text.txt").write_text(text)
        small = {
            "model__num_layers": 1,
            "model__mlp_width": 4,
            "model__init_std": 0.5,  # far from uniform, so that a wrong place shows
            "data__path": str(tmp_path / "text.txt"),
            "data__train_share": SHARE,
            "budget__amount": 2,
            "log__every_steps": 1,
            "eval__every_steps": 0,
            "eval__tokens": 0,
            "eval__bootstrap": 20,
            "eval__multiples": (1,),
        }
        trainer.train(make_tiny(**{**small, **overrides}), tmp_path / "run", quiet=True)
        return runs.load(tmp_path / "run")

    return train


def words(count: int) -> str:
    return "".join(np.random.default_rng(0).choice(list("abcde "), count, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.1]))


def loss_in_numpy(run: runs.Run, text: str) -> float:
    """Returns the loss of what is held out, in nats a character, row by row in float64."""
    codes = {character: code for code, character in enumerate(sorted(set(text)))}
    ids = np.array([codes[character] for character in text[int(SHARE * len(text)) :]])
    model, length, total = nnx.merge(run.graphdef, run.params), run.config.data.length, 0.0
    for start in range(0, len(ids) - 1, length):
        targets = ids[start + 1 : start + 1 + length]
        logits = numpy_logits(run.config.model, model, ids[start : start + len(targets)])
        total += sum(np.log(np.exp(row).sum()) - row[target] for row, target in zip(logits, targets, strict=True))
    return total / (len(ids) - 1)


ODD = {
    "length 1, one head of dim 2": dict(model__width=2, model__num_heads=1, data__length=1),
    "odd dims without rotation, one KV head, window 1": dict(
        model__width=6,
        model__num_heads=3,
        model__head_dim=3,
        model__num_kv_heads=1,
        model__position__kind="none",
        model__attention__window=1,
        data__length=4,
    ),
    "an odd number of KV heads, odd dims of which an even number turns": dict(
        model__width=6,
        model__num_heads=9,
        model__head_dim=5,
        model__num_kv_heads=3,
        model__position__rope__fraction=0.8,
        data__length=5,
    ),
    "a head wider than the model, one KV head": dict(
        model__width=3, model__num_heads=2, model__head_dim=7, model__num_kv_heads=1, model__position__kind="learned",
        data__length=3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_shapes_train_and_are_scored_as_numpy_scores_them(name: str, trained) -> None:
    text = words(400)
    run = trained(text, **ODD[name])
    result = loss_evaluation.evaluate(run, Quiet())
    assert result["tokens"] == len(text) - int(SHARE * len(text)) - 1
    close(result["loss"], loss_in_numpy(run, text))
    close(read_json(run.workdir / "run.json")["val_loss"], result["loss"])
    assert [line["step"] for line in read_lines(run.workdir / "metrics.jsonl")] == [1, 2]


def test_a_vocabulary_of_one_has_loss_zero_and_nothing_to_learn(trained) -> None:
    run = trained("a" * 400, model__width=2, model__num_heads=1, data__length=4)
    assert run.config.model.vocab_size == 1
    result = loss_evaluation.evaluate(run, Quiet())
    assert (result["loss"], result["bits_per_byte"], result["loss_interval"]) == (0.0, 0.0, [0.0, 0.0])
    for line in read_lines(run.workdir / "metrics.jsonl"):
        assert (line["train_loss"], line["grad_norm"]) == (0.0, 0.0)
    assert generate.from_text(run.workdir, "aa", generate.Settings(max_new=3)) == "aaaaa"


def test_a_window_of_one_gives_each_token_its_own_value_whatever_is_around_it(trained) -> None:
    run = trained(words(400), model__attention__window=1, model__position__kind="rope", data__length=4)
    ids = np.array([[0, 1, 2, 3], [3, 3, 1, 0]], np.int32)
    model = nnx.merge(run.graphdef, run.params)
    logits = np.asarray(call(model, ids))
    alone = {int(token): numpy_logits(run.config.model, model, np.array([token]))[0] for token in range(4)}
    close(logits, np.array([[alone[int(token)] for token in row] for row in ids]))


def test_beyond_the_learned_table_there_is_no_number(trained, tmp_path: Path) -> None:
    run = trained(
        words(400), model__position__kind="learned", model__position__max_length=6, data__length=4,
        eval__multiples=(1, 2), eval__lengths=(6,),
    )  # fmt: skip
    one, table, beyond = loss_evaluation.evaluate(run, Quiet())["by_length"]
    assert [one["length"], table["length"], beyond["length"]] == [4, 6, 8]
    assert math.isfinite(one["loss"]) and math.isfinite(table["loss"])
    assert beyond["loss"] is None and beyond["tokens"] == 0 and beyond["reason"] == "the learned table has 6 positions"
    with pytest.raises(UserError, match="the learned positions have 6 rows"):
        generate.from_text(run.workdir, "abc", generate.Settings(max_new=5))
    # The last token that is generated stands in no row.
    assert len(generate.from_text(run.workdir, "abc", generate.Settings(max_new=4))) == 7


def test_every_bit_of_a_seed_counts_in_parameters_data_and_dropout(make_tiny, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(words(2000))
    messages: dict[int, tuple[bytes, ...]] = {}
    for seed in LARGE:
        config = validate.resolve(make_tiny(seed=seed, data__path=str(tmp_path / "text.txt"), model__num_layers=1))
        corpus = runs.open_data(config)
        tokenizer = runs.open_tokenizer(config, corpus)
        config.model.vocab_size = tokenizer.vocab_size
        kernel = initialise(config.model, config.seed)[1]["blocks"]["mlp"]["up"]["kernel"][...]
        order = next(pipeline.TrainStream(config, tokenizer, corpus))["tokens"]
        dropout = jax.random.key_data(root_key(seed))
        messages[seed] = tuple(np.asarray(drawn).tobytes() for drawn in (kernel, order, dropout))
    for what in zip(*messages.values(), strict=True):
        assert len(set(what)) == len(LARGE)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"seed": -1}, "seed = -1"),
    ({"seed": 2**63}, f"seed = {2**63}"),
    ({"model__vocab_size": 0}, "model.vocab_size = 0"),
    ({"model__vocab_size": 1, "data__tokenizer": "byte"}, "model.vocab_size = 1"),
    ({"data__length": 0}, "data.length = 0"),
    ({"model__attention__window": 0}, "model.attention.window = 0"),
    ({"model__head_dim": 7}, "model.head_dim = 7"),
    ({"model__head_dim": 1}, "model.head_dim = 1"),
    ({"model__head_dim": 0}, "model.head_dim = 0"),
    ({"model__num_kv_heads": 0}, "model.num_kv_heads = 0"),
    ({"model__num_heads": 4, "model__num_kv_heads": 3}, "model.num_kv_heads = 3"),
    ({"model__position__kind": "learned", "model__position__max_length": 15}, "model.position.max_length = 15"),
    *(
        ({"model__position__rope__scaling__kind": kind, "model__position__rope__scaling__factor": factor}, "factor = ")
        for kind in ("linear", "yarn", "ntk")
        for factor in (0.5, 0.0, -2.0)
    ),
    ({"eval__scaling_factor": 0.5}, "eval.scaling_factor = 0.5"),
    ({"eval__scaling_factor": -1.0}, "eval.scaling_factor = -1.0"),
    ({"eval__multiples": (0.0,)}, "eval.multiples = (0.0,)"),
    *(
        ({f"optimizer__{name}": value}, f"optimizer.{name} = {value}")
        for name, value in {
            "learning_rate": 0.0,
            "weight_decay": -0.1,
            "warmup_steps": -1,
            "final_share": -0.1,
            "decay_share": 0.0,
            "beta1": 1.0,
            "beta2": -0.5,
            "eps": 0.0,
            "clip_norm": -1.0,
            "z_loss": -1.0,
        }.items()
    ),
    ({"optimizer__learning_rate": -1e-3}, "optimizer.learning_rate = -0.001"),
    ({"model__dropout": 1.0}, "model.dropout = 1.0"),
    ({"data__train_share": 0.0}, "data.train_share = 0.0"),
    ({"budget__amount": 0.0}, "budget.amount = 0.0"),
]


@pytest.mark.parametrize(("overrides", "named"), REFUSED, ids=str)
def test_what_has_no_meaning_is_refused_by_its_field(overrides: dict[str, Any], named: str, make_tiny) -> None:
    with pytest.raises(ConfigError) as refused:
        validate.check(make_tiny(**overrides))
    assert named in str(refused.value) and "\n" not in str(refused.value)


def test_the_smallest_rates_that_are_allowed_are_what_they_say(make_tiny) -> None:
    """A peak from the first step, a last step of rate 0, and a warm-up longer than the run: by hand."""

    def rates(steps: int, **optimizer: Any) -> list[float]:
        config = validate.resolve(make_tiny(**{f"optimizer__{name}": value for name, value in optimizer.items()}))
        rate = schedule.learning_rate(config.optimizer, Budget("steps", steps, pipeline.stages(config), [1.0]))
        return [rate(step, step / steps) for step in range(1, steps + 1)]

    close(rates(1, schedule="constant", warmup_steps=0, learning_rate=0.5), [0.5])
    close(rates(2, schedule="cosine", warmup_steps=0, final_share=0.0, learning_rate=0.5), [0.25, 0.0], 1e-7)
    close(rates(4, schedule="wsd", warmup_steps=0, decay_share=1.0, final_share=0.0, learning_rate=0.4),
          [0.3, 0.2, 0.1, 0.0], 1e-7)  # fmt: skip
    close(rates(2, schedule="cosine", warmup_steps=1000, learning_rate=0.5), [0.25, 0.5])


def test_scaling_factors_of_evaluation_never_shrink(make_tiny) -> None:
    config = validate.resolve(make_tiny(eval__scalings=("linear",), eval__multiples=(0.5, 1, 2)))
    assert [variant.factor for variant in variants(config) if variant.scaling == "linear"] == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("seed", [-1, 2**63, True, 0.5])
def test_a_sweep_refuses_such_seeds_by_name(seed: Any, tmp_path: Path) -> None:
    path = tmp_path / "sweep.py"
    path.write_text(
        f"def get_sweep():\n    return dict(name='s', axes=[{{'model.num_heads': [1]}}], seeds=[0, {seed}])"
    )
    with pytest.raises(UserError, match=r"seeds = \[0, "):
        expand.load(path)


def test_seeds_beyond_32_bits_on_the_command_line_are_whole(make_tiny) -> None:
    config = make_tiny()
    cli.apply(config, {"seed": 2**63 - 1})
    assert validate.resolve(config).seed == 2**63 - 1
