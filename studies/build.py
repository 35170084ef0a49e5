"""`python -m studies.build [NAME ...]`: docs/studies.md and the studies' pages and figures, from committed results.

Nothing is trained, no JAX is loaded, and the same results give the same bytes.
"""

if not __package__:  # it was started by its path, from where nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m studies.build")

from collections.abc import Sequence
from pathlib import Path

from configs import cli
from report.files import write
from studies import NAMES, declared, figures, pages
from studies.results import ROOT, Results, read
from studies.spec import Study
from studies.verdicts import Verdict, verdicts

DOCS = ROOT.parent / "docs"


def build(names: Sequence[str] = NAMES, docs: Path = DOCS, root: Path = ROOT) -> list[Path]:
    """Writes docs/studies.md and the pages and figures of `names`; returns what was written.

    Args:
        names: the studies whose pages are made; the table always has all.
        docs: the folder of the pages.
        root: where the results lie.
    """
    every = [judged(declared.study(name), root) for name in NAMES]
    (docs / "studies").mkdir(parents=True, exist_ok=True)
    files = {docs / "studies.md": pages.overview(every)}
    for study, results, found in every:
        if study.name in names:
            files |= _study(study, results, found, docs / "studies")
    for path, content in files.items():
        write(path, content)
    return list(files)


def judged(study: Study, root: Path = ROOT) -> tuple[Study, Results | None, list[Verdict]]:
    """Returns a study with its results and verdicts; none of either where it has not been run."""
    results = read(study.name, root)
    return study, results, verdicts(study, results) if results else []


def _study(study: Study, results: Results | None, found: list[Verdict], folder: Path) -> dict[Path, str]:
    drawn: list[tuple[str, str, str, str]] = []
    if results is not None:
        for share in (False, True):
            if picture := figures.forest(found, share):
                key = "verdicts_shares" if share else "verdicts"
                caption = "Differences with their 95% intervals, by row of the table; filled: resolved after Holm."
                drawn.append((f"{study.name}_{key}.svg", "Differences by ordering", caption, picture))
        for chart in study.charts:
            if picture := figures.lines(chart, results):
                drawn.append((f"{study.name}_{chart.key}.svg", chart.title, chart.caption, picture))
    shown = [(file, title, caption) for file, title, caption, _ in drawn]
    files = {folder / f"{study.name}.md": pages.page(study, results, found, shown)}
    return files | {folder / file: picture for file, _, _, picture in drawn}


def main(argv: list[str]) -> None:
    """The command."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; none: all")
    given = parser.parse_args(argv)
    for name in given.names:
        declared.study(name)
    for path in build(given.names or NAMES):
        print(path)


if __name__ == "__main__":
    cli.main(main)
