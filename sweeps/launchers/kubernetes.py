"""The Kubernetes launcher: every run is a completion of an indexed Job; Jobs continue when the launcher ends.

Each Job has a new folder with a random name on the shared volume, with its runs as JSON; pods write their outcomes
there. A run's state comes from three sources: that outcome, the run's own files, and the API server. Kubernetes
recreates pods that it evicts or preempts, and the runs continue from their checkpoints.
"""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs.documents import ordinary
from configs.errors import UserError
from configs.folders import own
from sweeps.execution.worker import EVALUATE, TRAIN, Job, Outcome
from sweeps.launchers.batch import LATE, POLL, SETTLED, BatchEngine, Held, digest, outcome
from sweeps.launchers.kubernetes_pod import entry, result
from sweeps.launchers.launcher import (
    CPUS,
    GPUS,
    MEMORY,
    Built,
    Ended,
    Launcher,
    Option,
    Queue,
    count,
    exclusive,
    pairs,
    size,
)
from sweeps.launchers.queues import kubernetes_api as api
from sweeps.launchers.queues import kubernetes_manifest as manifests
from sweeps.launchers.queues.kubernetes_api import FOLDER, ID, JOBS, WHERE, Silent
from sweeps.launchers.queues.kubernetes_manifest import ARRAY, MOST, SWEEP, Options, job_name, sweep_label
from sweeps.store import jobs, state
from sweeps.store.jobs import JobState
from sweeps.store.run_status import now
from training.run_directory.files import write_json

NAME = "kubernetes"


class KubernetesEngine(BatchEngine):
    """Submits runs as indexed Jobs. A place is only a number here: Kubernetes selects the nodes."""

    name = NAME
    detached = True
    tick = 1.0

    def __init__(self, directory: Path, options: Options, workers: int | None = None) -> None:
        """`workers`: maximum runs submitted at once.

        Raises:
            UserError: the client is not installed, no cluster answers, or it refuses a Job's manifest.
        """
        super().__init__(directory, min(workers or MOST, MOST))
        self.options = options
        self.cluster = api.cluster(options.context, options.namespace)
        self.folder = directory / FOLDER
        own(directory, state.PRIVATE, str(FOLDER))
        self._claimed()
        self._create(manifests.manifest(directory, "0" * 16, 1, 1, options), dry=True)

    def _claimed(self) -> None:
        """Checks that the claim exists, if the API server allows the query.

        Raises:
            UserError: there is no claim with that name in the namespace.
        """
        here, claim = self.cluster, self.options.claim
        try:
            with api.asking():
                here.core.read_namespaced_persistent_volume_claim(claim, here.namespace, _request_timeout=api.TIMEOUT)
        except Silent:
            return
        except api.installed().client.exceptions.ApiException as error:
            raise UserError(f"--claim={claim}: {api.message(error)} (in namespace {here.namespace})") from error

    def _create(self, manifest: dict[str, Any], dry: bool = False) -> Any:
        """Creates a Job, or lets the API server check one (`dry`), including unknown fields.

        Raises:
            UserError: it does not accept the Job, or does not answer.
        """
        job = manifests.typed(manifest)
        name, here = manifest["metadata"]["name"], self.cluster
        extra = {"dry_run": "All"} if dry else {}
        try:
            with api.asking():
                return here.batch.create_namespaced_job(
                    here.namespace, job, field_validation="Strict", _request_timeout=api.TIMEOUT, **extra
                )
        except Silent as error:
            # A lost answer: the Job may exist.
            made = None if dry else self._found(name)
            if made is None:
                raise UserError(f"--launcher=kubernetes: {error}") from error
            return made
        except api.installed().client.exceptions.ApiException as error:
            made = self._found(name) if error.status == 409 and not dry else None
            if made is None:
                raise UserError(f"--launcher=kubernetes: the Job is refused: {api.message(error)}") from error
            return made

    def _found(self, name: str) -> Any:
        """Returns the Job with this name if it is this sweep's: an earlier attempt reached the API server."""
        try:
            job = api.find(self.cluster, name)
        except Silent:
            return None
        array = name.removeprefix(manifests.PREFIX)
        return job if job is not None and api.belongs(job, self.directory, array) else None

    def adopt(self, expected: Mapping[str, Job]) -> dict[int, Job]:
        """Attaches to what an earlier launcher submitted: runs that wait or run, and match the sweep.

        A waiting run that is no longer in the sweep, or has changed, is withdrawn.
        """
        records = [*self._noted(), *self._unnoted()]
        states = api.of_sweep(self.directory, records)
        back = []
        for record in records:
            word, job = states.get(record.key), expected.get(record.key)
            index = int(record.id.rpartition("-")[2])
            if word is None:  # the cluster does not answer: registry.states leaves the run alone too
                continue
            if word.over or self._outcome(record.array, index) is not None:
                jobs.forget(self.directory, record.arm, record.seed)
            elif job is not None and (record.digest == digest(job) or word.runs):
                self.held[len(self.held)] = Held(job, record.id, record.array, index, word)
                jobs.note(self.directory, record)
            elif word.waits:
                back.append(record.id)
                jobs.forget(self.directory, record.arm, record.seed)
        api.cancel(back)
        return {place: held.job for place, held in self.held.items()}

    def _noted(self) -> list[jobs.Record]:
        records = jobs.noted(self.directory)
        return [record for record in records if record.engine == self.name and ID.fullmatch(record.id)]

    def _unnoted(self) -> list[jobs.Record]:
        """Returns the runs that a launcher submitted just before it was killed."""
        noted = self._noted()
        known, keys = {record.id for record in noted}, {record.key for record in noted}
        selector = f"{SWEEP}={sweep_label(self.directory)}"
        try:
            there = api.listed(self.cluster.batch.list_namespaced_job, self.cluster, selector)
        except Silent:
            return []
        records = []
        for job in there:
            array = str((job.metadata.labels or {}).get(ARRAY))
            if job.metadata.name != job_name(array) or not api.belongs(job, self.directory, array):
                continue
            for index in range(job.spec.completions or 0):
                record = self._planned(array, index)
                if record is not None and record.id not in known and record.key not in keys:
                    records.append(record)
        return records

    def _planned(self, array: str, index: int) -> jobs.Record | None:
        """Returns a completion's task, as written before its Job was created."""
        try:
            planned = json.loads(ordinary(self.folder / array / JOBS).read_text(encoding="utf-8"))
            values = {**planned[index]["record"], "id": f"{job_name(array)}-{index}", "array": array}
            return jobs.checked(values)
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None

    def _outcome(self, array: str, index: int) -> Outcome | None:
        """Returns the outcome that a run wrote; None if there is none."""
        return outcome(result(self.folder / array, index)) if array else None

    def _submit(self) -> None:
        """Submits the new jobs as one indexed Job.

        Raises:
            UserError: the API server refuses it.
        """
        if not self.new:
            return
        places, todo = list(self.new), list(self.new.values())
        array = secrets.token_hex(8)
        name, folder = job_name(array), self.folder / array
        folder.mkdir(parents=True)
        records = [
            jobs.Record(self.name, f"{name}-{index}", job.arm, job.seed, digest(job), now(), array)
            for index, job in enumerate(todo)
        ]
        plan = [{"record": vars(record), "job": entry(job)} for record, job in zip(records, todo, strict=True)]
        write_json(folder / JOBS, plan)
        write_json(folder / WHERE, {"context": self.cluster.context, "namespace": self.cluster.namespace})
        options = replace(self.options, functions=_functions(todo[0]))
        made = self._create(manifests.manifest(self.directory, array, len(todo), self.most, options))
        api.vouch(self.cluster, made, folder).live = set(range(len(todo)))
        for index, (place, job, record) in enumerate(zip(places, todo, records, strict=True)):
            jobs.note(self.directory, record)
            self.held[place] = Held(job, record.id, array, index)
        self.new = {}
        self.wait = POLL[0]

    def _ask(self) -> None:
        """Queries Kubernetes for the runs' states."""
        if not self._due():
            return
        self.last_query = time.monotonic()
        states: dict[str, dict[int, JobState]] = {}
        for array in {held.array for held in self.held.values()}:
            try:
                here = api.where(self.folder / array) or self.cluster
                states[array] = api.states(self.directory, here, array)
            except Silent:
                continue
        answered = [held for held in self.held.values() if held.array in states]
        self._hear({held.id: states[held.array].get(held.index, api.over(api.GONE)) for held in answered})

    def _result(self, place: int, held: Held) -> Ended | None:
        """Returns the outcome that a run wrote; a stop counts once Kubernetes makes no other pod."""
        ended = self._outcome(held.array, held.index)
        if ended is None or (ended.status == "preempted" and not (held.word is not None and held.word.over)):
            return None
        if ended.status == "preempted" and held.word is not None and held.word.state in (api.CANCELLED, api.GONE):
            return Ended(place, held.job, None, f"kubernetes job {held.id} was deleted", "cancelled")
        return Ended(place, held.job, ended)

    def _end(self, place: int, held: Held) -> Ended | None:
        """Returns how a run without a result ended, if it did."""
        word = held.word
        if word is None or not word.over:
            return None
        if time.monotonic() - held.since < (LATE if word.state in ("Succeeded", "Complete") else SETTLED):
            return None
        name = f"kubernetes job {held.id}"
        if word.state in (api.CANCELLED, api.GONE):
            how = "was cancelled" if word.state == api.CANCELLED else "was deleted"
            return Ended(place, held.job, None, f"{name} {how}", "cancelled")
        return Ended(place, held.job, None, f"{name}: {api.exit_words(word)}")

    def _cancel(self, ids: Sequence[str]) -> None:
        api.cancel(ids)

    def close(self) -> None:
        """Does nothing: Jobs continue without their launcher."""


def _functions(job: Job) -> tuple[str, ...]:
    return () if (job.train, job.evaluate) == (TRAIN, EVALUATE) else (job.train, job.evaluate)


SELECTOR = Option("KEY=VALUE", "a label that a run's node must have; repeatable", True)
TOLERATE = Option("KEY", "a taint that a run's node may have; repeatable", True)


def options_of(directory: Path, given: Mapping[str, Any]) -> Options:
    """Returns the Kubernetes options of the command line.

    Raises:
        UserError: an option is missing, or has an invalid value.
    """
    for name, what in (("image", "the container's image"), ("claim", "the claim that contains --out")):
        if not given.get(name):
            raise UserError(f"--launcher=kubernetes needs --{name}, {what} (docs/kubernetes.md)")
    options = Options(
        image=given["image"],
        claim=given["claim"],
        mount=Path(given.get("mount") or directory.absolute().parent),
        namespace=given.get("namespace"),
        context=given.get("context"),
        checkout=given.get("checkout") or Options.checkout,
        python=given.get("python") or Options.python,
        account=given.get("service-account"),
        cpus=count(given, "cpus"),
        gpus=count(given, "gpus", 0),
        memory=size(given["memory"]) if "memory" in given else None,
        tpu=manifests.tpu(given["tpu"]) if "tpu" in given else None,
        selector=pairs(given, "node-selector", SELECTOR),
        tolerate=tuple(given.get("tolerate", ())),
    )
    return manifests.checked(options, directory)


def _build(directory: Path, given: Mapping[str, Any], workers: int | None, runs: int) -> Built:
    options = options_of(directory, given)
    alone = exclusive(options.gpus or (1 if options.tpu else None), workers)
    return Built(KubernetesEngine(directory, options, workers), "submitted to Kubernetes", alone)


def preview(directory: Path, given: Mapping[str, Any], workers: int | None, runs: int) -> str:
    """Returns the manifest as YAML, checked by the client's models and by the API server if one answers.

    Raises:
        UserError: an option has an invalid value, or the manifest is refused.
    """
    import yaml

    options = options_of(directory, given)
    job = manifests.manifest(directory, secrets.token_hex(8), min(runs, MOST), min(workers or MOST, MOST), options)
    api.installed()
    manifests.typed(job)
    try:
        api.cluster(options.context, options.namespace)
    except UserError as error:
        return f"# Not checked by an API server: {error}\n{yaml.safe_dump(job, sort_keys=False)}"
    KubernetesEngine(directory, options, workers)  # which lets the API server check one
    return yaml.safe_dump(job, sort_keys=False)


KUBERNETES = Launcher(
    NAME,
    _build,
    options={
        "image": Option("IMAGE", "the container's image, with the checkout and its environment"),
        "claim": Option("NAME", "the PersistentVolumeClaim that contains --out"),
        "mount": Option("DIR", "where the claim is mounted, here and in the pods (the folder of --out)"),
        "namespace": Option("NAME", "the namespace (the context's)"),
        "context": Option("NAME", "the context of the kubeconfig (the current one)"),
        "checkout": Option("DIR", f"path of the checkout in the image ({Options.checkout})"),
        "manifest": Option("FILE", "write the Job's manifest there, checked by the API server, and run nothing"),
        "python": Option("PATH", f"the Python in the image ({Options.python})"),
        "service-account": Option("NAME", "the pods' service account (the namespace's default)"),
        "tpu": Option("GENERATION:TOPOLOGY", "a TPU slice of GKE a run, of one host: v5e:2x4, v6e:1x1, v5p:2x2x1"),
        "node-selector": SELECTOR,
        "tolerate": TOLERATE,
        "cpus": CPUS,
        "gpus": GPUS,
        "memory": MEMORY,
    },
    queue=Queue("Kubernetes", ID, api.of_sweep, api.cancel),
    preview=preview,
)
