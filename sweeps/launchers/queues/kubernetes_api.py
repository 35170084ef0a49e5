"""States of a sweep's Kubernetes jobs, through the official client; works without a launcher.

A job's id is `ablax-ARRAY-INDEX`: a completion of the indexed Job `ablax-ARRAY`. Files in a sweep's directory are not
trusted: a Job belongs to the sweep only if its labels, queried from the API server, say so.
"""

import contextlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs.documents import ordinary
from configs.errors import UserError
from sweeps.launchers.queues.kubernetes_manifest import ARRAY, MANAGER, NAMESPACE, SWEEP, job_name, sweep_label
from sweeps.store.jobs import JobState, Record

FOLDER = Path(".sweep") / "kubernetes"  # one folder per Job
ID = re.compile(r"ablax-([0-9a-f]{16})-(0|[1-9]\d{0,3})", re.ASCII)
WHERE, JOBS = "where.json", "jobs.json"  # in a Job's folder: its cluster and namespace, and its runs
TIMEOUT = (5.0, 30.0)  # seconds to connect, and for an answer
PAGE = 500  # objects per answer
GONE, CANCELLED = "GONE", "CANCELLED"  # our own states: the API server has no such Job; the run was withdrawn


@dataclass(frozen=True)
class Cluster:
    """An API server and a namespace in it."""

    batch: Any
    core: Any
    namespace: str
    context: str | None


@dataclass
class Vouched:
    """A Job that the API server confirmed as the sweep's: `live` are its completions that are not over."""

    cluster: Cluster
    name: str
    uid: str
    folder: Path
    live: set[int] = field(default_factory=set)


_vouched: dict[str, Vouched] = {}  # by the Job's name; only these may be deleted by `cancel`


def installed() -> Any:
    """Returns the client's package.

    Raises:
        UserError: it is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import kubernetes
    except ImportError:
        raise UserError(
            "--launcher=kubernetes needs its client: pip install kubernetes, or make setup EXTRAS=dev,kubernetes"
        ) from None
    return kubernetes


def cluster(context: str | None = None, namespace: str | None = None) -> Cluster:
    """Returns the cluster of a context of the user's kubeconfig ($KUBECONFIG), else the one this pod runs in.

    Raises:
        UserError: there is no such context, and this is not a pod.
    """
    kubernetes = installed()
    config, client = kubernetes.config, kubernetes.client
    inside = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
    file = os.environ.get("KUBECONFIG") or config.KUBE_CONFIG_DEFAULT_LOCATION
    try:
        contexts, active = config.list_kube_config_contexts(file)
        known = {one["name"]: one for one in contexts}
        chosen = known.get(context) if context else active
        if chosen is None:
            raise UserError(f"--context={context}: the kubeconfig has no such context, but {', '.join(known)}")
        api = config.new_client_from_config(file, context=chosen["name"])
        context, default = chosen["name"], chosen["context"].get("namespace")
    except config.ConfigException as error:
        if context is not None or not inside.is_file():
            line = " ".join(str(error).split())
            raise UserError(f"--launcher=kubernetes: no readable kubeconfig ({line})") from error
        configuration = client.Configuration()
        config.load_incluster_config(client_configuration=configuration)
        api, default = client.ApiClient(configuration), inside.read_text(encoding="utf-8").strip()
    api.configuration.retries = 1
    return Cluster(client.BatchV1Api(api), client.CoreV1Api(api), namespace or default or "default", context)


def message(error: Exception) -> str:
    """Returns an error of the client as one line: the API server's own message, if it sent one."""
    status, body = getattr(error, "status", None), getattr(error, "body", None)
    try:
        text = json.loads(body)["message"] if body else ""
    except (ValueError, TypeError, LookupError):
        text = ""
    reason = getattr(error, "reason", None)
    line = " ".join(str(text or reason or error).split())
    return f"{status}: {line}" if status else line


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Turns the client's exceptions into Silent, except the API server's answers, which pass as ApiException."""
    kubernetes = installed()
    import urllib3

    try:
        yield
    except kubernetes.client.exceptions.ApiException as error:
        if error.status is None or error.status >= 500 or error.status in (0, 401, 403, 429):
            raise Silent(message(error)) from error
        raise
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Silent(message(error)) from error


class Silent(Exception):
    """The API server does not answer, or does not allow the query."""


def where(folder: Path) -> Cluster | None:
    """Returns the cluster recorded in a Job's folder; None if the record is invalid."""
    try:
        values = json.loads(ordinary(folder / WHERE).read_text(encoding="utf-8"))
        context, namespace = values["context"], values["namespace"]
        if not NAMESPACE.fullmatch(namespace) or not (context is None or isinstance(context, str)):
            return None
        return cluster(context, namespace)
    except (OSError, ValueError, TypeError, LookupError, RecursionError, UserError):
        return None


def find(here: Cluster, name: str) -> Any:
    """Returns a Job; None if there is none with that name.

    Raises:
        Silent: the API server does not say.
    """
    try:
        with asking():
            return here.batch.read_namespaced_job(name, here.namespace, _request_timeout=TIMEOUT)
    except installed().client.exceptions.ApiException as error:
        if error.status in (404, 410):
            return None
        raise Silent(message(error)) from error


def listed(call: Any, here: Cluster, selector: str) -> list[Any]:
    """Returns all objects that a selector matches, page by page; starts again if a page has expired (410).

    Raises:
        Silent: the API server does not say.
    """
    for _ in range(3):
        items: list[Any] = []
        token = None
        try:
            while True:
                with asking():
                    page = call(
                        here.namespace, label_selector=selector, limit=PAGE, _continue=token, _request_timeout=TIMEOUT
                    )
                items += page.items
                token = page.metadata._continue
                if not token:
                    return items
        except installed().client.exceptions.ApiException as error:
            if error.status != 410:
                raise Silent(message(error)) from error
    raise Silent("lists expire before they are read")


def belongs(job: Any, directory: Path, array: str) -> bool:
    """Returns whether a Job's labels name this sweep and array."""
    labels = job.metadata.labels or {}
    expected = {MANAGER: "ablax", ARRAY: array}
    ours = (sweep_label(directory), sweep_label(directory.resolve()))
    return all(labels.get(key) == value for key, value in expected.items()) and labels.get(SWEEP) in ours


def vouch(here: Cluster, job: Any, folder: Path) -> Vouched:
    """Records a Job as the sweep's."""
    name = job.metadata.name
    _vouched[name] = Vouched(here, name, job.metadata.uid, folder)
    return _vouched[name]


def of_sweep(directory: Path, records: Sequence[Record]) -> dict[str, JobState]:
    """Returns Kubernetes' states of a sweep's jobs, by the run's key; none for clusters that do not answer.

    A Job whose labels do not name the sweep is not the sweep's, whatever a record says: its runs are GONE.
    """
    results: dict[str, JobState] = {}
    arrays: dict[str, list[tuple[int, Record]]] = {}
    for record in records:
        if match := ID.fullmatch(record.id):
            arrays.setdefault(match[1], []).append((int(match[2]), record))
    for array, some in arrays.items():
        folder = directory / FOLDER / array
        here = where(folder)
        if here is None:
            continue
        try:
            current = states(directory, here, array)
        except Silent:
            continue
        results |= {record.key: current.get(index, over(GONE)) for index, record in some}
    return results


def over(state: str, reason: str = "") -> JobState:
    """Returns the state of a finished job; if it ended well, or nothing is known, the run's files decide."""
    return JobState(state, reason, "", "over", silent=state in ("Succeeded", GONE))


def states(directory: Path, here: Cluster, array: str) -> dict[int, JobState]:
    """Returns the state of each completion of a Job by its index; empty if it is missing, or not the sweep's.

    Raises:
        Silent: the API server does not say.
    """
    name, folder = job_name(array), directory / FOLDER / array
    job = find(here, name)
    if job is None or not belongs(job, directory, array):
        _vouched.pop(name, None)
        return {}
    known = vouch(here, job, folder)
    pods = _pods(here, name)
    results = {index: _state(job, index, pods.get(index), folder) for index in range(job.spec.completions or 0)}
    known.live = {index for index, word in results.items() if not word.over}
    return results


def _pods(here: Cluster, name: str) -> dict[int, Any]:
    """Returns the newest pod of each completion."""
    results: dict[int, Any] = {}
    for pod in listed(here.core.list_namespaced_pod, here, f"batch.kubernetes.io/job-name={name}"):
        index = (pod.metadata.annotations or {}).get("batch.kubernetes.io/job-completion-index", "")
        if index.isdecimal():
            before = results.get(int(index))
            if before is None or str(before.metadata.creation_timestamp) <= str(pod.metadata.creation_timestamp):
                results[int(index)] = pod
    return results


def _state(job: Any, index: int, pod: Any, folder: Path) -> JobState:
    status = job.status
    if index in indexes(status.completed_indexes):
        return over("Succeeded")
    if index in indexes(status.failed_indexes):
        return over("Failed", _end_of(pod))
    if withdrawn(folder, index).exists() and (pod is None or pod.status.phase == "Pending"):
        return over(CANCELLED)
    conditions = {one.type: one for one in status.conditions or [] if one.status == "True"}
    for kind in ("Complete", "Failed"):
        if kind in conditions:
            return over(kind, str(conditions[kind].reason or ""))
    if job.metadata.deletion_timestamp is not None and (pod is None or pod.status.phase != "Running"):
        return over(CANCELLED)
    if "Suspended" in conditions:
        return JobState("Suspended", "", "", "waiting")
    if pod is None:
        return JobState("NoPod", "", "", "waiting")
    if pod.status.phase == "Pending":
        return JobState("Pending", _waits_for(pod), "", "waiting")
    if pod.status.phase == "Running":
        return JobState("Running", "", "", "running")
    return JobState(
        "NoPod", "its pod ended", "", "waiting"
    )  # the Job's controller has yet to count it, or make another


def _waits_for(pod: Any) -> str:
    """Returns why a pod is not running, in a word: Unschedulable, ImagePullBackOff, ..."""
    for one in pod.status.container_statuses or []:
        waiting = one.state.waiting if one.state else None
        if waiting is not None and waiting.reason:
            return str(waiting.reason)
    for one in pod.status.conditions or []:
        if one.type == "PodScheduled" and one.status != "True" and one.reason:
            return str(one.reason)
    return ""


def _end_of(pod: Any) -> str:
    """Returns how a pod's process ended, as reported by the kubelet."""
    for one in (pod.status.container_statuses or []) if pod is not None else []:
        ended = one.state.terminated if one.state else None
        if ended is not None:
            code = ended.exit_code
            how = f"killed by signal {code - 128}" if code > 128 else f"exit code {code}"
            return f"{ended.reason}, {how}" if ended.reason and ended.reason != "Error" else how
    return str(pod.status.reason or "") if pod is not None else ""


def indexes(text: str | None) -> set[int]:
    """Returns the numbers of Kubernetes' compact form, such as `1,3-5,7`."""
    results: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            results |= set(range(int(first), int(last or first) + 1))
    return results


def withdrawn(folder: Path, index: int) -> Path:
    """Returns the file from which a pod reads at its start that its run was withdrawn."""
    return folder / f"{index}.withdrawn"


def cancel(ids: Sequence[str]) -> None:
    """Cancels jobs that `states` has confirmed: a whole Job is deleted, and stays until its pods have saved their runs.

    A part of a Job cannot be deleted: its runs that have not started end as soon as their pods do.

    Raises:
        UserError: the API server does not accept it.
    """
    arrays: dict[str, set[int]] = {}
    for one in ids:
        if match := ID.fullmatch(one):
            arrays.setdefault(job_name(match[1]), set()).add(int(match[2]))
    for name, some in arrays.items():
        known = _vouched.get(name)
        if known is None:
            continue
        if known.live <= some:
            _delete(known)
        else:
            for index in some & known.live:
                withdrawn(known.folder, index).touch()
            known.live -= some


def _delete(known: Vouched) -> None:
    client = installed().client
    body = client.V1DeleteOptions(propagation_policy="Foreground", preconditions=client.V1Preconditions(uid=known.uid))
    here = known.cluster
    try:
        with asking():
            here.batch.delete_namespaced_job(known.name, here.namespace, body=body, _request_timeout=TIMEOUT)
    except Silent as error:
        raise UserError(f"Kubernetes does not cancel {known.name}: {error}") from error
    except client.exceptions.ApiException as error:
        if error.status not in (404, 409, 410):  # already gone, or another one has its name
            raise UserError(f"Kubernetes does not cancel {known.name}: {message(error)}") from error
    known.live = set()


def exit_words(word: JobState) -> str:
    """Returns how a job ended, for a run's error."""
    return f"{word.state}, {word.reason}" if word.reason else word.state
