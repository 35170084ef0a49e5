"""A number that is not of the run as it stands is left out, and no claim is made across different questions."""

import json
from pathlib import Path

import pytest

from configs import fields, provenance
from report.claims import comparable, words
from report.claims.comparing import comparisons
from report.compare import combined
from report.page import table
from report.reading.directories import read
from report.statistics import aggregates
from tests.configs.test_provenance import BY_FINGERPRINT, HARMLESS, another, whole_config, with_field
from tests.report import synthetic

MEASURES = {"loss": "loss", "retrieval": "retrieval"}


def sweep(folder: Path, change=lambda arm, config: config) -> Path:
    """Writes two arms of three seeds, of which h4 is far better in loss and in retrieval; `change` alters configs."""
    arms = {"h2": (1.8, 0.4), "h4": (1.6, 0.95)}
    configs = {arm: change(arm, whole_config(eval__multiples=(1, 2, 4, 8))) for arm in arms}
    for arm, (loss, share) in arms.items():
        for seed in range(3):
            evals = {
                "loss": synthetic.loss_json(loss + 0.01 * seed),
                "retrieval": synthetic.retrieval_json(share + 0.01 * seed) | {"pairs": 4},
                "throughput": synthetic.throughput_json(),
            }
            workdir = folder / "runs" / arm / f"seed{seed}"
            synthetic.write_run(workdir, info=synthetic.run_json(seed), configuration=configs[arm], evals=evals)
    study = synthetic.study_json("heads", configs, [0, 1, 2], evals=["loss", "retrieval"])
    return synthetic.write_sweep(folder, [study])


def verdicts(folder: Path) -> dict[str, str]:
    return {one.measure: one.verdict for one in comparisons(read(folder).studies[0])}


def alike(folder: Path) -> str:
    built = table.build(read(folder).studies[0])
    place = [column.key for column in built.columns].index("comparable")
    return built.rows[1][1][place].text


def edit(folder: Path, name: str, change, arm: str = "h4", seeds=(0, 1, 2)) -> None:
    """Has an evaluation of an arm say something else."""
    for seed in seeds:
        path = folder / "runs" / arm / f"seed{seed}" / "eval" / f"{name}.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))


def asked(name, value):
    """Returns a change of one setting in a result's question, as an evaluation asked again by hand has it."""
    return lambda result: result | {"of": result["of"] | {"question": result["of"]["question"] | {name: value}}}


def test_equal_questions_are_compared(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    assert verdicts(folder) == {"loss": "resolved", "retrieval": "resolved"} and alike(folder) == "yes"


SETTINGS = [name for name in fields.types() if name.startswith(("eval.", "data."))]


@pytest.mark.parametrize("name", SETTINGS)
def test_no_claim_survives_an_evaluation_that_was_asked_otherwise(tmp_path: Path, name: str) -> None:
    folder = sweep(tmp_path)
    shaped = [one for one in (*MEASURES, "throughput") if provenance.shapes(name, one)]
    value = another(provenance.flat(whole_config())[name])
    for one in shaped:
        edit(folder, one, asked(name, value))
        if name == "eval.retrieval.task":  # what it resolved to is what counts
            edit(folder, one, asked("task", value))
    result = verdicts(folder)
    for measure in MEASURES:
        assert result[measure] == ("not comparable" if measure in shaped else "resolved")
    if shaped:
        assert alike(folder) == "no"
        said = " ".join(one.text for one in words.comparability(read(folder).studies[0]))
        assert f"{name} = {value}" in said
    elif name not in HARMLESS and name not in BY_FINGERPRINT:
        assert name.startswith(("eval.equivalence.", "eval.heads.", "eval.memory.", "eval.batch_size"))


@pytest.mark.parametrize("name", ["eval.brand_new", "data.brand_new"])
def test_a_new_setting_that_nobody_declared_is_not_compared_across(tmp_path: Path, name: str) -> None:
    folder = sweep(tmp_path, lambda arm, config: with_field(config, name, arm))
    assert set(verdicts(folder).values()) == {"not comparable"} and alike(folder) == "no"


def test_arms_of_different_training_lengths_are_validated_on_other_rows_and_no_claim_is_made(
    tmp_path: Path,
) -> None:
    folder = sweep(tmp_path, lambda arm, config: with_field(config, "data.length", 16 if arm == "h2" else 64))
    assert set(verdicts(folder).values()) == {"not comparable"} and alike(folder) == "no"
    said = [one.text for one in words.arms(read(folder).studies[0])]
    assert any("data.length = 64 against 16" in text and "no difference is claimed" in text for text in said)
    assert not any("beats" in text for text in said)


def test_one_arm_asked_again_with_other_pairs_is_not_compared_and_of_lists_both_must_be_as_configured(
    tmp_path: Path,
) -> None:
    folder = sweep(tmp_path)
    edit(folder, "retrieval", lambda r: asked("eval.retrieval.needles", [1])(asked("pairs", 1)(r | {"pairs": 1})))
    assert verdicts(folder) == {"loss": "resolved", "retrieval": "not comparable"} and alike(folder) == "no"
    assert aggregates.table(read(folder).studies[0]) is None
    assert any("eval.retrieval.needles = [1] against [4]" in one.text for one in words.arms(read(folder).studies[0]))
    # Lengths in which the sweep file has the arms differ leave the number at the training length alone.
    scalings = sweep(tmp_path / "b", lambda arm, c: with_field(c, "eval.scalings", ["yarn"] if arm == "h4" else []))
    assert set(verdicts(scalings).values()) == {"resolved"} and alike(scalings) == "yes, note"
    edit(scalings, "retrieval", asked("eval.scalings", ["linear"]))
    assert verdicts(scalings)["retrieval"] == "not comparable"


def test_seeds_of_one_arm_that_were_asked_differently_are_no_mean(tmp_path: Path) -> None:
    for arm in ("h2", "h4"):
        folder = sweep(tmp_path / arm)
        edit(folder, "retrieval", asked("eval.retrieval.examples", 9), arm=arm, seeds=(1,))
        assert verdicts(folder) == {"loss": "resolved", "retrieval": "not comparable"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r | {"of": r["of"] | {"step": 292}}, "loss.json is of step 292, the run is at step 1000"),
        (lambda r: r | {"of": r["of"] | {"run": "0" * 32}}, "is of another config"),
        (lambda r: r | {"of": r["of"] | {"data": {"documents": "x"}}}, None),
        (lambda r: {n: v for n, v in r.items() if n != "of"} | {"step": 292}, "is of step 292"),
    ],
)
def test_a_result_of_something_else_is_left_out_and_named(tmp_path: Path, change, said) -> None:
    folder = sweep(tmp_path)
    edit(folder, "loss", change)
    results = {one.measure: one for one in comparisons(read(folder).studies[0])}
    if said is None:  # what the run does not know of its data is no difference
        assert results["loss"].verdict == "resolved"
        return
    assert results["loss"].verdict == "missing" and said in results["loss"].why
    assert results["retrieval"].verdict == "resolved" and alike(folder) == "differs"


def test_a_file_that_does_not_say_what_it_is_of_is_compared_and_marked(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    edit(folder, "loss", lambda result: {name: value for name, value in result.items() if name != "of"})
    assert verdicts(folder)["loss"] == "resolved" and alike(folder) == "yes, note"
    study = read(folder).studies[0]
    assert [mark.short for mark in comparable.marks(study)["h4"]] == ["identity"]


def test_a_child_of_a_parent_that_changed_is_not_compared(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    for seed in range(3):
        path = folder / "runs/h4" / f"seed{seed}/run.json"
        info = json.loads(path.read_text())
        parents = provenance.parents_of(folder / "runs/h2" / f"seed{seed}", 1000)
        path.write_text(json.dumps(info | {"identity": provenance.identity(whole_config(), parents)}))
        edit(folder, "loss", lambda r, parents=parents: r | {"of": r["of"] | {"parents": parents}}, seeds=(seed,))
    assert verdicts(folder)["loss"] == "resolved"
    for path in folder.glob("runs/h2/*/config.json"):
        path.write_text(json.dumps(with_field(json.loads(path.read_text()), "budget.amount", 300.0)))
        synthetic.name_again(path.parent)
    results = {one.measure: one for one in comparisons(read(folder).studies[0])}
    assert {one.verdict for one in results.values()} == {"not comparable"}
    assert "started from h2/seed0, which has changed since: budget.amount was 1000.0" in results["loss"].why


def test_sweeps_that_were_asked_differently_are_not_compared_either(tmp_path: Path) -> None:
    first, second = sweep(tmp_path / "first"), sweep(tmp_path / "second")
    for name, value in (("eval.scaling_factor", 2.0), ("eval.kv_storage", "int8")):
        for arm in ("h2", "h4"):
            edit(second, "retrieval", asked(name, value), arm=arm)
        results = [one for one in comparisons(combined([first, second]).studies[0]) if one.measure == "retrieval"]
        verdict = {one.arm: one.verdict for one in results}
        assert verdict["h4 (first)"] == "resolved" and verdict["h4 (second)"] == "not comparable"
