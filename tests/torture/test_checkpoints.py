"""Checkpoints that lost something: seen before anything is loaded, and training goes on exactly from an older one."""

import json
import random
import shutil
from pathlib import Path

import pytest

from configs.errors import UserError
from tests.training.test_trainer import trace
from training.loop import trainer
from training.run_directory import integrity
from training.run_directory import run as runs
from training.run_directory.files import read_json

UNUSED = ("commit_success.txt", "_CHECKPOINT_METADATA", "metadata")  # beside items; nothing is loaded from them


def weights(checkpoint: Path) -> Path:
    """Returns the file that holds the parameters."""
    return max((checkpoint / "params").rglob("d/*"), key=lambda path: path.stat().st_size)


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def link(path: Path) -> None:
    """Puts a link to the same content outside in its place."""
    elsewhere = path.parents[5] / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


DAMAGE = {
    "truncated": (truncate, "is not what was written"),
    "missing": (Path.unlink, "is missing"),
    "flipped": (lambda path: flip(path, 8 * path.stat().st_size // 2), "is not what was written"),
    "a link": (link, "is outside the checkpoint"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_training_goes_on_from_the_newest_whole_checkpoint_and_says_so(make_tiny, half, whole, capsys, damage) -> None:
    act, words = DAMAGE[damage]
    path = weights(half / "checkpoints" / "8")
    name = path.relative_to(half / "checkpoints" / "8")
    act(path)
    result = trainer.train(make_tiny(), half)
    message = capsys.readouterr().out
    assert f"the checkpoint of step 8 is damaged: {name} {words}" in message and "continuing at step 4" in message
    assert [line.split(" ", 1)[1] for line in result["incidents"]] == message.splitlines()[:1]
    assert (half / "damaged" / "8").is_dir()
    assert result["status"] == "done" and trace(half) == trace(whole)


def test_where_no_checkpoint_is_whole_training_begins_again(make_tiny, half, whole) -> None:
    for step in (4, 8):
        shutil.rmtree(half / "checkpoints" / str(step) / "meta")
    result = trainer.train(make_tiny(), half, quiet=True)
    assert "no intact checkpoint is left: training starts again" in result["incidents"][-1]
    assert result["status"] == "done" and trace(half) == trace(whole)


def test_every_bit_of_every_file_counts(half) -> None:
    draw = random.Random(0)
    checkpoint = half / "checkpoints" / "8"
    assert integrity.problem(checkpoint) == ""
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    for path in files:
        before = path.read_bytes()
        for _ in range(3):
            flip(path, draw.randrange(8 * len(before)))
            unused = path.name in UNUSED and path.parent.name not in ("params", "opt_state", "meta")
            assert unused or integrity.problem(checkpoint), path
            path.write_bytes(before)
    assert len(files) > 15 and integrity.problem(checkpoint) == ""


def test_an_evaluation_refuses_a_damaged_checkpoint_and_names_the_whole_ones(half) -> None:
    truncate(weights(half / "checkpoints" / "8"))
    with pytest.raises(
        UserError, match=r"8: is damaged: params/.* it is not loaded; intact checkpoints are of step 4$"
    ):
        runs.load(half)
    assert runs.load(half, 4).step == 4


def test_a_checkpoint_of_an_earlier_version_has_no_checksums_and_is_taken(half) -> None:
    checkpoint = half / "checkpoints" / "8"
    shutil.rmtree(checkpoint / "checksums")
    assert "checksums cannot be read" in integrity.problem(checkpoint)  # its own metadata names them
    path = checkpoint / "_CHECKPOINT_METADATA"
    about = json.loads(path.read_text())
    del about["item_handlers"]["checksums"]
    path.write_text(json.dumps(about))
    assert integrity.problem(checkpoint) == "" and runs.load(half).step == 8


def test_lines_of_metrics_that_are_gone_are_told_and_the_others_stay(make_tiny, half, whole) -> None:
    path = half / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0][:-20] + "\n" + "".join(lines[1:]))
    result = trainer.train(make_tiny(), half, quiet=True)
    assert f"metrics.jsonl has {len(lines) - 1} of the {len(lines)} lines up to step 8" in result["incidents"][0]
    assert trace(half) == trace(whole)[1:]
    assert read_json(half / "run.json")["incidents"] == result["incidents"]
