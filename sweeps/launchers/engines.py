"""Which engine runs a sweep, and what a run asks of it: the options of `sweeps.launch`."""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs.errors import UserError, nearest
from sweeps.execution import memory_check
from sweeps.execution.driver import Engine
from sweeps.launchers import resources
from sweeps.launchers.local import LocalEngine
from sweeps.spec.sweep import Sweep
from sweeps.store.state import PRIVATE

LAUNCHERS = ("local", "slurm", "ray")
# option -> (the launchers that take it, metavar, help)
OPTIONS = {
    "partition": (("slurm",), "NAME", "the partition"),
    "account": (("slurm",), "NAME", "the account that is charged"),
    "time": (("slurm",), "LIMIT", "a job's time limit (4:00:00); a run that comes to it is saved and queued again"),
    "sbatch": (("slurm",), "OPTION=VALUE", "any other option of sbatch, such as qos=high; may be given several times"),
    "ntasks": (("slurm", "ray"), "N", "processes that train a run together, over config.mesh (docs/devices.md)"),
    "nodes": (("slurm",), "N", "nodes that a run's processes are spread over"),
    "cpus": (("slurm", "ray"), "N", "processors a run; with --ntasks, each of its processes"),
    "gpus": (("slurm", "ray"), "N", "GPUs a run; with --ntasks, on each node"),
    "memory": (("slurm", "ray"), "SIZE", "memory a run, such as 16G"),
    "address": (("ray",), "HOST:PORT", "the Ray cluster; auto: the one of this machine; unset: one is started here"),
    "resource": (("ray",), "NAME=AMOUNT", "any other resource of a run; may be given several times"),
}  # fmt: skip
REPEATED = ("sbatch", "resource")
SIZES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds --launcher, --workers and the engines' options."""
    parser.add_argument(
        "--launcher", default="local", metavar="NAME", help="where runs run: local (the default), slurm or ray"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N",
        help="runs at a time: worker processes (by default by cores or devices), queued jobs, or tasks",
    )  # fmt: skip
    for name, (launchers, metavar, text) in OPTIONS.items():
        action: Any = {"action": "append"} if name in REPEATED else {}
        parser.add_argument(f"--{name}", metavar=metavar, help=f"{' and '.join(launchers)}: {text}", **action)


@dataclass(frozen=True)
class Where:
    """An engine by name, with the options given for it, as text."""

    launcher: str = "local"
    options: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def parse(given: argparse.Namespace) -> "Where":
        """Takes the engine and its options from the command line.

        Raises:
            UserError: an unknown engine, or an option that this one does not take.
        """
        if given.launcher not in LAUNCHERS:
            allowed = " or ".join(LAUNCHERS)
            raise UserError(f"--launcher={given.launcher}: must be {allowed}{nearest(given.launcher, LAUNCHERS)}")
        if given.workers is not None and given.workers < 1:
            raise UserError(f"--workers={given.workers}: must be 1 or more")
        options = {name: value for name in OPTIONS if (value := getattr(given, name)) is not None}
        for name, value in options.items():
            launchers = OPTIONS[name][0]
            if given.launcher not in launchers:
                takers = " and ".join(launchers)
                raise UserError(f"--{name}={value}: --launcher={given.launcher} does not take it; it is for {takers}")
        return Where(given.launcher, options)

    def check(self, sweep: Sweep, directory: Path) -> None:
        """Makes sure that no arm that is left to do is larger than this machine's memory; elsewhere nobody knows it.

        Raises:
            UserError: JAX does not start here.
            ConfigError: arms are too large; each with both numbers.
        """
        if self.launcher == "local":
            memory_check.check(sweep, directory, resources.machine())

    def build(self, directory: Path, workers: int | None, runs: int) -> tuple[Engine, str, bool]:
        """Returns the engine, what is told of it, and whether timed evaluations need the machine for themselves.

        Raises:
            UserError: the engine is not to be had, or an option's value is none.
        """
        if self.launcher == "local":
            here = resources.machine()
            slots = resources.places(here, workers, runs, directory / PRIVATE)
            threads = max(1, here.cores // len(slots))
            each = f", {threads} thread{'s' * (threads > 1)} each" if here.platform == "cpu" else ""
            told = f"{len(slots)} worker{'s' * (len(slots) > 1)} on {here.platform}{each}"
            return LocalEngine(slots), told, resources.shared(here, len(slots))
        cpus, gpus = _count(self.options, "cpus"), _count(self.options, "gpus")
        # Runs on processors may share a machine with others, a device belongs to one run.
        exclusive = not gpus and workers != 1
        ntasks = _count(self.options, "ntasks") or 1
        if self.launcher == "slurm":
            from sweeps.launchers import slurm

            nodes = _count(self.options, "nodes") or 1
            if ntasks % nodes:
                raise UserError(f"--ntasks={ntasks}: must be a multiple of --nodes={nodes}")
            asked = slurm.Options(
                partition=self.options.get("partition"), account=self.options.get("account"),
                time=self.options.get("time"), cpus=cpus, gpus=gpus, ntasks=ntasks, nodes=nodes,
                memory=self.options.get("memory"),
                extra=_pairs(self.options, "sbatch"),
            )  # fmt: skip
            return slurm.SlurmEngine(directory, asked, workers), "queued on Slurm", exclusive
        from sweeps.launchers import ray

        amounts = {name: _amount(name, text) for name, text in _pairs(self.options, "resource").items()}
        memory = _bytes(self.options["memory"]) if "memory" in self.options else None
        wanted = ray.Options(self.options.get("address"), cpus or 1, gpus or 0, memory, amounts, ntasks)
        return ray.RayEngine(directory, wanted, workers), "handed to Ray", exclusive


def _count(options: dict[str, Any], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not str(text).isdigit() or (name != "gpus" and int(text) < 1):
        raise UserError(f"--{name}={text}: must be a whole number, {0 if name == 'gpus' else 1} or more")
    return int(text)


def _pairs(options: dict[str, Any], name: str) -> dict[str, str]:
    pairs = {}
    for text in options.get(name, []):
        key, separator, value = text.partition("=")
        key = key.strip().lstrip("-")
        if not key:
            raise UserError(f"--{name}={text}: must be {OPTIONS[name][1]}")
        # sbatch has options without a value, such as exclusive.
        if not separator and name == "resource":
            raise UserError(f"--{name}={text}: must be {OPTIONS[name][1]}")
        pairs[key] = value if separator else True
    return pairs  # type: ignore[return-value]


def _amount(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--resource={name}={text}: must be a number") from None


def _bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in SIZES else (text, "M")
    if not number.isdigit() or int(number) < 1:
        raise UserError(f"--memory={text}: must be a size, such as 512M or 16G")
    return int(number) * SIZES[unit]
