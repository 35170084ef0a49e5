"""What the report says: resolved, not resolved, one seed, not comparable; about arms and about RoPE scalings."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from report.claims import words
from report.claims.comparable import marks
from report.claims.comparing import scaling_tables
from report.page import table
from report.reading.directories import Study, read
from report.statistics.intervals import Difference
from tests.report import synthetic


def study(directory: Path, index: int = 0) -> Study:
    return read(directory).studies[index]


def said(directory: Path) -> dict[str, str]:
    results = [(one.verdict, one.text) for one in words.arms(study(directory))]
    return {text: verdict for verdict, text in results}


def change(directory: Path, run: str, **changes: Any) -> None:
    path = directory / "runs" / run / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    synthetic.name_again(path.parent)


def test_a_resolved_difference_is_said_with_its_interval(tmp_path: Path) -> None:
    values = {"h1": [1.80, 1.82, 1.81], "h4": [1.77, 1.788, 1.779]}
    result = said(synthetic.losses(tmp_path, values))
    # differences -0.030, -0.032, -0.031: mean 0.031, t(2) = 4.3027, standard error 0.001 / sqrt(3)
    assert result == {"h4 beats h1 by 0.0310 nats [0.0285, 0.0335], 3 seeds; significant at 5%.": "resolved"}


def test_a_worse_arm_is_beaten_by_the_baseline(tmp_path: Path) -> None:
    result = said(synthetic.losses(tmp_path, {"h4": [1.70, 1.71, 1.72], "h1": [1.75, 1.7605, 1.7695]}))
    (text,) = result
    assert text.startswith("h4 beats h1 by 0.05") and result[text] == "resolved"


def test_a_difference_within_its_interval_is_said_to_be_unresolved(tmp_path: Path) -> None:
    result = said(synthetic.losses(tmp_path, {"h4": [1.70, 1.72, 1.71], "h8": [1.704, 1.718, 1.713]}))
    # differences 0.004, -0.002, 0.003: mean 0.00167, standard error 0.00186, times 4.3027 = 0.0080; of three pairs a
    # t-test has power 0.8 at 3.26 deviations, which are 0.00321
    assert result == {
        "h8 against h4, loss: no difference resolved (+0.0017 nats ±0.0080, 3 seeds; a true 0.0105 nats would have "
        "been seen 4 times in 5).": "not resolved"
    }


def test_one_seed_resolves_nothing_however_large_the_difference(tmp_path: Path) -> None:
    result = said(synthetic.losses(tmp_path, {"h1": [2.5], "h4": [1.7]}))
    ((text, verdict),) = result.items()
    assert verdict == "one seed"
    assert "one seed cannot resolve anything about seeds" in text and "measurement noise only" in text
    assert "0.800 nats lower" in text and "beats" not in text


def test_several_comparisons_are_corrected_in_words(tmp_path: Path) -> None:
    # h2's paired differences give p = 0.03, which three comparisons do not allow
    base = [1.70, 1.71, 1.72]
    arms = {"h1": base, "h2": [1.704, 1.711, 1.7255], "h4": [1.66, 1.6702, 1.6799], "h8": [1.70, 1.713, 1.722]}
    result = said(synthetic.losses(tmp_path, arms))
    assert any(
        text.startswith("h4 beats h1") and "; significant at 5% after Holm's correction (3" in text for text in result
    )
    (open_,) = [text for text in result if text.startswith("h2 against h1")]
    assert result[open_] == "not resolved" and "beats" not in open_
    assert "no difference resolved: its own interval excludes 0, but of 3 comparisons" in open_ and "p = 0.0" in open_


def matched(directory: Path, arm: str, **match: Any) -> None:
    path = directory / "sweep.json"
    sweep = json.loads(path.read_text())
    for one in sweep["studies"][0]["arms"]:
        if one["name"] == arm:
            one["match"] = [{"equal": "parameters", "to": "h1", "by": "model.mlp_width", "value": 99, **match}]
    path.write_text(json.dumps(sweep))


def test_what_the_sweep_made_equal_is_said_as_the_runs_recorded_it(tmp_path: Path) -> None:
    values = {"h1": [1.80, 1.82, 1.81], "h4": [1.77, 1.788, 1.779], "h8": [1.75, 1.768, 1.759]}
    directory = synthetic.losses(tmp_path, values)
    total = round(139584 * 1.0006)
    for seed in range(3):
        change(directory, f"h4/seed{seed}", parameters={"total": total})
    matched(directory, "h4", reached=1, wanted=1)
    matched(directory, "h8", equal="kv_bytes")
    texts = list(said(directory))
    assert "h4 beats h1 by 0.0310 nats" in texts[1] and texts[1].endswith("; matched parameters within 0.1%.")
    assert texts[0].startswith("h8 beats h1") and texts[0].endswith("; matched KV bytes/token exactly.")
    rows = table.build(study(directory)).rows
    assert [cells[3].sub for _, cells in rows] == [
        "", "matched parameters within 0.1%", "matched KV bytes/token exactly"
    ]  # fmt: skip
    # What was to be equal and is not, is said; and arms made equal to a third are equal to each other.
    for seed in range(3):
        change(directory, f"h8/seed{seed}", kv_bytes_per_token=1100)
    texts = list(said(directory))
    assert "matched KV" not in texts[0] and "should have equal KV bytes/token, and is 7.4% off" in texts[0]
    matched(directory, "h8")
    sweep = json.loads((directory / "sweep.json").read_text())
    sweep["studies"][0]["baseline"] = "h4"
    (directory / "sweep.json").write_text(json.dumps(sweep))
    assert [text.split("; ")[-1] for text in said(directory)] == ["matched parameters within 0.1%."] * 2


def test_an_arm_that_read_other_data_gets_no_claim(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.81], "h4": [1.5, 1.51]})
    for seed in (0, 1):
        change(directory, f"h4/seed{seed}", data={"fingerprint": "0" * 64})
    ((text, verdict),) = said(directory).items()
    assert verdict == "not comparable" and "other data" in text and "beats" not in text
    difference = table.build(study(directory)).rows[1][1][2]
    assert difference.text == "\N{EM DASH}" and "other data" in difference.why


@pytest.mark.parametrize(
    ("changes", "short", "words_of_it"),
    [
        ({"budget": {"kind": "steps", "amount": 2000.0}}, "budget", "2,000 steps against 1,000 steps"),
        ({"parameters": {"total": 160000}}, "parameters", "14.6% more parameters (160k against 140k)"),
        ({"attention_kernel": "xla"}, "kernel", "xla against blocked"),
        ({"dtype": "bfloat16"}, "dtype", "bfloat16 against float32"),
        ({"devices": [{"kind": "H100", "platform": "gpu", "count": 8}]}, "devices", "8 x H100 against 1 x cpu"),
        ({"tokens": 4096000}, "training tokens", "100.0% more training tokens"),
    ],
)
def test_what_is_not_like_for_like_is_marked(
    tmp_path: Path, changes: dict[str, Any], short: str, words_of_it: str
) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.81], "h4": [1.5, 1.51]})
    for seed in (0, 1):
        change(directory, f"h4/seed{seed}", **changes)
    (mark,) = marks(study(directory))["h4"]
    assert (mark.level, mark.short) == ("differs", short) and words_of_it in mark.words
    (sentence,) = words.comparability(study(directory))
    assert sentence.text.startswith("h4 differs from h1") and words_of_it in sentence.text
    assert words_of_it in next(iter(said(directory))), "the claim itself must carry the qualification"
    assert table.build(study(directory)).rows[1][1][3].text == "differs"


def test_equal_runs_have_no_mark_and_small_differences_of_size_are_none(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.81], "h4": [1.5, 1.51]})
    change(directory, "h4/seed0", parameters={"total": round(139584 * 1.009)})
    change(directory, "h4/seed1", parameters={"total": round(139584 * 1.009)})
    assert marks(study(directory)) == {"h4": []}
    assert words.comparability(study(directory)) == []


def test_another_commit_is_a_note_and_no_more(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.81], "h4": [1.5, 1.51]})
    for seed in (0, 1):
        change(directory, f"h4/seed{seed}", git_commit="fedcba9876543210")
    (sentence,) = words.comparability(study(directory))
    assert sentence.verdict == "note" and "fedcba9876 against 0123456789" in sentence.text
    assert "commit" not in next(iter(said(directory)))


def test_fewer_finished_seeds_are_marked_and_pairs_are_what_both_finished(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.81, 1.82], "h4": [1.5, 1.511, 1.0]})
    change(directory, "h4/seed2", status="diverged", error="loss is nan at step 17")
    ((text, _),) = said(directory).items()
    assert "2 seeds; significant at 5%; not like for like: 2 seeds done against 3" in text
    assert text.startswith("h4 beats h1 by 0.2995 nats [0.2931, 0.3059], 2 seeds")
    assert table.build(study(directory)).rows[1][1][-1].text == "2 / 0 / 1"


def test_seeds_of_one_arm_that_differ_are_named(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.81], "h4": [1.5, 1.51]})
    change(directory, "h1/seed1", attention_kernel="xla")
    assert any(
        "h1: its seeds have different attention kernel" in one.text for one in words.comparability(study(directory))
    )


def test_an_arm_without_runs_is_said_to_be_missing(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.81], "h4": [1.5, 1.51]})
    for seed in (0, 1):
        change(directory, f"h4/seed{seed}", status="failed", error="boom")
    ((text, verdict),) = said(directory).items()
    assert verdict == "missing" and "h4 has no finished run" in text


def scaled(directory: Path, offsets: list[float], count: int = 3) -> Path:
    """One arm whose seeds were evaluated under scalings; ntk differs from raw RoPE by `offsets`."""
    for seed in range(count):
        content = synthetic.loss_json(1.7 + 0.01 * seed, ("linear", "ntk", "yarn"), (1, 8), wobble=0.01 * seed)
        entries = {(one["multiple"], one["scaling"]): one for one in content["by_length"]}
        entries[8, "ntk"]["loss"] = entries[8, "trained"]["loss"] + offsets[seed]
        entries[8, "yarn"]["loss"] += 0.002 * seed
        entries[8, "linear"]["loss"] += 0.001 * seed
        synthetic.write_run(
            directory / "runs" / "a" / f"seed{seed}", info=synthetic.run_json(seed), evals={"loss": content}
        )
    return synthetic.write_sweep(directory, [synthetic.study_json("s", {"a": synthetic.config()}, list(range(count)))])


def test_scalings_are_told_apart_only_where_their_difference_exceeds_its_interval(tmp_path: Path) -> None:
    first, rest = words.scalings(study(scaled(tmp_path, [0.01, -0.01, 0.004])))
    assert rest == []
    (sentence,) = first
    assert sentence.verdict == "resolved"
    assert sentence.text.startswith("a, loss at 8× the training length (1,024 tokens): raw RoPE 2.7")
    claims, open_ = sentence.text.split("Against raw RoPE, significant at 5%: ")[1].split("Not resolved: ")
    assert "linear higher by 0.5" in claims and "yarn lower by 0.5" in claims and "ntk" not in claims
    assert open_.startswith("ntk (+0.001 nats ±0.014")


def test_a_scaling_whose_interval_excludes_0_says_why_it_is_not_claimed(tmp_path: Path) -> None:
    table = scaling_tables(study(scaled(tmp_path, [0.01, -0.01, 0.004])))[0]
    gap = Difference(0.117, 0.005, 0.229, 0.03, (0, 1, 2))  # p = 0.03 alone, 0.09 among three
    line = replace(table.lines[1], difference=gap, resolved=False, p_holm=0.09, family=3)
    (first,), _ = words.scalings(study(tmp_path))
    assert "excludes 0" not in first.text
    label = {line.scaling: "ntk"}
    said = words._open("loss", line, label)
    assert said.startswith("ntk (+0.117 nats \N{PLUS-MINUS SIGN}0.112; its own interval excludes 0, but p = 0.09 ")
    assert said.endswith("Holm's correction (3 claims))")


def test_scalings_of_one_seed_are_measurements_only(tmp_path: Path) -> None:
    (sentence,), _ = words.scalings(study(scaled(tmp_path, [0.01], count=1)))
    assert sentence.verdict == "one seed" and "One seed cannot resolve anything about seeds" in sentence.text
    assert "higher by" not in sentence.text


def test_retrieval_is_compared_at_the_training_length(tmp_path: Path) -> None:
    arms = {"a": synthetic.config(), "b": synthetic.config(2)}
    for arm, share in (("a", 0.5), ("b", 1.0)):
        for seed in (0, 1, 2):
            place = tmp_path / "runs" / arm / f"seed{seed}"
            evals = {"retrieval": synthetic.retrieval_json(share - 0.01 * seed * (arm == "a"))}
            synthetic.write_run(place, info=synthetic.run_json(seed), evals=evals)
    directory = synthetic.write_sweep(tmp_path, [synthetic.study_json("s", arms, [0, 1, 2], evals=["retrieval"])])
    (text, verdict), *others = said(directory).items()
    assert [kind for _, kind in others] == ["note", "note"]  # seeds that solved it; over all lengths
    assert verdict == "resolved" and text.startswith("b beats a in retrieval at the training length by 51.")


def test_a_study_of_one_arm_compares_nothing(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"only": [1.8, 1.81]})
    assert said(directory) == {} and "nothing to compare" in words.preface(study(directory))


def test_without_a_baseline_the_first_arm_serves_and_that_is_said(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.8, 1.81], "h4": [1.5, 1.51]}, baseline=None)
    assert "the study names no baseline" in words.preface(study(directory))
    assert table.build(study(directory)).rows[0][1][2].text == "reference"
