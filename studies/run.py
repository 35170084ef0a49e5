"""`python -m studies.run NAME --out=DIR`: runs a study again, then makes its results and pages (`make study`).

Each of its sweeps is launched in turn (`python -m sweeps.launch`), into DIR/NAME/SWEEP; what is done is not done again.
Then the results in studies/NAME are replaced by the new ones and docs/ is built from them. A sweep with a run that
failed ends it before that.

--smoke shrinks every sweep to a few updates of two seeds, and keeps results and pages in DIR: it shows that all of it
runs, and its numbers mean nothing.
"""

if not __package__:  # it was started by its path, from where nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m studies.run")

import subprocess
import sys
from pathlib import Path

from configs import cli
from studies import declared
from studies.spec import Study


def run(study: Study, out: Path, workers: int, small: bool) -> int:
    """Runs a study; returns the first exit code of a launch that is not 0, else 0."""
    from studies import build, smoke  # pandas and Altair take a second, which --help should not
    from studies.results import ROOT, save
    from studies.tidy import tidy

    out = out / study.name
    root = smoke.write(study, out / "smoke") if small else ROOT
    for file in study.sweeps:
        code = _launch(root / study.name / file, out / Path(file).stem, workers)
        if code:
            return code
    docs = out / "docs" if small else build.DOCS
    docs.mkdir(parents=True, exist_ok=True)
    for path in [*save(tidy(study, out, root), study.name, root), *build.build([study.name], docs, root)]:
        print(path)
    return 0


def _launch(file: Path, out: Path, workers: int) -> int:
    command = [sys.executable, "-m", "sweeps.launch", f"--sweep={file}", f"--out={out}"]
    return subprocess.run([*command, *([f"--workers={workers}"] if workers else [])], cwd=cli.CHECKOUT).returncode


def main(argv: list[str]) -> int:
    """The command."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument("name", metavar="NAME", help="the study")
    parser.add_argument("--out", default="runs/studies", metavar="DIR", help="of the sweeps; default runs/studies")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="of sweeps.launch; default: as many as fit")
    parser.add_argument("--smoke", action="store_true", help="a few updates into DIR, to show that it runs")
    given = parser.parse_args(argv)
    return run(declared.study(given.name), Path(given.out).resolve(), given.workers, given.smoke)


if __name__ == "__main__":
    cli.main(main)
