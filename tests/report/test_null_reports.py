"""Whole reports of made-up results: how often they claim what is not so, and how often their intervals hold.

Each report has everything that is claimed: arms against a baseline in loss and in retrieval, and RoPE scalings at
several lengths in both; runs whose seeds, documents and rows vary. The fast tests look at a few hundred reports, the
slow ones at as many as a figure for docs/log.md needs.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from report.claims.comparing import RESOLVED, claims, is_open
from report.reading.directories import Arm, Run, Study, Sweep
from report.reading.measures import pooled, retrieval_points
from report.statistics import shares
from report.statistics.sequential import Plan

SCALINGS = ("linear", "ntk", "yarn")
MULTIPLES = (1, 2, 4)
ROWS = 128  # of retrieval a condition


@dataclass(frozen=True)
class World:
    """How results vary where nothing differs; `shifts` move the last arm, `loss` and `share`, away from the others."""

    arms: int = 4
    seeds: int = 5
    documents: int = 32
    seed_noise: float = 0.01  # nats, of a run beyond its seed
    text_noise: float = 0.01  # nats, of an arm on one document, and of a scaling on one block of a length
    logit_noise: float = 0.5  # of a seed's chance to answer, beyond its seed
    level: float = 1.0  # logit of the chance to answer
    unequal: float = 1.0  # the last arm's noise over the others'
    shift: float = 0.0  # nats, of the last arm
    whole: bool = True  # with retrieval and scalings; else the loss alone


def expit(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def evaluations(
    world: World,
    rng: np.random.Generator,
    base: float,
    by_text: np.ndarray,
    by_length_text: dict[int, np.ndarray],
    scale: float,
) -> dict[str, Any]:
    """Returns the evaluations of one run, whose loss is `base` nats and its documents' noise.

    Args:
        by_text: nats of an arm on each document.
        by_length_text: of each multiple, nats of each scaling on each block, [scalings, blocks].
    """
    own = base + scale * world.seed_noise * rng.normal()
    tokens = np.full(world.documents, 1000)
    sums = tokens * (own + by_text)
    by_length, cells = [], []
    for multiple in MULTIPLES:
        for index, scaling in enumerate(("trained", *SCALINGS)):
            entry = {"length": 64 * multiple, "multiple": multiple, "scaling": scaling, "depth": None}
            nats = tokens * (own + world.seed_noise * rng.normal() + by_length_text[multiple][index])
            blocks = {"unit": "blocks", "loss": nats.tolist(), "tokens": tokens.tolist()}
            by_length.append({**entry, "loss": float(nats.sum() / tokens.sum()), "text": blocks})
            chance = expit(world.level + scale * world.logit_noise * rng.normal())
            cells.append(
                {
                    **entry,
                    "correct": int(rng.binomial(ROWS, chance)),
                    "examples": ROWS,
                    "pairs": 4,
                    "measures_distance": True,
                }
            )
    text = {"unit": "documents", "loss": sums.tolist(), "tokens": tokens.tolist()}
    loss = {"loss": float(sums.sum() / tokens.sum()), "tokens": int(tokens.sum()), "text": text, "by_length": by_length}
    if not world.whole:
        return {"loss": loss | {"by_length": []}}
    return {"loss": loss, "retrieval": {"task": "mqar", "pairs": 4, "by_length": cells}}


def report(world: World, rng: np.random.Generator, **given: Any) -> Study:
    """Returns the only study of a made-up report."""
    shared = 2.0 + 0.1 * rng.normal(size=world.seeds)
    arms = []
    for index in range(world.arms):
        last = index == world.arms - 1
        of_arm = world.text_noise * rng.normal(size=world.documents)
        shape = len(SCALINGS) + 1, world.documents
        of_lengths = {multiple: world.text_noise * rng.normal(size=shape) for multiple in MULTIPLES}
        runs = []
        for seed in range(world.seeds):
            base = shared[seed] + (world.shift if last else 0.0)
            evals = evaluations(world, rng, base, of_arm, of_lengths, world.unequal if last else 1.0)
            runs.append(Run(f"arm{index}", seed, Path(), "done", evals=evals))
        arms.append(Arm(f"arm{index}", {}, {}, runs))
    study = Study("s", "", "", "arm0", ["loss", "retrieval"], arms, list(range(world.seeds)), **given)
    Sweep(Path(), "s", "", "", "", [study])
    return study


def false_claims(study: Study) -> bool:
    result = claims(study)
    return any(one.verdict == RESOLVED for one in result.arms) or any(
        line.resolved for table in result.scalings for line in table.lines
    )


def share_claiming(world: World, number: int, seed: int = 0) -> float:
    rng = np.random.default_rng(seed)
    return float(np.mean([false_claims(report(world, rng)) for _ in range(number)]))


def coverage(world: World, number: int, seed: int = 1) -> dict[str, float]:
    """Returns how often the intervals of the report hold what is true."""
    rng = np.random.default_rng(seed)
    # The mean over seeds of a seed's chance to answer.
    middle = np.linspace(-8, 8, 4001)
    weight = np.exp(-(middle**2) / 2)
    truth = float((expit(world.level + world.logit_noise * middle) * weight).sum() / weight.sum())
    held: dict[str, list[bool]] = {"loss difference": [], "share": [], "share difference": []}
    for _ in range(number):
        study = report(world, rng)
        for one in claims(study).arms:
            gap = one.difference
            true = world.shift if one.measure == "loss" and one.arm == f"arm{world.arms - 1}" else 0.0
            if not one.few:
                held["loss difference" if one.measure == "loss" else "share difference"].append(
                    gap.low <= true <= gap.high
                )
        for arm in study.arms[:-1]:
            share = pooled(point for point in retrieval_points(arm) if point.key == (1.0, "trained"))
            if share.over != "few":
                held["share"].append(share.low <= truth <= share.high)
    return {name: float(np.mean(values)) for name, values in held.items() if values}


def sequential(world: World, plan: Plan, rng: np.random.Generator) -> tuple[bool, int, bool]:
    """Returns whether the last arm's loss is claimed to differ, after how many seeds, and whether as within care."""
    whole = report(world, rng)
    for number in plan.looks:
        arms = [Arm(arm.name, {}, {}, arm.runs[:number]) for arm in whole.arms]
        study = Study("s", "", "", "arm0", ["loss"], arms, list(range(number)), plan=plan, care=plan.care)
        compared = [one for one in claims(study).arms if one.measure == "loss"]
        if not any(is_open(one) for one in compared):
            break
    return any(one.verdict == RESOLVED for one in compared), number, any(one.within_care for one in compared)


PLAN = Plan((5, 10, 20), 0.0001)


def test_whole_reports_in_which_nothing_differs_claim_nothing_and_intervals_hold() -> None:
    """A quick look; the measurement is the slow tests'."""
    assert share_claiming(World(arms=3), 60) <= 0.1
    held = coverage(World(arms=3, logit_noise=0.8), 40)
    assert min(held.values()) > 0.86, held


def test_a_difference_that_is_there_is_claimed() -> None:
    rng = np.random.default_rng(2)
    assert np.mean([false_claims(report(World(arms=3, shift=0.1), rng)) for _ in range(20)]) > 0.9


def test_planned_looks_find_a_difference_of_one_deviation_and_claim_no_other() -> None:
    rng = np.random.default_rng(3)
    one = World(arms=2, seeds=20, documents=8, text_noise=0.0, whole=False, shift=0.01 * math.sqrt(2))
    results = [sequential(one, PLAN, rng) for _ in range(40)]
    assert np.mean([claimed for claimed, *_ in results]) > 0.85 and 9 < np.mean([seeds for _, seeds, _ in results]) < 18
    none = World(arms=2, seeds=20, documents=8, text_noise=0.0, whole=False)
    assert np.mean([sequential(none, PLAN, rng)[0] for _ in range(40)]) <= 0.15


@pytest.mark.slow
@pytest.mark.parametrize(
    "world",
    [
        World(), World(seeds=2), World(seeds=3), World(seeds=10, arms=3), World(arms=9, seeds=3),
        World(text_noise=0.05), World(text_noise=0.0), World(logit_noise=1.5, level=2.0), World(unequal=2.0),
    ],
    ids=str,
)  # fmt: skip
def test_of_whole_reports_without_a_difference_five_percent_claim_one(world: World) -> None:
    number = 1000 if world.seeds * world.arms < 30 else 500
    claiming = share_claiming(world, number)
    print(f"{world}: {claiming:.1%} of {number} reports claim something")
    assert claiming <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / number)


@pytest.mark.slow
@pytest.mark.parametrize(
    "world",
    [
        World(shift=0.02), World(seeds=3, shift=0.02), World(seeds=10, arms=3), World(seeds=20, arms=2),
        World(text_noise=0.05, shift=0.02), World(logit_noise=1.5), World(logit_noise=1.0, level=3.0),
        World(logit_noise=0.0, level=4.0), World(unequal=2.0, shift=0.02),
    ],
    ids=str,
)  # fmt: skip
def test_intervals_hold_the_truth_nine_times_in_ten_and_more(world: World) -> None:
    held = coverage(world, 400)
    print(f"{world}: " + ", ".join(f"{name} {value:.1%}" for name, value in held.items()))
    assert min(held.values()) >= 0.9 - 2 * math.sqrt(0.1 * 0.9 / 400)


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "size"), [(0.5, 2), (0.5, 20), (0.8, 20), (0.95, 20), (0.9, 5), (0.99, 100)])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_intervals_of_shares_hold_the_mean_of_beta_binomial_seeds(mean: float, size: float, seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    chances = rng.beta(mean * size, (1 - mean) * size, (3000, seeds))
    made = [shares.over_seeds([(right, 200) for right in row]) for row in rng.binomial(200, chances)]
    held = [one.low <= mean <= one.high for one in made if one.over != "few"]
    print(f"beta, mean {mean}, size {size}, {seeds} seeds: {np.mean(held):.1%} of {len(held)} hold, the rest too few")
    assert np.mean(held) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.01, 0.02, 0.03])
def test_planned_looks_claim_falsely_in_five_percent_at_most(shift: float) -> None:
    rng = np.random.default_rng(7)
    deviation = 0.01 * math.sqrt(2)  # of a paired difference
    world = World(arms=2, seeds=20, documents=8, text_noise=0.0, whole=False, shift=shift / 0.02 * deviation)
    results = [sequential(world, PLAN, rng) for _ in range(1000)]
    claimed, seeds = np.mean([one for one, *_ in results]), np.mean([number for _, number, _ in results])
    print(f"a difference of {shift / 0.02:g} deviations: {claimed:.1%} claim it, {seeds:.1f} seeds on average")
    assert claimed <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 1000) if shift == 0 else claimed > 0.3
    if shift:
        return
    whole = World(arms=3, seeds=20)
    false = float(np.mean([sequential(whole, PLAN, rng)[0] for _ in range(100)]))
    print(f"whole reports of three arms, looked at by plan: {false:.1%} of 100 claim a difference of losses")
    assert false <= 0.1
    care = Plan((5, 10, 20), 0.01)
    edge = [
        sequential(World(arms=2, seeds=20, documents=8, text_noise=0.0, whole=False, shift=0.01), care, rng)
        for _ in range(500)
    ]
    wrong = np.mean([within for *_, within in edge])
    print(f"of differences of exactly `care` {wrong:.1%} are said to be smaller")
    assert wrong <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 500)
