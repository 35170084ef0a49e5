"""python -m sweeps.launch: runs a sweep file: trains what is not yet done, evaluates it, and builds the report.

The same call again resumes: finished runs are left as they are, stopped ones continue, failed ones are tried again.
Ctrl-C or SIGTERM saves the runs at work first. Exit code: 0; 1 where a run or an evaluation failed; 2 for a mistake
in the sweep file or on the command line; 130 or 143 where it was stopped.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from configs import cli
from configs.errors import UserError
from sweeps import display, expand, places, state
from sweeps.driver import Driver, Functions, Summary, signals
from sweeps.local import LocalEngine
from sweeps.standing import now

LAUNCHERS = ("local",)


def launch(
    sweep: expand.Sweep,
    directory: Path,
    *,
    workers: int | None = None,
    functions: Functions | None = None,
    report: Callable[[Path], Any] | None = None,
) -> Summary:
    """Runs what is left of a sweep on this machine.

    Args:
        sweep: expanded.
        directory: the sweep's directory, new or one to go on with.
        workers: worker processes; None: what the machine takes.
        functions: what trains and evaluates.
        report: builds the report once runs are through; it is not built where a signal stopped the sweep.

    Raises:
        UserError: another launcher works there, or the directory holds something else.
        ConfigError: runs on disk contradict the sweep.
    """
    directory = directory.absolute()
    with state.launching(directory):
        change = state.take_up(directory, sweep, now())
        here = places.machine()
        slots = places.places(here, workers, len(sweep.runs()), directory / state.PRIVATE)
        engine = LocalEngine(slots)
        with signals() as caught, display.display() as shown:
            _announce(shown, sweep, directory, here, len(slots), change)
            exclusive = places.shared(here, len(slots))
            driver = Driver(directory, sweep, engine, shown, functions=functions, exclusive=exclusive)
            try:
                summary = driver.drive(caught)
            finally:
                engine.close()
        tell(summary, directory)
        if report is not None and summary.stopped_by is None:
            _report(report, directory, summary)
        return summary


def _announce(
    shown: Any, sweep: expand.Sweep, directory: Path, here: places.Machine, workers: int, change: state.Change
) -> None:
    runs = len(sweep.runs())
    arms = sum(len(study.arms) for study in sweep.studies)
    threads = max(1, here.cores // workers)
    each = f", {threads} thread{'s' * (threads > 1)} each" if here.platform == "cpu" else ""
    shown.say(
        f"sweep {sweep.name}: {arms} arms, {runs} runs into {directory}; {workers} worker{'s' * (workers > 1)} on "
        f"{here.platform}{each}"
    )
    if change.added:
        shown.say(f"new in the sweep file: {', '.join(change.added)}")
    if change.dropped:
        shown.say(f"no longer in the sweep file, their runs stay: {', '.join(change.dropped)}")


def tell(summary: Summary, directory: Path) -> None:
    """Prints what went wrong, a line each, by name."""
    for key, error in summary.failed.items():
        print(f"failed: {key}: {error} (see {directory / 'runs' / key / 'log.txt'})")
    for key, error in summary.diverged.items():
        print(f"diverged: {key}: {error}")
    for key, errors in summary.eval_errors.items():
        for name, error in errors.items():
            print(f"evaluation failed: {key}: {name}: {error} (see {directory / 'runs' / key / 'log.txt'})")
    for key, error in summary.busy.items():
        print(f"left alone: {key}: {error}")
    if summary.stopped_by is not None:
        print(f"stopped; the same command goes on with {directory}")


def _report(report: Callable[[Path], Any], directory: Path, summary: Summary) -> None:
    try:
        print(f"report: {report(directory)}", flush=True)
    except Exception as error:
        summary.report_error = f"{type(error).__name__}: {error}"
        print(f"the report failed: {summary.report_error} (python -m report.build {directory} tries again)")


def build_report(directory: Path) -> Path:
    """Builds the report of a sweep directory; returns its page."""
    from report.build import build  # pandas and Altair take a second, which --help should not

    return build(directory)


def main(argv: list[str]) -> int:
    """The command."""
    overrides, rest = cli.split_overrides(argv)
    parser = cli.parser(__doc__ or "")
    parser.add_argument("--sweep", required=True, metavar="FILE", help="a sweep file, such as configs/sweeps/demo.py")
    parser.add_argument("--out", required=True, metavar="DIR", help="the sweep's directory; made, or gone on with")
    parser.add_argument("--launcher", default="local", metavar="NAME", help="where runs run: local (the default)")
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes; by default by cores or devices")
    parser.epilog = "--config.x=v changes a field of every arm."
    given = parser.parse_args(rest)
    if given.launcher not in LAUNCHERS:
        raise UserError(f"--launcher={given.launcher}: must be {' or '.join(LAUNCHERS)}")
    if given.workers is not None and given.workers < 1:
        raise UserError(f"--workers={given.workers}: must be 1 or more")
    sweep = expand.load(given.sweep, overrides)
    return launch(sweep, Path(given.out), workers=given.workers, report=build_report).code


if __name__ == "__main__":
    cli.main(main)
