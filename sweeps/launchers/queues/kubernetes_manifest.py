"""The launcher's options for Kubernetes, and the manifest of an indexed Job with one completion per run.

The manifest is checked against the client's typed models: fields they do not know are mistakes, not extensions.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs.errors import UserError, nearest
from sweeps.execution.deadline import SAVING
from sweeps.launchers.resources import THREADS

MOST = 1000  # runs per Job
KEPT = 7 * 86400  # seconds that a finished Job stays in the cluster
PREFIX = "ablax-"
SWEEP, ARRAY, MANAGER = "ablax.dev/sweep", "ablax.dev/array", "app.kubernetes.io/managed-by"  # labels of a Job
NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # a DNS label, RFC 1123
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # a DNS subdomain
IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]{0,511}", re.ASCII)
KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
VALUE = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
# GKE's names of TPU generations, and the single-host topologies (a run is one pod), with their chips.
# https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
TPUS = {
    "v4": ("tpu-v4-podslice", {"2x2x1": 4}),
    "v5e": ("tpu-v5-lite-podslice", {"1x1": 1, "2x2": 4, "2x4": 8}),
    "v5p": ("tpu-v5p-slice", {"2x2x1": 4}),
    "v6e": ("tpu-v6e-slice", {"1x1": 1, "2x2": 4, "2x4": 8}),
}


@dataclass(frozen=True)
class Options:
    """A run's resources in Kubernetes; None: the cluster's default.

    Attributes:
        image: of the container, with this checkout and its environment.
        checkout: path of the checkout in the image.
        claim: the PersistentVolumeClaim with the sweep's directory.
        mount: where the claim is mounted: here, and in the pods.
        memory: in bytes.
        tpu: (generation, topology).
        selector: further labels of the nodes.
        tolerate: taints of nodes, of any effect.
    """

    image: str
    claim: str
    mount: Path
    namespace: str | None = None
    context: str | None = None
    checkout: str = "/ablax"
    python: str = "python"
    account: str | None = None
    cpus: int | None = None
    gpus: int | None = None
    memory: int | None = None
    tpu: tuple[str, str] | None = None
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerate: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()  # of the worker, if not the default ones


def job_name(array: str) -> str:
    """Returns the name of the Job of an array's folder."""
    return f"{PREFIX}{array}"


def sweep_label(directory: Path) -> str:
    """Returns the label that identifies the sweep's directory, whose path may not be a valid label."""
    return hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:32]


def tpu(text: str) -> tuple[str, str]:
    """Returns the parts of --tpu=GENERATION:TOPOLOGY.

    Raises:
        UserError: it does not exist, or spans more than one host.
    """
    generation, _, topology = text.partition(":")
    if generation not in TPUS:
        raise UserError(f"--tpu={text}: must be {', '.join(TPUS)} with a topology{nearest(generation, TPUS)}")
    allowed = TPUS[generation][1]
    if topology not in allowed:
        raise UserError(
            f"--tpu={text}: must be {' or '.join(f'{generation}:{one}' for one in allowed)}; a run is one pod, but "
            "larger slices are several hosts"
        )
    return generation, topology


def checked(options: Options, directory: Path) -> Options:
    """Returns the options after checking that Kubernetes accepts every name in them.

    Raises:
        UserError: naming the option.
    """
    for option, value, pattern in (
        ("namespace", options.namespace, NAMESPACE),
        ("claim", options.claim, NAME),
        ("image", options.image, IMAGE),
        ("service-account", options.account, NAME),
    ):
        if value is not None and not pattern.fullmatch(value):
            raise UserError(f"--{option}={value}: is not a name that Kubernetes accepts")
    for key, value in options.selector.items():
        if not KEY.fullmatch(key) or not VALUE.fullmatch(str(value)):
            raise UserError(f"--node-selector={key}={value}: is not a label that Kubernetes accepts")
    for key in options.tolerate:
        if not KEY.fullmatch(key):
            raise UserError(f"--tolerate={key}: is not a taint key that Kubernetes accepts")
    if not options.mount.is_absolute() or not options.checkout.startswith("/"):
        raise UserError(f"--mount={options.mount}, --checkout={options.checkout}: must be absolute paths")
    if options.mount != directory.absolute() and options.mount not in directory.absolute().parents:
        raise UserError(f"--mount={options.mount}: --out={directory} must be in it, because pods read the sweep there")
    if options.tpu and options.gpus:
        raise UserError(f"--tpu={':'.join(options.tpu)}: a run has TPUs or GPUs, not both")
    return options


def resources(options: Options) -> dict[str, str]:
    """Returns a container's requests and limits."""
    amounts = {
        "cpu": str(options.cpus) if options.cpus else "",
        "memory": str(options.memory) if options.memory else "",
        "nvidia.com/gpu": str(options.gpus) if options.gpus else "",
        "google.com/tpu": str(TPUS[options.tpu[0]][1][options.tpu[1]]) if options.tpu else "",
    }
    return {name: amount for name, amount in amounts.items() if amount}


def manifest(directory: Path, array: str, runs: int, parallelism: int, options: Options) -> dict[str, Any]:
    """Returns the Job of an array: `runs` completions, `parallelism` of them at a time.

    Pods ended by Kubernetes (eviction, preemption, a drained or lost node: the condition DisruptionTarget) are
    recreated and continue from their checkpoints; every other death is handled by the launcher, by --retries.
    """
    folder = directory.absolute() / ".sweep" / "kubernetes" / array
    amounts = resources(options)
    selector = {str(key): str(value) for key, value in options.selector.items()}
    tolerations = [{"key": key, "operator": "Exists"} for key in options.tolerate]
    if options.tpu:
        selector |= {
            "cloud.google.com/gke-tpu-accelerator": TPUS[options.tpu[0]][0],
            "cloud.google.com/gke-tpu-topology": options.tpu[1],
        }
        tolerations.append({"key": "google.com/tpu", "operator": "Exists"})
    if options.gpus:
        tolerations.append({"key": "nvidia.com/gpu", "operator": "Exists"})
    env = {"PYTHONUNBUFFERED": "1", **(dict.fromkeys(THREADS, str(options.cpus)) if options.cpus else {})}
    labels = {MANAGER: "ablax", SWEEP: sweep_label(directory), ARRAY: array}
    container: dict[str, Any] = {
        "name": "run",
        "image": options.image,
        "command": [options.python, "-m", "sweeps.launchers.kubernetes_pod", str(folder), *options.functions],
        "workingDir": options.checkout,
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "volumeMounts": [{"name": "sweep", "mountPath": str(options.mount)}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if amounts:
        container["resources"] = {"requests": dict(amounts), "limits": dict(amounts)}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": int(SAVING) + 30,
        "containers": [container],
        "volumes": [{"name": "sweep", "persistentVolumeClaim": {"claimName": options.claim}}],
        "automountServiceAccountToken": False,  # a run does not access the cluster
    }
    if options.account:
        pod["serviceAccountName"] = options.account
    if selector:
        pod["nodeSelector"] = selector
    if tolerations:
        pod["tolerations"] = tolerations
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(array),
            "labels": labels,
            "annotations": {"ablax.dev/directory": str(directory.absolute())},
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": runs,
            "parallelism": min(parallelism, runs),
            "backoffLimitPerIndex": 0,
            "podFailurePolicy": {"rules": [disrupted]},
            "ttlSecondsAfterFinished": KEPT,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def typed(manifest: Mapping[str, Any]) -> Any:
    """Returns a manifest as the client's typed model, which is generated from the API's OpenAPI description.

    Raises:
        UserError: a field is missing, of a wrong type, or unknown; with its path.
    """
    from kubernetes import client

    try:
        job = client.V1Job.from_dict(dict(manifest))
    except (ValueError, TypeError) as error:
        raise UserError(f"the Job's manifest: {' '.join(str(error).split())}") from error
    kept = client.ApiClient(configuration=client.Configuration()).sanitize_for_serialization(job)
    if lost := _lost(manifest, kept, "manifest"):
        raise UserError(f"the Job's manifest: {lost}")
    return job


def _lost(given: Any, kept: Any, where: str) -> str:
    """Returns the first path at which a manifest and its typed model differ."""
    if isinstance(given, Mapping) and isinstance(kept, Mapping):
        for key, value in given.items():
            if key not in kept:
                return f"{where}.{key} is not a field of the API"
            if found := _lost(value, kept[key], f"{where}.{key}"):
                return found
        return ""
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = enumerate(zip(given, kept, strict=True))
        return next((found for index, pair in pairs if (found := _lost(*pair, f"{where}[{index}]"))), "")
    return "" if type(given) is type(kept) and given == kept else f"{where} = {given!r} is read as {kept!r}"
