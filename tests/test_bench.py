"""What `make bench` says of its measurements; the measuring itself needs PyTorch and a quiet machine."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest

from bench import environment
from bench.speed import __main__ as command
from bench.speed import machine, peers, serving, sweep, table
from bench.speed.cases import CASES, Case
from configs.errors import UserError


def results(ours: float, theirs: float) -> dict[str, Any]:
    case = next(case for case in CASES if case.name == "train 256")
    row = dataclasses.asdict(case) | {"tokens": case.tokens, "medians": {"ablax": ours, "transformers": theirs}}
    row["limit"] = {"seconds": 0.4, "rate": 1e11}
    memory = {"4096": 2.0**20, "8192": 3.0 * 2**20, "ratio": 3.0}
    return {"shapes": [row], "memory": memory, "about": {"jax": "1"}, "threads": 2, "load": 0.5}


def test_the_ratio_is_our_speed_over_theirs_and_targets_are_judged() -> None:
    rows = table.rows(results(ours=0.5, theirs=0.5))
    assert rows[0][2:] == ("500.0 ms", "80%", "transformers", "500.0 ms", "1.00", ">= 1 met")
    assert table.rows(results(ours=0.5, theirs=0.49))[0][-1] == ">= 1 missed"
    assert rows[1][2:] == ("3 MiB", "", "length 4096", "1 MiB", "3.00", "<= 2.2 missed")
    assert "limit: 100 GFLOP/s, measured" in table.about(results(0.5, 0.6))
    assert "| train 256 | 256 x 4, 16 x 256 | 500.0 ms |" in table.markdown(results(0.5, 0.6))


def test_every_target_names_a_peer_that_takes_part() -> None:
    assert all(set(case.targets) <= set(case.peers) for case in CASES)
    assert {(case.kind, tuple(case.targets.items())) for case in CASES} == {
        ("train", (("transformers", 1.0),)),
        ("train", (("transformers", 1.15),)),
        ("train", (("transformers", 1.0), ("jax", 2.0))),
        ("decode", (("transformers", 4.0),)),
        ("decode", (("transformers", 3.0),)),
    }


def test_a_limit_counts_the_matmuls_of_a_step_and_the_bytes_of_a_token() -> None:
    width, layers, mlp, vocab = 256, 4, 704, 256
    per_layer = 4 * width**2 + 3 * width * mlp
    train = next(case for case in CASES if case.name == "train 256")
    matmuls = 6 * (layers * per_layer + vocab * width) + 12 * layers * width * (train.length + 1) / 2
    assert machine.work(train)["flops"] == pytest.approx(matmuls * train.batch * train.length)
    one, eight = (machine.work(case) for case in CASES if case.kind == "decode")
    read, keys = one["read_bytes"], 2 * layers * 2 * 32 * 4 * (256 + 65 / 2)  # two KV heads of 32, float32
    assert one["new_bytes"] == pytest.approx(64 * (read + keys))
    assert eight["new_bytes"] == pytest.approx(64 * (read + 8 * keys))  # the parameters are read once for all rows
    assert eight["new_flops"] == 8 * one["new_flops"]


def test_peers_that_are_asked_for_take_part_in_what_they_can_do(tmp_path: Path) -> None:
    cases = command.chosen(command.parsed(["--maxtext", "--compile"]))
    assert {case.kind for case in cases if "maxtext" in case.peers} == {"train"}
    assert all("torch.compile" in case.peers for case in cases)
    assert "maxtext" not in {peer for case in command.chosen(command.parsed([])) for peer in case.peers}
    started = peers.commands(Path("torch"), 2, compiled=True, maxtext=Path("maxtext"))
    assert {peer for case in cases for peer in case.peers} <= set(started)
    with pytest.raises(UserError, match=r"python3\.none: cannot be run on this machine, but maxtext==\S+ needs it"):
        environment.environment(tmp_path / "none", environment.MAXTEXT, "python3.none")


def test_a_peer_warms_up_then_answers_in_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    done: list[str] = []

    def prepare(case: Case) -> serving.Work:
        return lambda: done.append(case.name)

    lines = [{"case": dataclasses.asdict(CASES[0])}, {"seconds": 1e-9}]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(json.dumps(line) + "\n" for line in lines)))
    answers: list[dict[str, Any]] = []
    monkeypatch.setattr(serving, "opened", lambda: answers.append)
    serving.serve(prepare, {"jax": "1"})
    assert answers[0] == {"jax": "1"} and "warm_up" in answers[1]
    assert len(answers[2]["seconds"]) >= 1
    assert len(done) == serving.WARM_UP + len(answers[2]["seconds"])


def test_compilations_are_counted_in_what_jax_says() -> None:
    line = "WARNING:jax._src.dispatch:Finished XLA compilation of jit(step) in 0.25 sec\n"
    assert sweep.COMPILED.findall(2 * line + "Finished tracing step for jit in 0.1 sec") == ["0.25", "0.25"]
