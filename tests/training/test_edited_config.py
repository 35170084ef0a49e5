"""A config.json that was edited by hand is checked whenever the run is read, and each mistake is one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs import fields
from configs.errors import ConfigError
from eval.run import evaluate
from tests.convert.conftest import byte_tokenizer, source  # noqa: F401
from training.run_directory import run as runs


@pytest.fixture
def edited(source: Path, tmp_path: Path) -> Callable[..., Path]:  # noqa: F811
    """Returns a copy of a run with one field of its config.json changed."""

    def make(name: str, value: Any) -> Path:
        workdir = shutil.copytree(source, tmp_path / "run")
        values = json.loads((workdir / "config.json").read_text())
        node = values
        *parents, last = name.split(".")
        for parent in parents:
            node = node[parent]
        assert last in node
        node[last] = value
        (workdir / "config.json").write_text(json.dumps(values))
        return workdir

    return make


EDITS = [
    ("model.head_dim", 0),
    ("model.width", -4),
    ("model.num_kv_heads", 3),
    ("model.mlp", "swigloo"),
    ("model.attention.window_pattern", [[1]]),
    ("model.position.pattern", [["rope"], ["none"]]),
    ("model.position.pattern", [1]),
    ("model.position.rope.scaling.short_factor", [["a"]]),
    ("eval.multiples", [[1]]),
    ("eval.scalings", [["yarn"]]),
    ("eval.retrieval.needles", [["a"]]),
    ("data.curriculum", [["x"]]),
    ("data.length", 0),
]


@pytest.mark.parametrize(("name", "value"), EDITS)
def test_an_edited_value_is_refused_by_file_field_and_value(edited, name: str, value: Any) -> None:
    workdir = edited(name, value)
    for read in (runs.load_config, runs.load, lambda path: evaluate(path, ["loss"])):
        with pytest.raises(ConfigError) as error:
            read(workdir)
        for line in error.value.problems:
            assert line.startswith(f"{workdir / 'config.json'}: ") and "\n" not in line
        assert any(name in line for line in error.value.problems)


def test_an_unset_value_is_derived_anew(edited, source: Path) -> None:  # noqa: F811
    again = runs.load_config(edited("model.head_dim", None))
    assert fields.to_dict(again) == fields.to_dict(runs.load_config(source))


def test_a_run_is_read_as_it_was_written(source: Path) -> None:  # noqa: F811
    written_values = json.loads((source / "config.json").read_text())
    assert fields.to_dict(runs.load_config(source)) == written_values
