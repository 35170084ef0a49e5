"""Retrieval past the training length in a report: how far it reached, the local baseline, results that cannot say."""

import copy

import pytest

from report.charts.lengths import retrieval_by_length, retrieval_by_scaling
from report.claims import words
from report.claims.comparing import scaling_tables
from report.page import table
from report.reading import distance
from report.reading.directories import read
from report.statistics import aggregates
from tests.report import synthetic


def measured(local: dict[int, float], scalings: tuple[str, ...] = ()) -> dict:
    """A retrieval file as evaluations write it now; `local` has the baseline's share at each multiple."""
    result = copy.deepcopy(synthetic.retrieval_json(1.0, scalings))
    for entry in result["by_length"]:
        length, share = entry["length"], local.get(entry["multiple"])
        entry["distance"] = {"median": length - 20.0, "quartiles": [length - 25.0, length - 15.0]}
        entry["control"] = entry["measures_distance"] = None
        if share is not None:
            right = round(320 * share)
            entry["control"] = {"examples": 320, "correct": right, "accuracy": right / 320, "interval": [0.0, 1.0]}
            entry["measures_distance"] = share < 0.13
    return result


def study_of(tmp_path, evaluated: dict):
    study = synthetic.study_json("recall", {"a": synthetic.config(1)}, [0, 1], evals=["retrieval"])
    for seed in (0, 1):
        run = tmp_path / "runs" / "a" / f"seed{seed}"
        synthetic.write_run(run, info=synthetic.run_json(seed), lines=[], evals={"retrieval": evaluated})
    return read(synthetic.write_sweep(tmp_path, [study])).studies[0]


def test_the_report_shows_distances_and_the_local_baseline(tmp_path):
    study = study_of(tmp_path, measured({2: 0.9, 4: 0.03, 8: 0.025}, ("linear", "yarn")))
    (arm,) = study.arms
    assert distance.mark(arm, 63) == "" and distance.mark(arm, 126) == distance.LOCAL
    assert distance.mark(arm, 252) == "" and distance.copies([arm], 252) == (232.0, 227.0, 237.0)
    shown = table.build(study)
    columns = {column.key: column for column in shown.columns}
    assert "copy 232 [227, 237] tokens back" in columns["retrieval 252"].note
    cells = dict(zip(columns, shown.rows[0][1], strict=True))
    assert cells["retrieval 252"].sub.endswith("; local baseline 3.1%")
    assert cells["retrieval 126"].sub.endswith("; local baseline 90.0%, does not measure distance")
    assert "local" not in cells["retrieval 63"].sub
    assert shown.raw[0]["retrieval_252_local"] == 10 / 320 and shown.raw[0]["retrieval_126_mark"] == distance.LOCAL
    figure = retrieval_by_length(study)
    assert "252: 232 [227, 237]" in figure.caption and "Does not measure distance: a at 126." in figure.caption
    for drawn in (figure, retrieval_by_scaling(study)):
        assert distance.BASELINE in str(drawn.spec)


def test_results_from_before_distances_were_measured_are_read_and_marked(tmp_path):
    evaluated = synthetic.retrieval_json(1.0)
    for entry in evaluated["by_length"]:
        del entry["measures_distance"]
    study = study_of(tmp_path, evaluated)
    (arm,) = study.arms
    assert distance.mark(arm, 63) == "" and distance.mark(arm, 126) == distance.UNKNOWN
    cells = dict(zip([column.key for column in table.build(study).columns], table.build(study).rows[0][1], strict=True))
    assert cells["retrieval 252"].sub.endswith(f"; {distance.UNKNOWN}")
    figure = retrieval_by_length(study)
    assert "Distance not known, possibly local: everything beyond the training length." in figure.caption
    assert distance.BASELINE not in str(figure.spec)


def local_at(evaluated: dict, multiple: int, scaling: str = "trained") -> dict:
    """The same file, in which one condition says that it does not measure distance."""
    result = copy.deepcopy(evaluated)
    for entry in result["by_length"]:
        if (entry["multiple"], entry["scaling"]) == (multiple, scaling):
            entry["measures_distance"] = False
    return result


def scalings_of(tmp_path, evaluated: dict) -> tuple[dict, list[str]]:
    """The report's tables of retrieval under scalings, by multiple, and its sentences about them."""
    study = study_of(tmp_path, evaluated)
    first, rest = words.scalings(study)
    return {result.multiple: result for result in scaling_tables(study)}, [one.text for one in (*first, *rest)]


@pytest.mark.parametrize("local", ["linear", "trained"])
def test_no_scaling_is_claimed_to_be_better_where_retrieval_does_not_measure_distance(tmp_path, local):
    whole = measured({2: 0.0, 4: 0.0, 8: 0.0}, ("linear", "yarn"))
    every, _ = scalings_of(tmp_path / "whole", whole)
    assert all(len(result.lines) == 3 and not result.local for result in every.values())
    tables, said = scalings_of(tmp_path / "part", local_at(whole, 4, local))
    assert tables[4].local == (local,) and local not in [line.scaling for line in tables[4].lines]
    (sentence,) = [text for text in said if "252 tokens" in text]
    assert "Left out, because no control shows that retrieval there measures distance: " in sentence
    if local == "trained":  # nothing is left that the others could be compared with
        assert all(line.difference is None for line in tables[4].lines) and "Against" not in sentence
    else:
        assert "distance: linear" in sentence
        assert [line.difference is None for line in tables[4].lines] == [True, False]
    assert len(tables[2].lines) == len(tables[8].lines) == 3
    assert not any("Left out" in text for text in said if "252 tokens" not in text)


def test_a_length_at_which_nothing_measures_distance_is_named_and_claims_nothing(tmp_path):
    evaluated = measured({2: 0.0, 4: 0.0, 8: 0.0}, ("linear",))
    tables, said = scalings_of(tmp_path, local_at(local_at(evaluated, 8, "linear"), 8))
    assert tables[8].lines == () and len(tables[8].local) == 2
    (sentence,) = [text for text in said if "504 tokens" in text]
    assert "nothing is claimed. Left out, because no control shows that retrieval there measures distance: " in sentence


def test_a_condition_that_does_not_measure_distance_in_one_run_is_no_task_of_the_mean_over_tasks(tmp_path):
    evaluated = {"a": measured({2: 0.0, 4: 0.0, 8: 0.0}), "b": synthetic.retrieval_json(0.6)}
    arms = {"a": synthetic.config(1), "b": synthetic.config(2)}
    for arm, result in evaluated.items():
        for seed in (0, 1):
            run = tmp_path / "runs" / arm / f"seed{seed}"
            given = local_at(result, 4) if (arm, seed) == ("b", 1) else result
            synthetic.write_run(run, info=synthetic.run_json(seed), lines=[], evals={"retrieval": given})
    study = read(synthetic.write_sweep(tmp_path, [synthetic.study_json("s", arms, [0, 1], evals=["retrieval"])]))
    (study,) = study.studies
    result = aggregates.table(study)
    assert result is not None and result.local == ("mqar at 252",) and "mqar at 252" not in result.tasks
    assert len(result.tasks) == 3
    (sentence,) = [one.text for one in words.arms(study) if "IQM" in one.text]
    assert sentence.endswith("Left out, because no control shows that retrieval there measures distance: mqar at 252.")


def test_retrieval_of_unknown_distance_claims_nothing(tmp_path):
    without = measured({}, ("linear", "yarn"))  # as evaluations without the local baseline write it
    known = measured({2: 0.03, 4: 0.03, 8: 0.03}, ("linear", "yarn"))
    tables = {name: scaling_tables(study_of(tmp_path / name, one)) for name, one in (("a", without), ("b", known))}
    assert not any(line.resolved for table in tables["a"] for line in table.lines) and len(tables["b"]) == 3
    assert all(not table.lines for table in tables["a"])
