"""The options of `sweeps.launch` about where runs run, from the launchers' declarations."""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.schema.allowed import either
from sweeps.launchers.launcher import Built, Launcher, Option
from sweeps.launchers.registry import LAUNCHERS, launcher
from sweeps.spec.sweep import Sweep


def options() -> dict[str, tuple[Option, list[str]]]:
    """Returns every option with the launchers that take it.

    Raises:
        ValueError: two launchers declare one name differently.
    """
    results: dict[str, tuple[Option, list[str]]] = {}
    for known in LAUNCHERS.values():
        for name, option in known.options.items():
            shared, takers = results.setdefault(name, (option, []))
            if shared != option:
                raise ValueError(f"--{name} is declared differently by {takers[0]} and {known.name}")
            takers.append(known.name)
    return results


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds --launcher, --workers and the launchers' options."""
    default, *others = LAUNCHERS
    action = parser.add_argument(
        "--launcher", default=default, metavar="NAME",
        help=f"where runs run: {either([f'{default} (the default)', *others])}",
    )  # fmt: skip
    action.values = list(LAUNCHERS)  # type: ignore[attr-defined] # for completion; a wrong name has its own message
    parser.add_argument(
        "--workers", type=int, metavar="N",
        help="runs at a time: worker processes (by default by cores or devices), queued jobs, or tasks",
    )  # fmt: skip
    for name, (option, takers) in options().items():
        repeated: Any = {"action": "append"} if option.repeated else {}
        parser.add_argument(
            f"--{name}", dest=name, metavar=option.metavar, help=f"{' and '.join(takers)}: {option.help}", **repeated
        )


@dataclass(frozen=True)
class Where:
    """A launcher by name, with its options as text."""

    name: str = "local"
    options: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def parse(given: argparse.Namespace) -> "Where":
        """Parses the launcher and its options from the command line.

        Raises:
            UserError: an unknown launcher, or an option that it does not take.
        """
        chosen = launcher(given.launcher)
        if given.workers is not None and given.workers < 1:
            raise UserError(f"--workers={given.workers}: must be 1 or more")
        known = options()
        results = {name: value for name in known if (value := getattr(given, name)) is not None}
        for name, value in results.items():
            if name not in chosen.options:
                takers = " and ".join(known[name][1])
                raise UserError(f"--{name}={value}: --launcher={chosen.name} does not take it; it is for {takers}")
        return Where(chosen.name, results)

    @property
    def launcher(self) -> Launcher:
        """The launcher's object."""
        return launcher(self.name)

    def check(self, sweep: Sweep, directory: Path) -> None:
        """Refuses a sweep that cannot run there, before anything is written.

        Raises:
            UserError: JAX does not start here.
            ConfigError: arms exceed this machine's memory; each with required and available memory.
        """
        self.launcher.check(sweep, directory)

    def build(self, directory: Path, workers: int | None, runs: int) -> Built:
        """Returns the engine, for `runs` jobs.

        Raises:
            UserError: the launcher is unavailable, or an option has an invalid value.
        """
        return self.launcher.build(directory, self.options, workers, runs)

    def preview(self, directory: Path, workers: int | None, runs: int) -> bool:
        """Writes the manifest if --manifest is given; returns whether it did.

        Raises:
            UserError: an option has an invalid value, the manifest is refused, or the file cannot be written.
        """
        file, preview = self.options.get("manifest"), self.launcher.preview
        if file is None or preview is None:
            return False
        text = preview(directory, self.options, workers, runs)
        try:
            Path(file).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"--manifest={file}: cannot be written: {error.strerror}") from error
        return True
