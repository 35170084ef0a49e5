"""Whether an arm can fit into this machine's memory, checked for all arms before launching. Arithmetic only, no JAX.

The check uses the minimum that every program needs; programs need more, above all for activations, and `sweeps.plan`
has the exact bytes.
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
    """Checks that every arm with runs left to train could fit.

    Args:
        sweep: expanded.
        directory: the sweep's; arms whose runs have all started are not checked.
        here: the machine that trains the runs.

    Raises:
        ConfigError: arms cannot fit; one line each, with required and available memory.
    """
    problems = []
    for study in sweep.studies:
        for arm in study.arms:
            needed = held(arm.config, here)
            if here.memory and needed > here.memory and _left(arm, study.seeds, directory):
                problems.append(
                    f"{arm.name} does not fit: its parameters, gradients and optimizer alone need {size(needed)}, and "
                    f"this {'machine' if here.platform == 'cpu' else here.platform} has {size(here.memory)} "
                    f"({commands.spelled('sweeps.plan')} --sweep={sweep.file} shows all that an arm needs)"
                )
    if problems:
        raise ConfigError(problems)


def held(config: ConfigDict, here: Machine) -> int:
    """Returns the minimum bytes on a device for a resolved config's training step."""
    return memory.held(config, here.platform, here.devices)


def _left(arm: Arm, seeds: tuple[int, ...], directory: Path) -> bool:
    statuses = [worker.run_json(state.run_dir(directory, arm.name, seed)).get("status") for seed in seeds]
    return any(status not in FINISHED for status in statuses)
