"""The launcher's options for Slurm, and the environment variables of sbatch that apply beside them."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs import cli
from configs.errors import UserError

MOST = 1000  # maximum jobs in the queue, and in one array: Slurm's default
NOTICE = 120  # seconds before a job's time limit at which its run saves itself
# sbatch's variables and their options; the launcher's own option takes precedence. Others are refused.
VARIABLES = {
    "SBATCH_ACCOUNT": "account", "SBATCH_CONSTRAINT": "constraint", "SBATCH_EXCLUSIVE": "exclusive",
    "SBATCH_GPUS_PER_NODE": "gpus_per_node", "SBATCH_GRES": "gres", "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_PARTITION": "partition", "SBATCH_QOS": "qos", "SBATCH_RESERVATION": "reservation",
    "SBATCH_TIMELIMIT": "time",
}  # fmt: skip
ALLOWED = ("SBATCH_CLUSTERS", "SBATCH_DEBUG", "SBATCH_CPU_BIND", "SBATCH_MEM_BIND")  # the last: set inside jobs


@dataclass(frozen=True)
class Options:
    """A run's resources in Slurm; None: the cluster's default."""

    partition: str | None = None
    account: str | None = None
    time: str | None = None
    cpus: int | None = None
    gpus: int | None = None
    ntasks: int = 1  # processes that train a run together
    nodes: int = 1  # nodes for these processes
    memory: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # any other option of sbatch


def minutes(text: str) -> int:
    """Returns a time limit in sbatch's notation (`90`, `4:00:00`, `2-12`) in whole minutes.

    Raises:
        UserError: it is invalid.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        raise UserError(f"--time={text}: must be a time as sbatch takes it: minutes, H:MM:SS, D-H, D-H:MM or D-H:MM:SS")
    days, *rest = (int(part or 0) for part in match.groups())
    if match[1] is not None or match[4] is not None:
        hours, mins, secs = rest
    else:  # minutes, or minutes:seconds
        hours, mins, secs = 0, rest[0], rest[1]
    whole = days * 1440 + hours * 60 + mins + -(-secs // 60)
    if whole < 1:
        raise UserError(f"--time={text}: must be a minute or more")
    return whole


def parameters(directory: Path, options: Options) -> dict[str, Any]:
    """Returns submitit's parameters."""
    limit = minutes(options.time) if options.time else None
    extra = {"requeue": True, "chdir": os.getcwd(), **options.extra}
    given = dict(
        job_name=f"sweep-{directory.name}",
        partition=options.partition,
        account=options.account,
        time=limit,  # None: the partition's default
        nodes=options.nodes,
        ntasks_per_node=options.ntasks // options.nodes,
        cpus_per_task=options.cpus,
        gpus_per_node=options.gpus,
        mem=options.memory,
        array_parallelism=MOST,
        signal_delay_s=min(NOTICE, limit * 12) if limit else NOTICE,
        setup=[f'export PYTHONPATH="{cli.CHECKOUT}${{PYTHONPATH:+:$PYTHONPATH}}"'],
        stderr_to_stdout=True,
        additional_parameters=extra,
        srun_args=[
            # Since Slurm 22.05, srun does not inherit this from sbatch.
            *([f"--cpus-per-task={options.cpus}"] if options.cpus else []),
            # The first process evaluates after the others have finished.
            *(["--wait=0"] if options.ntasks > 1 else []),
        ],
    )
    return given


def variables(env: Mapping[str, str], parameters: Mapping[str, Any]) -> dict[str, str]:
    """Returns sbatch's variables that apply: those whose option was not given.

    Raises:
        UserError: one is set that would change the launcher's own decisions (SBATCH_ARRAY_INX, SBATCH_WAIT).
    """
    extra = parameters["additional_parameters"]
    clusters = [name for name in ("clusters", "M") if name in extra]
    if clusters:
        raise UserError(
            f"--sbatch={clusters[0]}={extra[clusters[0]]}: set SLURM_CLUSTERS={extra[clusters[0]]} instead, which "
            "squeue and scancel use too"
        )
    given = {name.replace("-", "_") for name, value in {**parameters, **extra}.items() if value is not None}
    for name in env:
        if name.startswith("SBATCH_") and name not in VARIABLES and not name.startswith(ALLOWED):
            raise UserError(
                f"{name}={env[name]}: a sweep does not support this variable; unset it, or use --sbatch=OPTION=VALUE "
                f"(supported are {', '.join(VARIABLES)})"
            )
    return {name: env[name] for name, option in VARIABLES.items() if name in env and option not in given}
