"""Over tasks and seeds: rliable's own values, seeds that solve a task, and steps until they do."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from report.claims import words
from report.reading.directories import Study, read
from report.statistics import aggregates, solving
from tests.report import synthetic

X = np.array([[0.1, 0.9, 0.4], [0.2, 0.8, 0.4], [0.3, 0.95, 0.6], [0.05, 0.7, 0.4], [0.6, 0.85, 0.5]])
Y = np.array([[0.15, 0.9, 0.3], [0.25, 0.6, 0.45], [0.3, 0.9, 0.2], [0.1, 0.75, 0.4]])


def test_iqm_and_improvement_are_rliables() -> None:
    # rliable 1.2.0: metrics.aggregate_iqm(X), aggregate_iqm(Y), probability_of_improvement(X, Y)
    assert aggregates.iqm(X) == pytest.approx(0.5222222222222223)
    assert aggregates.iqm(Y) == pytest.approx(0.3833333333333333)
    assert aggregates.improvement(X, Y) == pytest.approx(0.625)
    wins = [(x > y) + 0.5 * (x == y) for task in range(3) for x, y in itertools.product(X[:, task], Y[:, task])]
    assert aggregates.improvement(X, Y) == pytest.approx(np.mean(wins))
    assert aggregates.improvement(X, X) == pytest.approx(0.5)


def test_whole_seeds_are_drawn_so_that_tasks_of_one_model_do_not_count_as_many() -> None:
    rng = np.random.default_rng(0)
    seed = rng.normal(0, 0.1, (10, 1))  # what a seed is worth on all of its tasks
    together = aggregates.iqm_interval(0.5 + np.repeat(seed, 20, axis=1))
    once = aggregates.iqm_interval(0.5 + seed)
    assert together == pytest.approx(once, abs=0.02)
    assert math.isnan(aggregates.iqm_interval(X)[0]), "five seeds are too few for a bootstrap"
    many, more = np.tile(X, (2, 1)), np.tile(Y, (2, 1))
    low, high = aggregates.improvement_interval(many, more)
    drawn = [
        aggregates.improvement(many[rng.integers(0, 10, 10)], more[rng.integers(0, 8, 8)]) for _ in range(150)
    ]  # fmt: skip
    assert low < np.quantile(drawn, 0.05) < 0.625 < np.quantile(drawn, 0.95) < high
    assert low > min(drawn) - 0.1 and high < max(drawn) + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("number", [6, 10, 20])
def test_the_iqms_interval_covers(number: int) -> None:
    rng = np.random.default_rng(number)
    covered = 0
    for _ in range(400):
        scores = rng.normal(0.5, 0.05, (number, 1)) + rng.normal(0, 0.05, (number, 5))
        low, high = aggregates.iqm_interval(scores)
        covered += low <= 0.5 <= high
    print(f"{number} seeds: the IQM's interval covers {covered / 400:.1%}")
    assert covered / 400 > 0.91


def write(
    directory: Path, shares: dict[str, list[float]], steps: dict[str, list[int | None]], **solved: float
) -> Study:
    """Writes arms that retrieve with these shares at home (one a seed; None: diverged) and come down at these steps."""
    arms = {arm: synthetic.config(2**index) for index, arm in enumerate(shares)}
    study = synthetic.study_json("recall", arms, list(range(5)), evals=["retrieval"], baseline="rope", solved=solved)
    for arm, values in shares.items():
        for seed, share in enumerate(values):
            at = steps[arm][seed]
            lines = [{"step": s, "tokens": s, "train_loss": 1.0, "val_loss": 0.1 if at and s >= at else 3.0}
                     for s in range(100, 1001, 100)]  # fmt: skip
            synthetic.write_run(
                directory / "runs" / arm / f"seed{seed}",
                info=synthetic.run_json(seed, val_loss=lines[-1]["val_loss"]),
                lines=lines,
                evals={"retrieval": synthetic.retrieval_json(share)},
            )
    path = directory / "runs" / "none" / "seed4" / "run.json"
    path.write_text(json.dumps(synthetic.run_json(4, status="diverged", error="the loss became nan")))
    (result,) = read(synthetic.write_sweep(directory, [study])).studies
    return result


SHARES = {"rope": [1.0, 1.0, 0.95, 0.99, 1.0], "none": [0.2, 0.99, 0.3, 0.25, 1.0]}
STEPS = {"rope": [400, 500, 400, 600, 900], "none": [None, 800, None, None, 100]}


def test_seeds_that_solved_it_are_counted_and_a_diverged_one_did_not(tmp_path: Path) -> None:
    study = write(tmp_path, SHARES, STEPS, accuracy=0.9, loss=0.2)
    rope, none = solving.solved(study)
    assert rope.solved == (0, 1, 2, 3, 4) and rope.steps == {0: 400, 1: 500, 2: 400, 3: 600, 4: 900}
    assert none.seeds == (0, 1, 2, 3, 4) and none.solved == (1,)
    # Wilson's interval of 1 in 5, published as 3.6% to 62.4%.
    assert (none.share.low, none.share.high) == pytest.approx((0.0362, 0.6245), abs=2e-4)
    text = solving.sentence(study)
    assert "(accuracy 90% or more at the training length and validation loss 0.2 or less)" in text
    assert "rope 5 of 5 seeds [57%, 100%], that loss after 400, 400, 500, 600 and 900 steps, median 500; " in text
    assert "none 1 of 5 seeds [4%, 62%]" in text
    assert text in [one.text for one in words.arms(study)]


def test_steps_alone_decide_where_only_a_loss_is_given_and_nothing_without_retrieval(tmp_path: Path) -> None:
    study = write(tmp_path, SHARES, STEPS, loss=0.2)
    assert [one.solved for one in solving.solved(study)] == [(0, 1, 2, 3, 4), (1, 4)]
    assert solving.sentence(study).startswith("Seeds that solved it (validation loss 0.2 or less)")
    (plain,) = read(synthetic.losses(tmp_path / "plain", {"h1": [1.8, 1.81], "h4": [1.5, 1.51]})).studies
    assert solving.solved(plain) == [] and solving.sentence(plain) == "" and aggregates.table(plain) is None


def test_the_arms_are_told_over_all_lengths_and_seeds(tmp_path: Path) -> None:
    study = write(tmp_path, SHARES, STEPS)
    result = aggregates.table(study)
    assert result is not None and result.tasks == ("mqar at 63", "mqar at 126", "mqar at 252", "mqar at 504")
    rope, none = result.arms
    assert rope.improvement is None and none.improvement is not None
    wins = 0.0
    for times in range(4):
        own, other = ([synthetic_share(s, times) for s in SHARES[arm][:n]] for arm, n in (("none", 4), ("rope", 5)))
        wins += np.mean([(x > y) + 0.5 * (x == y) for x in own for y in other]) / 4
    assert none.improvement == pytest.approx(wins)
    (text,) = [one.text for one in words.arms(study) if one.text.startswith("Over 4 conditions")]
    assert "(IQM): rope " in text and text.endswith(
        "; too few seeds for intervals. These describe; nothing is tested by them."
    )


def synthetic_share(start: float, times: int) -> float:
    raw = synthetic.retrieval_json(start)["by_length"]
    return [entry["accuracy"] for entry in raw if entry["scaling"] == "trained"][times]
