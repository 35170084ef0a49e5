import json
import os
import threading

import pytest

from configs.errors import UserError
from training.run_directory import files


def test_a_reader_never_sees_half_a_file(tmp_path) -> None:
    path, seen, stop = tmp_path / "a.json", [], threading.Event()
    files.write_json(path, {"n": 0, "pad": "x" * 100_000})

    def read() -> None:
        while not stop.is_set():
            seen.append(json.loads(path.read_text())["n"])

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(200):
        files.write_json(path, {"n": n, "pad": "x" * 100_000})
    stop.set()
    reader.join()
    assert seen == sorted(seen) and len(seen) > 1
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, [1])
    with pytest.raises(TypeError):
        files.write_json(path, {"bad": object()})
    assert files.read_json(path) == [1] and os.listdir(tmp_path) == ["a.json"]


def test_numbers_that_are_not_finite_become_null(tmp_path) -> None:
    files.write_json(tmp_path / "a.json", {"a": [float("nan"), 1.5], "b": float("-inf")})
    assert files.read_json(tmp_path / "a.json") == {"a": [None, 1.5], "b": None}


def test_a_torn_last_line_is_left_out(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert [line["step"] for line in files.read_lines(path)] == [1, 2]
    path.write_text('{"step": 1}\n{"step": 2}')
    assert [line["step"] for line in files.read_lines(path)] == [1]


def test_bad_json_is_named(tmp_path) -> None:
    (tmp_path / "a.json").write_text('{"a": ')
    with pytest.raises(UserError, match=r"a\.json: is not valid JSON: .*line 1 column 7"):
        files.read_json(tmp_path / "a.json")
    with pytest.raises(UserError, match="no such file"):
        files.read_json(tmp_path / "b.json")
