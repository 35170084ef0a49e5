"""python -m sweeps.launch: runs a sweep file: trains the runs that are not done, evaluates them, builds the report.

A plan of seeds (`seeds=dict(looks=, care=)`) is followed look by look until every comparison is decided. The same
command again resumes: finished runs are skipped, stopped ones continue, failed ones are retried. Ctrl-C or SIGTERM
saves the running runs first; on Slurm it leaves them to the cluster. Exit code: 0; 1 if a run or an evaluation failed;
2 for a mistake in the sweep file or on the command line; 130 or 143 if it was stopped.
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m sweeps.launch")

from collections.abc import Callable
from pathlib import Path
from typing import Any

from configs import cli, commands
from sweeps import display
from sweeps.execution import packs
from sweeps.execution import policy as policies
from sweeps.execution.driver import Driver, Functions, signals
from sweeps.execution.policy import Policy
from sweeps.launchers import engines
from sweeps.spec import expand, looks
from sweeps.spec.sweep import Sweep
from sweeps.store import state
from sweeps.store.run_status import now
from sweeps.store.summary import Summary, tell


def launch(
    sweep: Sweep,
    directory: Path,
    *,
    workers: int | None = None,
    functions: Functions | None = None,
    report: Callable[[Path], Any] | None = None,
    policy: Policy | None = None,
    where: engines.Where | None = None,
    pack: int = 1,
) -> Summary:
    """Runs what is left of a sweep.

    Args:
        sweep: expanded.
        directory: the sweep's directory, new or to be resumed.
        workers: runs at a time; None: as many as the machine or the cluster allows.
        functions: for training and evaluation.
        report: builds the report after the runs; not called if a signal stopped the sweep.
        policy: handling of failures.
        where: the launcher; None: this machine.
        pack: runs of equal shapes that a worker trains in one program; on this machine only.

    Raises:
        UserError: another launcher works there, the directory has something else, or the launcher is unavailable.
        ConfigError: runs on disk contradict the sweep, or an arm exceeds this machine's memory.
    """
    directory, where = directory.absolute(), where or engines.Where()
    where.check(sweep, directory)
    with state.launching(directory):
        sweep = state.continued(directory, sweep)
        change = state.take_up(directory, sweep, now())
        with signals() as caught, display.display() as shown:
            built = where.build(directory, workers, -(-len(sweep.runs()) // pack))
            try:
                _announce(shown, sweep, directory, built.words, change)
                while True:
                    driver = Driver(
                        directory,
                        sweep,
                        built.engine,
                        shown,
                        functions=functions,
                        exclusive=built.exclusive,
                        policy=policy,
                        pack=pack,
                    )
                    summary = driver.drive(caught)
                    more, said = (sweep, []) if summary.code else looks.grown(sweep, directory)
                    for line in said:
                        shown.say(line)
                    if len(more.runs()) == len(sweep.runs()):
                        break
                    sweep = more
                    state.take_up(directory, sweep, now())
            finally:
                built.engine.close()
        tell(summary, directory)
        if report is not None and summary.stopped_by is None and not summary.replaced:
            _report(report, directory, summary)
        return summary


def _announce(shown: Any, sweep: Sweep, directory: Path, message: str, change: state.Change) -> None:
    runs = len(sweep.runs())
    arms = sum(len(study.arms) for study in sweep.studies)
    shown.say(f"sweep {sweep.name}: {arms} arms, {runs} runs into {directory}; {message}")
    if change.added:
        shown.say(f"new in the sweep file: {', '.join(change.added)}")
    if change.dropped:
        shown.say(f"no longer in the sweep file, their runs stay: {', '.join(change.dropped)}")


def _report(report: Callable[[Path], Any], directory: Path, summary: Summary) -> None:
    try:
        print(f"report: {report(directory)}", flush=True)
    except Exception as error:
        summary.report_error = f"{type(error).__name__}: {error}"
        again = f"{commands.spelled('report.build')} {directory}"
        print(f"the report failed: {summary.report_error} ({again} retries)")


def build_report(directory: Path) -> Path:
    """Builds the report of a sweep directory; returns its page."""
    from report.build import build  # pandas and Altair take a second to import, which --help should not

    return build(directory)


def main(argv: list[str]) -> int:
    """The command."""
    overrides, rest = cli.split_overrides(argv)
    parser = cli.parser(__doc__ or "")
    parser.add_argument("--sweep", required=True, metavar="FILE", help="a sweep file, such as configs/sweeps/demo.py")
    parser.add_argument("--out", required=True, metavar="DIR", help="the sweep's directory; created, or resumed")
    engines.add_options(parser)
    parser.add_argument(
        "--on-failure",
        default="continue",
        metavar="WHAT",
        help="continue (the default), or stop: start no more runs once one has failed permanently",
    )
    parser.add_argument(
        "--retries",
        type=int,
        default=0,
        metavar="N",
        help="retries of a failed run, from its last checkpoint (0)",
    )
    parser.add_argument(
        "--pack",
        type=int,
        default=1,
        metavar="N",
        help="train up to N runs that differ only in seed, learning rate or weight decay in one program (1); local",
    )
    parser.add_argument(
        "--run-timeout",
        metavar="TIME",
        help="a run that takes longer, including evaluations, is saved and counted as failed: 90s, 15m, 2h, 1d",
    )
    parser.epilog = "--config.x=v changes a field of every arm. docs/sweeps.md: Slurm, Ray and Kubernetes."
    args = parser.parse_args(rest)
    where = engines.Where.parse(args)
    timeout = policies.seconds(args.run_timeout, "--run-timeout") if args.run_timeout else None
    policy = Policy(args.on_failure, args.retries, timeout)
    packs.check(args.pack, where.name, where.launcher.packs)
    sweep = expand.load(args.sweep, overrides)
    out, pack = Path(args.out), args.pack
    if where.preview(out.absolute(), args.workers, len(sweep.runs())):
        print(f"{where.options['manifest']}: written; nothing was submitted")
        return 0
    return launch(sweep, out, workers=args.workers, report=build_report, policy=policy, where=where, pack=pack).code


if __name__ == "__main__":
    cli.main(main)
