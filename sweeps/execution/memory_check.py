"""Whether this machine can hold an arm at all, told of each before anything is launched. Arithmetic alone, no JAX.

What is held here against the memory is what no compiler can do without; a program needs more, for its activations
above all, and `sweeps.plan` has that to the byte.
"""

from pathlib import Path

from ml_collections import ConfigDict

from configs import commands
from configs.errors import ConfigError
from sweeps.execution import worker
from sweeps.launchers.resources import Machine
from sweeps.plans.table import size
from sweeps.spec.sweep import Arm, Sweep
from sweeps.store import state
from sweeps.store.run_status import FINISHED
from training.devices import memory


def check(sweep: Sweep, directory: Path, here: Machine) -> None:
    """Makes sure that every arm with runs left to train could fit.

    Args:
        sweep: expanded.
        directory: the sweep's; arms whose runs are all there already are let be.
        here: where the runs would train.

    Raises:
        ConfigError: arms cannot fit; a line each, with what it needs and what there is.
    """
    problems = []
    for study in sweep.studies:
        for arm in study.arms:
            needed = held(arm.config, here)
            if here.memory and needed > here.memory and _left(arm, study.seeds, directory):
                problems.append(
                    f"{arm.name} does not fit: its parameters, gradients and optimizer alone need {size(needed)}, and "
                    f"this {'machine' if here.platform == 'cpu' else here.platform} has {size(here.memory)} "
                    f"({commands.spelled('sweeps.plan')} --sweep={sweep.file} tells all that an arm needs)"
                )
    if problems:
        raise ConfigError(problems)


def held(config: ConfigDict, here: Machine) -> int:
    """Returns the least bytes that a device must hold for a resolved config's training step."""
    return memory.held(config, here.platform, here.devices)


def _left(arm: Arm, seeds: tuple[int, ...], directory: Path) -> bool:
    statuses = [worker.run_json(state.run_dir(directory, arm.name, seed)).get("status") for seed in seeds]
    return any(status not in FINISHED for status in statuses)
