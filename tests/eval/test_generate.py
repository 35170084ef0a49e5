"""What the command writes equals plain forward passes, row by row; what it cannot do it refuses in one line."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from configs import base, cli, validate
from configs.errors import UserError
from convert.writing import write_run
from data import tokenizers
from eval import generate as command
from models import initialise
from training.run_directory import run as runs

VOCAB, LENGTH = 40, 7


def written(folder: Path, tokenizer: Path | None = None, **overrides) -> Path:
    values = {
        "model.vocab_size": VOCAB,
        "model.width": 16,
        "model.num_layers": 1,
        "model.num_heads": 4,
        "model.num_kv_heads": 2,
        "model.init_std": 0.3,
        "model.position.kind": "sinusoidal",  # absolute, so that places counted from the row's beginning show
        "data.weights.text": 0.0,
        "data.weights.mqar": 1.0,
        "data.mqar.vocab_size": VOCAB,
        "data.length": 16,
    }
    config = base.get_config()
    cli.apply(config, values | {name.replace("__", "."): value for name, value in overrides.items()})
    config = validate.resolve(config)
    params = initialise(config.model, 0)[1]
    return write_run(folder, config, params, tokenizer_from=tokenizer, origin={})


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def generate(workdir: Path, tmp_path: Path) -> Callable[..., dict[str, np.ndarray]]:
    """Runs the command on the given tensors and returns what it wrote."""

    def call(*options: str, run: Path = workdir, **tensors: np.ndarray) -> dict[str, np.ndarray]:
        save_file(tensors, tmp_path / "in.safetensors")
        out = tmp_path / "deep" / "out.safetensors"
        command.main([f"--workdir={run}", f"--tokens={tmp_path / 'in.safetensors'}", f"--out={out}", *options])
        assert [path.name for path in out.parent.iterdir()] == [out.name]
        return load_file(out)

    return call


def alone(run: runs.Run, ids: np.ndarray, new: int) -> tuple[np.ndarray, list[int]]:
    """Returns (logits [T, V], ids and greedy continuation) of one unpadded row, by a whole forward pass a token.

    What stands behind a token does not reach it, so one length serves every row.
    """
    model = jax.jit(lambda row: nnx.merge(run.graphdef, run.params)(row)[0])
    row, end = np.zeros((1, 10), np.int32), len(ids)
    row[0, :end] = ids
    for at in range(end, end + new):
        row[0, at] = np.argmax(model(row)[at - 1])
    return np.asarray(model(row)[:end]), row[0, : end + new].tolist()


IDS = np.random.default_rng(0).integers(0, VOCAB, (3, LENGTH))


def test_logits_and_tokens_equal_plain_forward_passes(workdir: Path, generate, monkeypatch) -> None:
    """Rows of 7, 4 and 1 tokens behind padding that is no token: each as if it stood alone."""
    mask = np.arange(LENGTH) >= np.array([[0], [3], [6]])
    ids = np.where(mask, IDS, -100)
    result = generate("--max_new=3", input_ids=ids, attention_mask=mask.astype(np.int64))
    assert result["logits"].shape == (3, LENGTH, VOCAB) and result["logits"].dtype == np.float32
    assert result["tokens"].shape == (3, LENGTH + 3) and result["tokens"].dtype == np.int64
    assert (result["tokens"][:, :LENGTH] == ids).all()
    assert np.isfinite(result["logits"]).all()
    run = runs.load(workdir)
    for row, real in enumerate(mask):
        logits, tokens = alone(run, ids[row, real], 3)
        np.testing.assert_allclose(result["logits"][row, real], logits, atol=2e-5)
        assert result["tokens"][row, np.append(real, [True] * 3)].tolist() == tokens
    monkeypatch.setattr(command, "LOGITS", 2 * LENGTH * VOCAB)  # two rows at once, so a last piece of one
    pieces = generate("--max_new=0", input_ids=ids, attention_mask=mask)
    np.testing.assert_allclose(pieces["logits"], result["logits"], atol=2e-5)
    assert (pieces["tokens"] == ids).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64])
def test_any_integer_type_comes_back(generate, dtype: type) -> None:
    result = generate("--max_new=0", input_ids=IDS.astype(dtype))
    assert result["tokens"].dtype == dtype
    assert (result["tokens"] == IDS).all()


def test_a_type_too_small_for_the_vocabulary_is_widened(tmp_path: Path, generate) -> None:
    large = written(tmp_path / "large", model__vocab_size=300)
    assert generate("--max_new=0", run=large, input_ids=IDS.astype(np.uint8))["tokens"].dtype == np.int64


def test_drawing_is_fixed_by_its_seed(generate) -> None:
    def draw(*options: str) -> np.ndarray:
        return generate("--max_new=3", *options, input_ids=IDS)["tokens"]

    hot = "--temperature=5"
    assert (draw(hot, "--seed=1") == draw(hot, "--seed=1")).all()
    assert (draw(hot, "--seed=1") != draw(hot, f"--seed={2**32 + 1}")).any()
    assert (draw(hot, "--top_p=1e-6") == draw()).all()


def good(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    given = {"input_ids": IDS, "attention_mask": np.ones_like(IDS)} | changes
    return {name: x for name, x in given.items() if x is not None}


def marked(at: tuple[int, int], value: int, like: np.ndarray) -> np.ndarray:
    changed = like.copy()
    changed[at] = value
    return changed


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (good(input_ids=None), "has no input_ids"),
        (good(attention_masks=np.ones_like(IDS)), "has attention_masks; .* did you mean attention_mask?"),
        (good(input_ids=IDS.astype(np.float32)), "input_ids is F32; must be whole numbers"),
        (good(input_ids=IDS[0]), r"input_ids is \[7\]; must be \[batch, length\]"),
        (good(input_ids=IDS[:, :0], attention_mask=None), r"input_ids is \[3, 0\]"),
        (good(input_ids=marked((1, 2), VOCAB, IDS)), r"input_ids\[1, 2\] = 40: the run's token ids are 0 \.\. 39"),
        (good(input_ids=marked((0, 0), -1, IDS)), r"input_ids\[0, 0\] = -1"),
        (good(attention_mask=np.ones((3, 6), int)), r"attention_mask is \[3, 6\], input_ids \[3, 7\]"),
        (good(attention_mask=np.ones_like(IDS, np.float32)), "attention_mask is F32"),
        (good(attention_mask=2 * np.ones_like(IDS)), "attention_mask: must have only 0 and 1"),
        (good(attention_mask=marked((2, 6), 0, np.ones_like(IDS))), "attention_mask, row 2: .* padding on the left"),
        (good(attention_mask=marked((1, 3), 0, np.ones_like(IDS))), "attention_mask, row 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_told_in_one_line_and_nothing_is_written(generate, tmp_path, tensors, message) -> None:
    with pytest.raises(UserError, match=message) as caught:
        generate("--max_new=1", **tensors)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max_new=-1"], "--max_new=-1: must be 0 or more"),
        (["--temperature=-0.5"], "--temperature=-0.5"),
        (["--temperature=nan"], "--temperature=nan"),
        (["--temperature=1", "--top_p=0"], r"--top_p=0.0: must be in \(0, 1\]"),
        (["--top_p=1.5"], r"--top_p=1.5: must be in \(0, 1\]"),
        (["--top_p=0.5"], "--top_p=0.5: needs --temperature above 0"),
        (["--seed=-1"], "--seed=-1"),
        (["--prompt=a"], "set one of --tokens=IN and --prompt=TEXT"),
        (["--topp=0.5"], "did you mean --top_p?"),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(generate, options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        generate(*options, input_ids=IDS)


def test_files_that_are_none(workdir: Path, tmp_path: Path) -> None:
    def call(*options: str) -> None:
        command.main([f"--workdir={workdir}", *options])

    out = f"--out={tmp_path / 'out'}"
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(UserError, match="no such file"):
        call(f"--tokens={tmp_path / 'nothing'}", out)
    with pytest.raises(UserError, match="is not a safetensors file"):
        call(f"--tokens={tmp_path / 'text'}", out)
    with pytest.raises(UserError, match="--out: needs --tokens"):
        call(f"--tokens={tmp_path / 'text'}")
    with pytest.raises(UserError, match="must be a file other than --tokens"):
        call(f"--tokens={tmp_path / 'text'}", f"--out={tmp_path / 'text'}")
    with pytest.raises(UserError, match="is not a run directory"):
        command.main([f"--workdir={tmp_path}", f"--tokens={tmp_path / 'text'}", out])
    with pytest.raises(UserError, match="has no tokenizer"):
        call("--prompt=a")


def test_more_positions_than_a_learned_table_has_are_refused_before_any_work(tmp_path: Path, generate) -> None:
    """The parameters are not even there, so the refusal came before."""
    learned = written(tmp_path / "learned", model__position__kind="learned")
    (learned / "checkpoints").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="length 17: the learned positions have 16 rows"):
        generate("--max_new=11", run=learned, input_ids=IDS)
    with pytest.raises(UserError, match="has no checkpoint"):
        generate("--max_new=10", run=learned, input_ids=IDS)


def test_text_goes_on_as_text(tmp_path: Path, capsys) -> None:
    tokenizers.Bytes().save(tmp_path / "bytes")
    workdir = written(tmp_path / "run", tmp_path / "bytes", model__vocab_size=256)
    command.main([f"--workdir={workdir}", "--prompt=häm", "--max_new=5"])
    ids = np.frombuffer("häm".encode(), np.uint8)
    expected = bytes(alone(runs.load(workdir), ids, 5)[1]).decode(errors="replace")
    assert capsys.readouterr().out == expected + "\n"
    # In a process of its own: errors on their stream, one line, exit code 2.
    line = [sys.executable, "-m", "eval.generate", f"--workdir={workdir}", "--prompt="]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --prompt: is empty (see --help)\n"
