"""How processes know of one another: what the environment says, and what is missing in it."""

import jax
import pytest

from configs.errors import UserError
from training.runtime import distributed, failures

ADDRESS = {"JAX_COORDINATOR_ADDRESS": "node1:1234", "JAX_NUM_PROCESSES": "4"}
SRUN = {"SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "n1", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize("env, expected", [
    ({}, "none"),
    (SRUN, "slurm"),
    (SRUN | {"SLURM_STEP_NUM_TASKS": "1"}, "none"),
    (SRUN | ADDRESS, "address"),
    (SRUN | {"ABLAX_CLUSTER": "none"}, "none"),
    ({"OMPI_COMM_WORLD_SIZE": "2"}, "ompi"),
    ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0"}, "tpu"),
    ({"TPU_WORKER_HOSTNAMES": "localhost"}, "none"),
    ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1", "JOBSET_NAME": "x"}, "k8s"),
    ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "none"),
    ({"ABLAX_CLUSTER": "tpu"}, "tpu"),
])  # fmt: skip
def test_who_started_the_processes(env, expected):
    assert distributed.kind_of(env) == expected


def test_an_address_is_taken_as_it_is_given():
    result = distributed.arguments("address", ADDRESS | {"JAX_PROCESS_ID": "3"})
    assert result == {
        "coordinator_address": "node1:1234", "num_processes": 4, "process_id": 3,
        "cluster_detection_method": "deactivate",
    }  # fmt: skip
    # A Kubernetes Indexed Job numbers its pods itself.
    assert distributed.arguments("address", ADDRESS | {"JOB_COMPLETION_INDEX": "2"})["process_id"] == 2


@pytest.mark.parametrize("env, expected", [
    (ADDRESS, "JAX_PROCESS_ID=: with JAX_COORDINATOR_ADDRESS=node1:1234 it must be a whole number"),
    (ADDRESS | {"JAX_PROCESS_ID": "4"}, "JAX_PROCESS_ID=4: must be below JAX_NUM_PROCESSES=4"),
    (ADDRESS | {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES=two: "),
    (ADDRESS | {"JAX_PROCESS_ID": "0", "JAX_COORDINATOR_ADDRESS": "node1"}, "JAX_COORDINATOR_ADDRESS=node1: must be"),
])  # fmt: skip
def test_what_is_missing_is_told_in_a_line(env, expected):
    with pytest.raises(UserError) as message:
        distributed.arguments("address", env)
    assert str(message.value).startswith(expected) and "\n" not in str(message.value)


def test_how_long_a_process_may_be_silent():
    assert distributed.heartbeat({}) == 100 and distributed.heartbeat({"ABLAX_HEARTBEAT": "900"}) == 900
    with pytest.raises(UserError, match="ABLAX_HEARTBEAT=soon: must be seconds"):
        distributed.heartbeat({"ABLAX_HEARTBEAT": "soon"})


def test_an_unknown_kind_is_refused():
    with pytest.raises(UserError, match="ABLAX_CLUSTER=mpi: must be auto, address"):
        distributed.kind_of({"ABLAX_CLUSTER": "mpi"})


def test_alone_everything_is_agreed_at_once():
    assert distributed.agreed(lambda: {"a": 1}) == {"a": 1} and distributed.main()
    stopping = distributed.Stopping()
    assert stopping([]) == 0 and stopping([15]) == 15


@pytest.mark.parametrize("error", [
    ValueError("UNKNOWN: Gloo all-reduce failed: [gloo/transport/tcp/pair.cc:547] Connection closed by peer"),
    jax.errors.JaxRuntimeError("INTERNAL: NCCL operation ncclAllReduce failed: remote process exited"),
    jax.errors.JaxRuntimeError("UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n/task:1"),
])  # fmt: skip
def test_a_process_that_is_gone_is_told_in_a_line(error, tmp_path):
    message = failures.explained(error, tmp_path)
    assert message.startswith(f"the processes of this run lost one another ({str(error)[:20]}") and "\n" not in message
    assert message.endswith("run the same command again to resume from the newest checkpoint")
    assert failures.explained(ValueError("shapes differ"), tmp_path) is None
