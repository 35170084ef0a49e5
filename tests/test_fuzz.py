"""A little of `python -m tests.fuzz` in every run of the tests, what it counts as found, and any JSON at all."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs import fields, validate
from configs.errors import ConfigError, UserError
from data import tokenizers
from eval import generate
from sweeps import status
from sweeps.store import run_status, state
from tests.fuzz import __main__ as command
from tests.fuzz import kinds
from training.run_directory.files import read_json, read_lines

QUICK = ("config.json", "config file", "field", "tokenizer.json", "sweep file", "sweep directory")
SLOW = tuple(name for name in kinds.KINDS if name not in QUICK)


def test_spoilt_input_is_handled_or_refused_clearly() -> None:
    counts = command.fuzz(QUICK, 8, seed=11)
    assert {name: count.found for name, count in counts.items()} == {name: [] for name in QUICK}
    assert sum(count.refused for count in counts.values()) > len(QUICK), "most of it is no good"
    assert sum(count.handled for count in counts.values()) > 1, "and some of it is"


@pytest.mark.slow
def test_spoilt_input_of_every_kind_is_handled_or_refused_clearly() -> None:
    counts = command.fuzz(SLOW, 40, seed=12)
    assert {name: count.found for name, count in counts.items()} == {name: [] for name in SLOW}


def test_what_counts_as_found(monkeypatch) -> None:
    def raises(error: BaseException) -> Any:
        def main(argv: list[str]) -> int:
            raise error

        return main

    assert command.attempt(raises(UserError("file.json: is no good")), [])[0] == "refused"
    assert command.attempt(raises(KeyError("budget")), [])[0] == "found"
    assert command.attempt(lambda argv: 0, [])[0] == "handled"
    assert command.attempt(lambda argv: 1, [])[0] == "found"
    monkeypatch.setattr(command, "SECONDS", 1)
    assert command.attempt(lambda argv: time.sleep(3), [])[0] == "found", "a hang"
    case = kinds.Case("so", [("it", [])], ("config.json",), lambda: "")
    monkeypatch.setitem(kinds.KINDS, "it", lambda draw, material, work: case)
    for text, outcome in (("config.json: no", "refused"), ("no", "found")):
        assert command.one("it", 0, 0, Path("/tmp/none"), {"it": raises(UserError(text))})[0] == outcome
    wrong = kinds.Case("so", [("it", [])], (), lambda: "the loss is nan")
    monkeypatch.setitem(kinds.KINDS, "it", lambda draw, material, work: wrong)
    assert command.one("it", 0, 0, Path("/tmp/none"), {"it": lambda argv: 0})[0] == "found", "a wrong number"


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))
RUN_KEYS = ("status", "step", "budget", "wall_time", "eval_errors", "error", "host", "pid", "updated", "val_loss")
few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@few
@given(name=st.sampled_from(sorted(fields.types())), value=JSON)
def test_a_config_of_any_json_is_refused_by_name_or_sound(name: str, value: Any) -> None:
    nested: Any = value
    for part in reversed(name.split(".")):
        nested = {part: nested}
    try:
        config = fields.from_dict(nested, source="config.json")
        validate.check(config)
    except ConfigError as error:
        first, last = name.split(".")[0], name.split(".")[-1]
        assert first in str(error) or last in str(error)


@few
@given(run=st.fixed_dictionaries({}, optional=dict.fromkeys(RUN_KEYS, JSON)), line=JSON)
def test_a_run_of_any_json_has_a_standing(tmp_path: Path, run: dict[str, Any], line: Any) -> None:
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "tokens": 4}) + "\n" + json.dumps(line) + "\n")
    assert run_status.read(tmp_path, ["loss"]).status


@few
@given(value=JSON, studies=JSON)
def test_a_sweep_of_any_json_is_read_or_refused(tmp_path: Path, value: Any, studies: Any) -> None:
    for given_value in (value, {"studies": studies}, {"studies": [{"name": "a", "arms": [studies], "seeds": [0]}]}):
        (tmp_path / "sweep.json").write_text(json.dumps(given_value))
        try:
            state.run_states(tmp_path)
        except UserError as error:
            assert "sweep.json" in str(error)


@few
@given(content=st.binary(max_size=60))
def test_any_bytes_are_json_or_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(content)
    try:
        read_json(path)
    except UserError as error:
        assert str(path) in str(error)
    assert all(isinstance(line, dict) for line in read_lines(path))


def test_nobody_waits_for_a_pipe_in_a_files_place(tmp_path: Path, monkeypatch) -> None:
    """Nobody writes to it; whoever opened it would be there for ever."""
    monkeypatch.setattr(command, "SECONDS", 60)
    os.mkfifo(tmp_path / "it")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "it")

    def refused(read: Callable[[], Any]) -> str:
        outcome, said = command.attempt(lambda argv: read(), [])
        assert outcome == "refused", said
        return said

    assert f"{tmp_path / 'it'}: cannot be read: is a pipe" in refused(lambda: read_json(tmp_path / "it"))
    with command.limited(60):
        assert run_status.last_lines(tmp_path / "metrics.jsonl") == status.tail(tmp_path / "it", 3) == []
        (tmp_path / "run.json").symlink_to(tmp_path / "it")
        assert "is a pipe" in run_status.read(tmp_path).error
        with pytest.raises(OSError, match="is a pipe"):
            list(read_lines(tmp_path / "metrics.jsonl"))
    assert "is a pipe" in refused(lambda: generate.read(tmp_path / "it", 8))
    assert "is a pipe" in refused(lambda: tokenizers.from_file(tmp_path / "it"))


@pytest.mark.parametrize("content", ["[" * 100_000, "1" * 5000, '{"a": "\udfff"}', "\ufeff{}"])
def test_json_that_breaks_parsers_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "some.json"
    path.write_text(content, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(UserError, match=r"some\.json: is not valid JSON"):
        read_json(path)
