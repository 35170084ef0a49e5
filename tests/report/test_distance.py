"""Retrieval past the training length in a report: how far it reached, the local baseline, results that cannot say."""

import copy

from report.charts.lengths import retrieval_by_length, retrieval_by_scaling
from report.page import table
from report.reading import distance
from report.reading.directories import read
from tests.report import synthetic


def measured(local: dict[int, float], scalings: tuple[str, ...] = ()) -> dict:
    """A retrieval file as evaluations write it now; `local` has the baseline's share at each multiple."""
    found = copy.deepcopy(synthetic.retrieval_json(1.0, scalings))
    for entry in found["by_length"]:
        length, share = entry["length"], local.get(entry["multiple"])
        entry["distance"] = {"median": length - 20.0, "quartiles": [length - 25.0, length - 15.0]}
        entry["control"] = entry["measures_distance"] = None
        if share is not None:
            right = round(320 * share)
            entry["control"] = {"examples": 320, "correct": right, "accuracy": right / 320, "interval": [0.0, 1.0]}
            entry["measures_distance"] = share < 0.13
    return found


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
    study = study_of(tmp_path, synthetic.retrieval_json(1.0))
    (arm,) = study.arms
    assert distance.mark(arm, 63) == "" and distance.mark(arm, 126) == distance.UNKNOWN
    cells = dict(zip([column.key for column in table.build(study).columns], table.build(study).rows[0][1], strict=True))
    assert cells["retrieval 252"].sub.endswith(f"; {distance.UNKNOWN}")
    figure = retrieval_by_length(study)
    assert "Distance not known, so that it may be local: everything beyond the training length." in figure.caption
    assert distance.BASELINE not in str(figure.spec)
