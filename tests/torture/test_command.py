"""The command: the same seed draws the same faults, its counts decide how it ends, and a run of it finds a fault."""

import itertools

import pytest

from configs.errors import UserError
from tests.torture import __main__ as command
from tests.torture import scene
from tests.torture.scene import Found


def drawn(seed: int, count: int) -> list[tuple[int, str, float]]:
    taken = itertools.islice(command.schedule(seed, list(command.KINDS)), count)
    return [(number, kind, draw.random()) for number, kind, draw in taken]


def test_the_seed_draws_kinds_and_moments_and_every_kind_comes() -> None:
    once = sum(often for often, _ in command.KINDS.values())
    assert drawn(1, once) == drawn(1, once) != drawn(2, once)
    assert {kind for _, kind, _ in drawn(1, once)} == set(command.KINDS)


def test_lost_results_and_traces_that_differ_are_bad_and_are_counted() -> None:
    tally = command.Tally(["a", "b"])
    tally.add("a", Found(injected=3, resumed=3))
    assert tally.bad == 0
    one = Found(injected=1)
    one.wrong("gone", lost=1)
    one.wrong("other", differing=1)
    tally.add("b", one)
    tally.cannot["b"] = "no mounts"
    assert tally.bad == 2 and tally.found["b"].notes == ["gone", "other"]
    assert tally.table().splitlines()[2:] == [
        "| a | 1 | 3 | 3 | 0 | 0 |",
        "| b | 1 | 1 | 0 | 1 | 1 |",
        "| all | 2 | 4 | 3 | 1 | 1 |",
        "b: left out, no mounts",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--minutes=0"], "must be above 0"), (["--only=nothing"], "no kind of fault"), (["--dir=."], "is not empty")],
)
def test_an_option_that_means_nothing_is_refused(options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        command.main(options)


@pytest.mark.slow
def test_a_minute_of_it(tmp_path, capsys) -> None:
    kinds = ["--only=SIGKILL while a checkpoint", "--only=bit turned", "--only=moved", "--only=device"]
    assert command.main(["--minutes=0.5", f"--dir={tmp_path / 'd'}", *kinds]) == 0
    total = capsys.readouterr().out.splitlines()[-1].split("|")
    assert int(total[2]) >= 2 and total[-3:-1] == [" 0 ", " 0 "]


@pytest.mark.slow
def test_a_run_that_resumed_otherwise_would_be_seen(tmp_path) -> None:
    place = scene.Scene(tmp_path, flavours=("plain",), steps=40)
    try:
        workdir = place.place(0) / "run"
        result = Found()
        place.finish(result, "plain", workdir, config=place.config("plain", seed=1))
        assert result.differing == 1 and result.lost == 0
    finally:
        place.close()
