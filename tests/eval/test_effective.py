"""The effective length: the longest up to which every length holds, by the papers' thresholds."""

import pytest

from configs.errors import UserError
from configs.rules import tasks
from eval.quality import effective


def entries(accuracies, scaling="trained"):
    return [{"length": 2**i, "scaling": scaling, "accuracy": a} for i, a in enumerate(accuracies, 4)]


@pytest.mark.parametrize("threshold, expected, bounded", [
    ("pi", 128, False), ("yarn", 32, True), ("ruler", 16, True), ("0.85", 32, True), ("1", 16, True),
])  # fmt: skip
def test_it_ends_before_the_first_length_that_fails(threshold, expected, bounded):
    result = effective.lengths(entries([1.0, 0.856, 0.2, 0.9]), threshold)
    assert result == {"trained": {"length": expected, "bounded": bounded}}


def test_each_scaling_has_its_own_and_what_was_not_asked_says_nothing():
    requested = entries([1.0, 1.0], "yarn") + entries([0.1, 1.0], "linear") + entries([None, 0.9], "ntk")
    result = effective.lengths(reversed(requested), "yarn")
    assert {name: here["length"] for name, here in result.items()} == {"yarn": 32, "linear": 0, "ntk": 32}
    assert result["linear"]["bounded"] and not result["yarn"]["bounded"]


def test_generated_answers_have_an_effective_length_too():
    requested = [{**e, "exact_match": {"accuracy": e["accuracy"] / 2}} for e in entries([1.0, 1.0])]
    assert effective.lengths(requested, "0.5", "exact_match")["trained"]["length"] == 32
    assert effective.lengths(requested, "0.6", "exact_match")["trained"]["length"] == 0


@pytest.mark.parametrize("given", ["yran", "0", "1.5", "nan", ""])
def test_a_threshold_is_a_name_or_a_share(given):
    with pytest.raises(UserError, match=r"eval\.retrieval\.threshold = .*pi, yarn, ruler or a number in \(0, 1\]"):
        tasks.threshold(given)
