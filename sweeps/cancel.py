"""python -m sweeps.cancel DIR: saves and ends the running runs of a sweep, and its launcher.

Jobs that wait in a cluster's queue are withdrawn, with or without a running launcher. The same launch command resumes
the sweep. Exit code: 0; 1 if something is still running after --wait.
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m sweeps.cancel")

import time
from pathlib import Path

from configs import cli
from configs.errors import UserError
from sweeps.execution import policy
from sweeps.launchers import registry
from sweeps.store import jobs, lease, state
from training.run_directory.files import own

SECONDS = 240.0  # a launcher gives its runs three minutes to save


def main(argv: list[str]) -> int:
    """The command."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument("directory", metavar="DIR", help="the sweep's directory (--out of sweeps.launch)")
    parser.add_argument(
        "--wait", default=f"{SECONDS:g}s", metavar="TIME", help="how long to wait for the end (%(default)s)"
    )
    args = parser.parse_args(argv)
    return cancel(Path(args.directory).absolute(), policy.seconds(args.wait, "--wait"))


def cancel(directory: Path, wait: float = SECONDS) -> int:
    """Ends everything that runs for a sweep; returns the exit code."""
    state.read(directory)  # refuses a folder that is not a sweep
    own(directory, state.PRIVATE, f"{state.PRIVATE}/jobs")
    request = directory / state.PRIVATE / state.CANCEL
    end = time.monotonic() + wait
    try:
        if _launcher_there(directory):
            request.touch()
            print("a launcher is running: told it to save its runs and end", flush=True)
            if not _gone(directory, end):
                raise UserError(f"{directory}: the launcher is still stopping after {wait:g} s")
        left = _queued(directory, end)
    finally:
        if not _launcher_there(directory):
            request.unlink(missing_ok=True)
    board = state.run_states(directory)
    done = sum(run.complete for run in board.values())
    print(
        f"{done} of {len(board)} runs complete; nothing is running" if not left else f"still running: {', '.join(left)}"
    )
    return 1 if left else 0


def _launcher_there(directory: Path) -> bool:
    """Returns whether a launcher holds the directory's lock."""
    if not (directory / state.PRIVATE / "launch.json").exists():
        return False
    try:
        with lease.hold(directory / state.PRIVATE / "launch.lock"):
            (directory / state.PRIVATE / "launch.json").unlink(missing_ok=True)  # left by a killed launcher
            return False
    except lease.Held:
        return True


def _gone(directory: Path, end: float) -> bool:
    while time.monotonic() < end:
        if not (directory / state.PRIVATE / "launch.json").exists():
            return True
        time.sleep(0.2)
    return False


def _queued(directory: Path, end: float) -> list[str]:
    """Cancels the jobs that no launcher watches; returns the runs of those that are still running at the end."""
    alive = _alive(directory, registry.noted(directory))
    if alive:
        registry.cancel(alive)
        engines = " and ".join(sorted({record.engine for record in alive}))
        print(f"{len(alive)} job{'s' * (len(alive) > 1)} cancelled on {engines}", flush=True)
    while alive and time.monotonic() < end:
        alive = _alive(directory, alive)
        time.sleep(0.5 if alive else 0.0)
    return [record.key for record in alive]


def _alive(directory: Path, records: list[jobs.Record]) -> list[jobs.Record]:
    """Returns the records of jobs that wait or run; forgets those that the launcher reports as over."""
    said = registry.states(directory, records)
    for record in records:
        if record.key in said and said[record.key].over:
            jobs.forget(directory, record.arm, record.seed)
    return [record for record in records if record.key in said and not said[record.key].over]


if __name__ == "__main__":
    cli.main(main)
