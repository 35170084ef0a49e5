"""table.tex for a paper: the columns asked for, a default for each kind of study, captions, no shrinking."""

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from configs.columns import COLUMNS
from configs.errors import ConfigError
from report.build import build
from report.page import latex, methods, table
from report.reading.directories import Study, read
from sweeps.spec.expand import expand
from tests.report.test_text_boxes import two_axes

PDFLATEX = shutil.which("pdflatex")
MANY = ["model.num_heads", "loss", "difference", "p", "bits", "retrieval", "train", "decode", "memory", "kv", "seeds"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    (one,) = read(two_axes(tmp_path_factory.mktemp("paper") / "sweep", 3)).studies
    return one


def asking(study: Study, *columns: str) -> table.Table:
    return table.build(dataclasses.replace(study, columns=list(columns)))


def headings(one: table.Table) -> list[str]:
    return [column.key for column in latex.chosen(one)]


def sweep(**changes: Any) -> dict[str, Any]:
    return {"base": "configs/tiny.py", "axes": [{"model.num_heads": [1, 2]}], "baseline": "num_heads=1", **changes}


def test_a_table_holds_the_columns_that_the_study_asks_for(study: Study) -> None:
    one = asking(study, "model.num_heads", "loss", "retrieval@504", "p")
    assert headings(one) == ["arm", "model.num_heads", "loss", "retrieval 504", "p"]
    text = latex.latex([one])
    assert r"arm & num heads & val. loss & retrieval @504 & p (Holm) \\" in text and "decode" not in text
    heading = table.markdown([one]).splitlines()[2]
    assert heading.count("|") == 6 and heading.startswith("| arm | num heads |")
    assert all(name in {column.key for column in asking(study, *COLUMNS).columns} for name in ("loss", "seeds", "p"))


def test_every_kind_of_study_has_its_columns_and_leaves_out_what_is_equal(study: Study) -> None:
    assert latex.kind(study).name == "heads"
    assert headings(table.build(study)) == ["arm", "loss", "difference", "retrieval 63", "retrieval 504", "decode"]
    caption = latex.caption(table.build(study), latex.chosen(table.build(study)))
    for part in ("n = 3 seeds per arm", "95% t-interval", "Holm's correction over", "Equal in all arms: KV cache"):
        assert part in caption
    assert "3 of 3 of num_heads=4,position.kind=nope failed" in caption
    names = {one.name for one in latex.KINDS}
    assert names == {"kernels", "positions", "heads", "training", "other"}
    assert all(column in COLUMNS for one in latex.KINDS for column in one.columns)


def test_a_table_is_never_wider_than_a_page_and_is_not_shrunk(study: Study) -> None:
    one = asking(study, *MANY)
    text = latex.latex([one])
    assert "resizebox" not in text and text.count(r"\begin{tabular}") > 1
    widths = latex._widths(one, latex.chosen(one))
    blocks = latex._blocks(widths)
    assert [place for block in blocks for place in block[1:]] == [*range(1, len(widths))]
    assert all(sum(widths[place] for place in block) <= latex.WIDTH for block in blocks)


@pytest.mark.slow
@pytest.mark.skipif(PDFLATEX is None, reason="no pdflatex (Debian: apt-get install texlive-latex-recommended)")
def test_latex_compiles_without_an_overfull_line(study: Study, tmp_path: Path) -> None:
    body = latex.latex([table.build(study), asking(dataclasses.replace(study, name="many"), *MANY)])
    (tmp_path / "t.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs}\begin{document}" + body + r"\end{document}"
    )
    call = [PDFLATEX or "", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert not re.search(r"Overfull \\hbox", done.stdout), done.stdout


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["loss", "decodes"], "unknown column 'decodes'; did you mean decode.; there are loss, difference"),
        (["loss", "model.num_head"], "unknown column 'model.num_head'"),
        (["loss", "loss"], "columns: loss is there twice"),
        (["decode"], "columns: decode needs 'throughput' in evals"),
        (["retrieval@64"], "columns: retrieval@64 needs 'retrieval' in evals"),
        (["target"], "columns: target needs the study's target"),
        ("loss", "must be a list of columns"),
    ],
)
def test_a_sweep_refuses_columns_that_are_not_there(columns: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        expand(sweep(columns=columns), file=Path("configs/sweeps/x.py"))


def test_a_sweep_takes_columns_and_highlighted_arms() -> None:
    one = expand(
        sweep(columns=["model.num_heads", "loss"], highlight=["num_heads=2"]), file=Path("configs/sweeps/x.py")
    )
    assert one.studies[0].columns == ("model.num_heads", "loss") and one.studies[0].highlight == ("num_heads=2",)
    with pytest.raises(ConfigError, match="highlight = 'h3' is not an arm"):
        expand(sweep(highlight=["h3"]), file=Path("configs/sweeps/x.py"))


def test_methods_say_what_configs_and_records_say_and_cite_it(tmp_path: Path) -> None:
    directory = two_axes(tmp_path / "sweep", 2)
    page = build(directory)
    text, tex, bib = (page.with_name(name).read_text() for name in ("methods.md", "methods.tex", "references.bib"))
    for part in (
        "width 64",
        "model.num\\_heads (1, 2, 4, 8) and model.position.kind (rope, nope, alibi)",
        "the varied positions [@su2021roformer; @press2021alibi]",
        "Each of 12 arms has 0 to 2 of 2 finished seeds",
        "2 failed and 2 diverged",
        "jax 0.10.2 [@jax2018]",
        "Holm's correction [@holm1979]",
        "0.01 nats",
        "0123456789ab",
    ):
        assert part in text, part
    cited = {key for keys in re.findall(r"\\cite\{([^}]*)\}", tex) for key in keys.split(",")}
    assert cited == set(re.findall(r"^@\w+\{([^,]+),", bib, re.M)) and "press2021alibi" in cited
    assert "[@" not in tex and "[@" not in page.read_text().split("<script")[0]
    assert "Each of 12 arms" in page.read_text()


@pytest.mark.parametrize(("files", "said"), [(12, "The text is the source 'stdlib' of 12 files"), (0, "Rows have")])
def test_methods_name_a_text_only_if_one_was_read(study: Study, files: int, said: str) -> None:
    data = {"source": "stdlib" if files else "synthetic", "files": files, "bytes": 10 * files}
    runs = [dataclasses.replace(run, info={**run.info, "data": data}) for run in study.arms[0].runs]
    one = dataclasses.replace(study, arms=[dataclasses.replace(study.arms[0], runs=runs)])
    assert dict(methods.paragraphs(one))["Data"].startswith(said)
    assert "curriculum" not in dict(methods.paragraphs(one))["Data"]


def test_methods_name_the_curriculum_and_one_arm_is_not_each_of_several(study: Study) -> None:
    stages = [{"steps": 10, "length": 15, "batch_size": 100}, {"steps": 10, "length": 31}]
    arm = study.arms[0]
    config = {**arm.config, "data": {**arm.config["data"], "batch_size": 50, "curriculum": stages}}
    text = dict(methods.paragraphs(dataclasses.replace(study, arms=[dataclasses.replace(arm, config=config)])))
    assert "begins with 15.0k tokens in rows of 15 and 15.5k tokens in rows of 31 (a curriculum)" in text["Data"]
    assert text["Seeds"].startswith("The arm has") and "every arm" not in text["Seeds"]
