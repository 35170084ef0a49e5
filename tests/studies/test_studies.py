"""The studies' pages come from committed results alone, byte for byte, and verdicts follow what the results say."""

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from studies import NAMES, build, declared, figures, pages, results, smoke
from studies.results import ROOT, Results, Row
from studies.spec import ACCURACY, LOSS, SHARES, Cell, Ordering, Study
from studies.verdicts import MISSING, OPEN, REVERSED, SHOWS, verdicts
from sweeps.spec import expand

RUN = [name for name in NAMES if results.read(name) is not None]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    docs = tmp_path_factory.mktemp("docs")
    build.build(docs=docs)
    return docs


def test_pages_and_figures_come_from_the_committed_results_byte_for_byte(built: Path) -> None:
    made = {path.relative_to(built) for path in built.rglob("*") if path.is_file()}
    for path in made:
        assert (built / path).read_bytes() == (build.DOCS / path).read_bytes(), path
    kept = {path.relative_to(build.DOCS) for path in (build.DOCS / "studies").rglob("*") if path.is_file()}
    assert kept | {Path("studies.md")} == made, "docs/studies holds what no study makes"


def test_every_page_is_reached_from_the_table_and_shows_its_figures(built: Path) -> None:
    for name in NAMES:
        assert f"(studies/{name}.md)" in (built / "studies.md").read_text()
        page = (built / "studies" / f"{name}.md").read_text()
        pictures = {path.name for path in (built / "studies").glob(f"{name}_*.svg")}
        assert pictures == {part.split(")")[0] for part in page.split("](")[1:] if part.split(")")[0].endswith(".svg")}
        assert bool(pictures) == (name in RUN)


@pytest.mark.parametrize("name", NAMES)
def test_a_study_compares_arms_that_its_sweeps_have(name: str) -> None:
    study = declared.study(name)
    assert study.name == name and (ROOT / name / "protocol.md").is_file()
    arms = {arm.name for file in study.sweeps for one in expand.load(ROOT / name / file).studies for arm in one.arms}
    cells = [cell for one in study.orderings for cell in (one.cell, one.against)]
    cells += [cell for chart in study.charts for line in chart.lines.values() for cell in line.values()]
    missing = {cell.arm for cell in cells} - arms
    if name == "heads":  # two rates were not tried
        missing -= {"h2-lr0.008", "h8-lr0.008"}
    assert not missing


@pytest.mark.parametrize(
    "file", ["studies/positions/sweep.py", "configs/sweeps/positions.py", "configs/sweeps/gpu/positions.py"]
)
def test_no_two_positional_schemes_of_a_sweep_are_one_function(file: str) -> None:
    arms = [arm for one in expand.load(ROOT.parent / file).studies for arm in one.arms]
    partial = [arm.config.model.position.rope.fraction for arm in arms if arm.config.model.position.kind == "p_rope"]
    assert partial and all(fraction < 1 for fraction in partial)  # at 1 p-RoPE is RoPE


@pytest.mark.parametrize("name", RUN)
def test_results_are_small_and_read_back_as_they_were_written(name: str, tmp_path: Path) -> None:
    found = results.read(name)
    assert found is not None
    files = results.save(replace(found, about={k: v for k, v in found.about.items() if k != "text"}), name, tmp_path)
    assert sum(path.stat().st_size for path in files) <= results.MOST
    for path in files:
        assert path.read_bytes() == (ROOT / name / path.name).read_bytes()


def study_of(*orderings: Ordering) -> Study:
    return Study("made", "Made", "?", (), (), orderings)


def table(means: dict[str, float], seeds: int = 5, noise: float = 0.003, measure: str = LOSS) -> Results:
    drawn = np.random.default_rng(0)
    common = drawn.normal(0, 0.05, seeds)
    rows = [
        Row(arm, seed, measure, 0, value=mean + common[seed] + drawn.normal(0, noise), correct=mean * 500, examples=500)
        for arm, mean in means.items()
        for seed in range(seeds)
    ]
    return Results(tuple(rows), {})


def verdict(gap: float, sign: int, **options: float) -> str:
    ordering = Ordering("a is worse", "", "", Cell("a"), Cell("b"), sign)
    return verdicts(study_of(ordering), table({"a": 1.7 + gap, "b": 1.7, "c": 1.8}, **options))[0].verdict


def test_a_difference_shows_turns_round_with_its_sign_and_is_open_where_there_is_none() -> None:
    assert verdict(0.03, 1) == SHOWS
    assert verdict(-0.03, 1) == REVERSED
    assert verdict(-0.03, -1) == SHOWS
    assert verdict(0.0, 1) == OPEN
    assert verdict(0.03, 1, noise=0.1) == OPEN
    assert verdict(0.03, 1, seeds=1) == MISSING


def test_no_difference_must_be_shown_and_is_not_taken_from_what_is_open() -> None:
    assert verdict(0.0, 0, noise=0.002) == SHOWS
    assert verdict(0.0, 0, noise=0.05) == OPEN
    assert verdict(0.05, 0, noise=0.002) == REVERSED


def test_shares_that_are_both_at_chance_say_nothing_of_each_other() -> None:
    ordering = Ordering("a recalls as b does", "", "", Cell("a", ACCURACY), Cell("b", ACCURACY), 0, 0.1)
    made = table({"a": 0.02, "b": 0.02, "c": 0.02}, measure=ACCURACY, noise=0.001)
    guarded = replace(ordering, least=0.5)
    assert verdicts(study_of(ordering), made)[0].verdict == SHOWS
    assert verdicts(study_of(guarded), made)[0].verdict == OPEN
    one_solves = table({"a": 0.9, "b": 0.02, "c": 0.02}, measure=ACCURACY, noise=0.001)
    assert verdicts(study_of(guarded), one_solves)[0].verdict == REVERSED


def test_a_reversed_ordering_says_what_was_done_to_be_sure() -> None:
    study = study_of(Ordering("a is worse than b", "X", "", Cell("a"), Cell("b"), 1))
    made = table({"a": 1.67, "b": 1.7, "c": 1.8})
    made = replace(made, about={"sweeps": {}})
    with pytest.raises(results.UserError, match="'a is worse than b', which is reversed"):
        pages.overview([(study, made, verdicts(study, made))])
    checked = replace(study, checks={"a is worse": "Five seeds."}, not_run={"width 64": 5.0})
    page = pages.overview([(checked, made, verdicts(checked, made))])
    assert page.rstrip().endswith("5 seeds. Five seeds.") and "- width 64: 5\n" in page


def test_orderings_that_were_not_measured_are_not_counted() -> None:
    orderings = [Ordering("a is worse", "", "", Cell("a"), Cell(other), 1) for other in ("b", "never")]
    study, made = study_of(*orderings), replace(table({"a": 1.73, "b": 1.7, "c": 1.8}), about={"sweeps": {}})
    assert "on 1 published ordering: 1 shows" in pages.overview([(study, made, verdicts(study, made))])


def test_shares_are_judged_in_points() -> None:
    ordering = Ordering("a recalls more", "", "", Cell("a", ACCURACY), Cell("b", ACCURACY), 1)
    made = table({"a": 0.9, "b": 0.5, "c": 0.5}, measure=ACCURACY, seeds=3)
    one = verdicts(study_of(ordering), made)[0]
    assert one.verdict == SHOWS and "points" in pages.size(one)
    assert verdicts(study_of(replace(ordering, sign=-1)), made)[0].verdict == REVERSED


def test_a_second_look_has_a_level_of_its_own() -> None:
    ordering = Ordering("a is worse", "", "", Cell("a"), Cell("b"), 1)
    once = table({"a": 1.73, "b": 1.7, "c": 1.8})
    twice = replace(once, about={"sweeps": {"sweep.py": {"looks": 2}}})
    first, second = (verdicts(study_of(ordering), one)[0] for one in (once, twice))
    assert second.p_holm == pytest.approx(first.p_holm * 4 / 3)  # 5% / 3.75%
    assert second.difference.half > first.difference.half


def test_deviations_are_pooled_over_the_arms_of_one_study_alone() -> None:
    ordering = Ordering("a is worse", "", "", Cell("a"), Cell("b"), 1)
    made = table({"a": 1.73, "b": 1.7, "c": 1.8, "d": 1.9})

    def pooled(studies: dict[str, str]) -> int:
        return verdicts(study_of(ordering), replace(made, about={"arms": studies}))[0].difference.pooled

    assert pooled(dict.fromkeys("abcd", "x")) == 4
    assert pooled({"a": "x", "b": "x", "c": "x", "d": "y"}) == 3
    assert pooled({"a": "x", "b": "y", "c": "x", "d": "y"}) == 0


def test_holms_correction_is_over_all_orderings_of_a_study() -> None:
    one = Ordering("a is worse", "", "", Cell("a"), Cell("b"), 1)
    made = table({"a": 1.7057, "b": 1.7, "c": 1.8}, noise=0.003)
    alone = verdicts(study_of(one), made)[0]
    beside = [replace(one, cell=Cell("b"), against=Cell("b2"))] * 0 + [one] * 40
    many = verdicts(study_of(*beside), made)[0]
    assert alone.verdict == SHOWS and alone.family == 1
    assert many.verdict == OPEN and many.family == 40 and many.p_holm > alone.p_holm


@pytest.mark.parametrize("name", RUN)
def test_altered_results_alter_verdicts(name: str) -> None:
    study, found = declared.study(name), results.read(name)
    assert found is not None
    before = verdicts(study, found)
    shown = [i for i, one in enumerate(before) if one.verdict == SHOWS and one.ordering.sign]
    if not shown:
        pytest.skip("no ordering of this study is resolved")
    index = shown[0]
    ordering = before[index].ordering

    def altered(factor: float) -> str:
        mine, other = found.values(ordering.cell), found.values(ordering.against)
        shares = found.shares(ordering.cell), found.shares(ordering.against)
        mean = before[index].difference.mean
        rows = []
        for row in found.rows:
            cell = Cell(row.arm, row.measure, row.length, row.scaling)
            if cell == ordering.cell and row.seed in other:
                value = other[row.seed] + (mine[row.seed] - other[row.seed] - mean) + factor * mean
                value = min(1.0, max(0.0, value)) if cell.measure in SHARES else value
                row = replace(row, value=value, correct=value * shares[0][row.seed][1])
            rows.append(row)
        text = {key: one for key, one in found.text.items() if key[0] != ordering.cell.arm}
        return verdicts(study, replace(found, rows=tuple(rows), text=text))[index].verdict

    assert altered(0.0) == OPEN
    assert altered(-1.0) in (REVERSED, OPEN) if ordering.cell.measure in SHARES else altered(-1.0) == REVERSED


def test_pictures_and_pages_change_with_the_results(tmp_path: Path) -> None:
    ordering = Ordering("a is worse", "X", "+1", Cell("a"), Cell("b"), 1)
    study = study_of(ordering)
    drawn = [
        figures.forest(verdicts(study, table({"a": 1.7 + gap, "b": 1.7, "c": 1.8})), False) for gap in (0.02, 0.03)
    ]
    again = figures.forest(verdicts(study, table({"a": 1.72, "b": 1.7, "c": 1.8})), False)
    assert drawn[0] == again != drawn[1]


def test_results_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "heads").mkdir()
    (tmp_path / "heads" / results.TABLE).write_text("arm,seed\nh1,zero\n")
    (tmp_path / "heads" / results.ABOUT).write_text(json.dumps({"text": {"loss": {}, "tokens": {}}}))
    with pytest.raises(results.UserError, match="cannot be read"):
        results.read("heads", tmp_path)
    assert results.read("recall", tmp_path) is None


@pytest.mark.parametrize("name", NAMES)
def test_every_sweep_of_a_study_shrinks(name: str, tmp_path: Path) -> None:
    study = declared.study(name)
    root = smoke.write(study, tmp_path)
    for file in study.sweeps:
        small = expand.load(root / name / file)
        whole = expand.load(ROOT / name / file)
        assert [arm.name.split("@")[0] for one in small.studies for arm in one.arms] == [
            arm.name.split("@")[0] for one in whole.studies for arm in one.arms
        ]
        assert all(arm.config.budget.amount <= 8 for one in small.studies for arm in one.arms)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heads", "kv_groups"])
def test_a_study_runs_anew(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "studies.run", name, "--smoke", f"--out={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = results.read(name, tmp_path / name / "smoke")
    assert found is not None and {row.seed for row in found.rows} >= {0, 1}
    page = (tmp_path / name / "docs" / "studies" / f"{name}.md").read_text()
    # A smaller budget has another name where the budget itself is shrunk.
    missing = [line for line in page.splitlines() if "not measured" in line and "at half the updates" not in line]
    assert not missing


def test_declarations_say_in_one_place_which_studies_there_are() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/study.py")}
    assert folders == set(NAMES)
    for path in ROOT.rglob("*.py"):
        imports = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
        assert not any(module and module.split(".")[0] in ("jax", "sweeps", "eval") for module in imports), path
