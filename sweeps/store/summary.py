"""The result of a launch, and its printed summary."""

from dataclasses import dataclass, field
from pathlib import Path

from configs.terminal import plain


@dataclass
class Summary:
    """The result of a launch, by run key."""

    failed: dict[str, str] = field(default_factory=dict)
    diverged: dict[str, str] = field(default_factory=dict)
    eval_errors: dict[str, dict[str, str]] = field(default_factory=dict)
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)  # evaluations without a result or an error
    busy: dict[str, str] = field(default_factory=dict)
    report_error: str = ""
    stopped_by: int | None = None
    cancelled: bool = False
    not_begun: int = 0  # runs not started because of --on-failure=stop or a replaced sweep.json
    replaced: bool = False  # sweep.json was replaced during the launch

    @property
    def code(self) -> int:
        """The exit code: 0; 1 if a run, an evaluation or the report failed; 128 + the signal that stopped it."""
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return (
            1
            if self.failed or self.eval_errors or self.missing or self.busy or self.report_error or self.replaced
            else 0
        )


def tell(summary: Summary, directory: Path) -> None:
    """Prints what went wrong, one line each."""
    for key, error in summary.failed.items():
        log = directory / "runs" / key / "log.txt"
        _say(f"failed: {key}: {error}{f' (see {log})' if log.exists() else ''}")
    for key, error in summary.diverged.items():
        _say(f"diverged: {key}: {error}")
    for key, errors in summary.eval_errors.items():
        for name, error in errors.items():
            _say(f"evaluation failed: {key}: {name}: {error} (see {directory / 'runs' / key / 'log.txt'})")
    for key, names in summary.missing.items():
        _say(f"not evaluated: {key}: {', '.join(names)} (the same command retries)")
    for key, error in summary.busy.items():
        _say(f"left alone: {key}: {error}")
    if summary.not_begun:
        why = "sweep.json was replaced" if summary.replaced else "--on-failure=stop"
        _say(f"{summary.not_begun} run{'s were' if summary.not_begun > 1 else ' was'} not started ({why})")
    if summary.replaced:
        _say(f"{directory / 'sweep.json'} was replaced during this launch; the report is not built")
    if summary.stopped_by is not None:
        _say(f"{'cancelled' if summary.cancelled else 'stopped'}; the same command resumes {directory}")


def _say(line: str) -> None:
    print(plain(line))
