"""Several processes as one JAX cluster, and values that they must agree on.

The starter of the processes describes them in the environment, and JAX reads most of it itself; `ABLAX_CLUSTER`
overrides:

    auto        (default) the first of these that is present
    address     JAX_COORDINATOR_ADDRESS=HOST:PORT, JAX_NUM_PROCESSES, JAX_PROCESS_ID; a Kubernetes Indexed Job's
                JOB_COMPLETION_INDEX replaces the last
    slurm       `srun -n N`
    k8s         a Kubernetes JobSet or Indexed Job whose service account may read its own pods (package `kubernetes`)
    ompi        mpirun of Open MPI
    tpu         the hosts of a TPU pod slice (metadata of Google Cloud or GKE)
    none        one process, whatever the environment says

If a process dies, the others end within seconds (`partners.py`); one without a sign of life counts as dead after
ABLAX_HEARTBEAT seconds (100).

Ray sets none of these; `sweeps/launchers/ray.py` gives its tasks the first kind.
"""

import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from configs.errors import UserError
from training.runtime import partners

KINDS = ("auto", "address", "slurm", "k8s", "ompi", "tpu", "none")
ADDRESS, NUMBER, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
PATIENCE = 24 * 3600 * 1000  # milliseconds to wait for the others: preparing a corpus may take long
LAG = 2  # steps after which all processes know that one of them received a stop signal

_count = itertools.count()


def slurm_tasks(env: Mapping[str, str]) -> int:
    """Returns how many processes `srun` started together with this one; 1 without Slurm."""
    if "SLURM_PROCID" not in env or "SLURM_STEP_NODELIST" not in env:
        return 1
    # `sbatch` also sets SLURM_NTASKS for its script, which is one process; only srun sets the step's number.
    try:
        return int(env.get("SLURM_STEP_NUM_TASKS", "1"))
    except ValueError:
        return 1


def kind_of(env: Mapping[str, str]) -> str:
    """Returns by which of KINDS this process belongs to others; none if it is alone.

    Raises:
        UserError: ABLAX_CLUSTER is not one of them.
    """
    requested = env.get("ABLAX_CLUSTER", "auto")
    if requested not in KINDS:
        raise UserError(f"ABLAX_CLUSTER={requested}: must be {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    if requested != "auto":
        return requested
    if env.get(ADDRESS):
        return "address"
    if slurm_tasks(env) > 1:
        return "slurm"
    if int(env.get("OMPI_COMM_WORLD_SIZE", "1") or 1) > 1:
        return "ompi"
    # A TPU host of a slice lists all of them; a single host needs no others.
    if env.get("TPU_WORKER_HOSTNAMES", "").count(","):
        return "tpu"
    if env.get("KUBERNETES_SERVICE_HOST") and env.get("JOB_COMPLETION_INDEX") and env.get("JOBSET_NAME"):
        return "k8s"
    return "none"


def arguments(kind: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Returns the arguments of `jax.distributed.initialize`.

    Raises:
        UserError: a variable is missing or not a number.
    """
    if kind != "address":
        method = {"slurm": "slurm", "ompi": "ompi", "k8s": "k8s"}.get(kind)
        return {} if method is None else {"cluster_detection_method": method}
    index = INDEX if INDEX in env else "JOB_COMPLETION_INDEX"
    numbers = {}
    for name in (NUMBER, index):
        text = env.get(name, "")
        if not text.isdigit():
            message = INDEX if name == "JOB_COMPLETION_INDEX" and name not in env else name
            raise UserError(f"{message}={text}: with {ADDRESS}={env.get(ADDRESS, '')} it must be a whole number")
        numbers[name] = int(text)
    if ":" not in env.get(ADDRESS, ""):
        raise UserError(f"{ADDRESS}={env.get(ADDRESS, '')}: must be HOST:PORT of process 0")
    if not numbers[index] < numbers[NUMBER]:
        raise UserError(f"{index}={numbers[index]}: must be below {NUMBER}={numbers[NUMBER]}")
    return {
        "coordinator_address": env[ADDRESS],
        "num_processes": numbers[NUMBER],
        "process_id": numbers[index],
        "cluster_detection_method": "deactivate",
    }


def heartbeat(env: Mapping[str, str]) -> int:
    """Returns after how many seconds without a sign of life a process counts as dead.

    Raises:
        UserError: ABLAX_HEARTBEAT is not a whole number above 0.
    """
    text = env.get("ABLAX_HEARTBEAT", "100")
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"ABLAX_HEARTBEAT={text}: must be seconds, a whole number above 0")
    return int(text)


def initialise() -> bool:
    """Joins the processes that were started together; returns whether there are several. Before any device work.

    Raises:
        UserError: the environment is incomplete, or they do not connect.
    """
    kind = kind_of(os.environ)
    if kind == "none" or (kind == "slurm" and slurm_tasks(os.environ) < 2):
        return False
    given = arguments(kind, os.environ)
    if given.get("num_processes") == 1:
        return False
    import jax

    if not jax.distributed.is_initialized():
        # Collectives must also work on the CPU.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        try:
            jax.distributed.initialize(**given, heartbeat_timeout_seconds=heartbeat(os.environ))
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"processes cannot connect to one another ({kind}): {str(error).splitlines()[0]}"
            ) from error
        _watch()
    return jax.process_count() > 1


def _watch() -> None:
    from jax._src import distributed  # as in `_exchanged`

    state = distributed.global_state
    if state.client is not None and state.coordinator_address and (state.num_processes or 1) > 1:
        host = state.coordinator_address.rpartition(":")[0].strip("[]")
        partners.watch(state.client, state.process_id, state.num_processes or 1, host)


def end_with(error: Exception) -> None:
    """Ends this process of several at once, after printing its error: a normal exit would wait for the others.

    They learn from JAX that it is gone, and end too. A single process continues.
    """
    import jax

    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return
    if isinstance(error, UserError):
        print("\n".join(f"error: {line}" for line in str(error).splitlines()), file=sys.stderr)
    else:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(2 if isinstance(error, UserError) else 1)


def main() -> bool:
    """Returns whether this process writes the files of a run."""
    import jax

    return jax.process_index() == 0


def agreed(function: Callable[[], Any]) -> Any:
    """Calls a function in every process and returns process 0's value, which must be JSON-able.

    No devices are used, so that a process may take a long time.

    Raises:
        UserError: it failed in another process. If it failed here, its own error.
    """
    import jax

    if jax.process_count() == 1:
        return function()
    value, error = None, None
    try:
        value = function()
    except Exception as failed:
        error = failed
    messages = {"error": error and f"{type(error).__name__}: {error}", "value": value if main() else None}
    result = _exchanged(json.dumps(messages))
    if error is not None:
        raise error
    for process, other in enumerate(result):
        if other["error"]:
            raise UserError(f"process {process} of {len(result)}: {other['error']}")
    return result[0]["value"]


def _exchanged(text: str) -> list[Any]:
    import jax
    from jax._src import distributed  # the key-value store used by JAX itself; it has no public name

    client, key = distributed.global_state.client, f"ablax/{next(_count)}"
    assert client is not None
    client.key_value_set(f"{key}/{jax.process_index()}", text)
    every = range(jax.process_count())
    return [json.loads(client.blocking_key_value_get(f"{key}/{process}", PATIENCE)) for process in every]


def shared_seconds(seconds: float) -> float:
    """Returns process 0's clock: decisions that depend on time must be the same everywhere."""
    import jax

    if jax.process_count() == 1:
        return seconds
    import numpy as np
    from jax.experimental import multihost_utils

    return float(multihost_utils.broadcast_one_to_all(np.float32(seconds)))


class Stopping:
    """Whether any process received a stop signal; all of them learn it before the same step.

    At each step a flag of every process is summed on the devices, after the step itself, and read LAG steps later, when
    it is already there: no process waits for it.
    """

    def __init__(self) -> None:
        import jax

        self.alone = jax.process_count() == 1
        self.waiting: list[Any] = []
        if not self.alone:
            import numpy as np
            from jax.sharding import Mesh, NamedSharding, PartitionSpec

            mesh = Mesh(np.array(jax.devices()), ("all",))
            self.cut, self.shape = NamedSharding(mesh, PartitionSpec("all")), (len(jax.devices()),)
            self.largest = jax.jit(lambda x: x.max(), out_shardings=NamedSharding(mesh, PartitionSpec()))

    def __call__(self, caught: list[int]) -> int:
        """Takes the signals this process has caught; returns one that any process caught, 0: none. Once per step."""
        own = caught[0] if caught else 0
        if self.alone:
            return own
        import jax
        import numpy as np

        flags = jax.make_array_from_callback(self.shape, self.cut, lambda _: np.full(1, own, np.int32))
        self.waiting.append(self.largest(flags))
        return int(self.waiting.pop(0)) if len(self.waiting) > LAG else 0
