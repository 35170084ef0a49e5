"""The Kubernetes launcher: the official client against an API server of our own, whose pods are processes here."""

import copy
import json
import os
import subprocess
import sys
import threading

import pytest
import yaml

from configs.errors import UserError
from sweeps import cancel, launch
from sweeps.execution.policy import Policy
from sweeps.execution.worker import Job
from sweeps.launchers import engines, registry
from sweeps.launchers.kubernetes import KubernetesEngine, options_of
from sweeps.launchers.queues import kubernetes_api, kubernetes_manifest
from sweeps.launchers.queues.kubernetes_api import FOLDER, ID
from sweeps.store import jobs, state
from sweeps.store.jobs import Record
from tests.cluster.kubernetes import Cluster
from tests.sweeps.test_launch import CHECKOUT, FAKES, sweep_of, until

ARRAY = "0123456789abcdef"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("KUBERNETES_")]:
        monkeypatch.delenv(name)
    found = Cluster(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig()))
    monkeypatch.setattr(kubernetes_api, "_vouched", {})
    yield found
    found.close()


def asked(tmp_path, **more) -> dict[str, object]:
    needed = {"image": "me/ablax:1", "claim": "sweeps", "checkout": str(CHECKOUT), "python": sys.executable}
    return {**needed, "mount": str(tmp_path), **more}


def options(tmp_path, **more):
    return options_of(tmp_path / "out", asked(tmp_path, **more))


def made(tmp_path, **more):
    return kubernetes_manifest.manifest(tmp_path / "out", ARRAY, 3, 2, options(tmp_path, **more))


def run(tmp_path, sweep, retries=0):
    where = engines.Where("kubernetes", asked(tmp_path))
    return launch.launch(sweep, tmp_path / "out", functions=FAKES, where=where, policy=Policy(retries=retries))


def engine(tmp_path) -> KubernetesEngine:
    (tmp_path / "out").mkdir(exist_ok=True)
    return KubernetesEngine(tmp_path / "out", options(tmp_path))


def submitted(tmp_path, arms=("a", "b")) -> tuple[KubernetesEngine, dict]:
    """An engine that has submitted runs of a sweep whose directory is there, and the jobs."""
    sweep = sweep_of(tmp_path, list(arms))
    with state.launching(tmp_path / "out"):
        state.take_up(tmp_path / "out", sweep, "2026-01-01T00:00:00+00:00")
    found = engine(tmp_path)
    out = str(tmp_path / "out")
    todo = {one.key: Job(out, one.study, one.arm, one.seed, {"seed": 0}, one.evals) for one in sweep.runs()}
    for place, job in enumerate(todo.values()):
        found.start(place, job)
    found._submit()
    return found, todo


def test_a_manifest_has_what_was_asked_for_and_is_the_apis(tmp_path) -> None:
    job = made(tmp_path, cpus="4", memory="16G", gpus="2", **{"node-selector": ["zone=a"], "tolerate": ["spot"]})
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 2, "Indexed")
    assert spec["backoffLimitPerIndex"] == 0 and pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    amounts = {"cpu": "4", "memory": str(16 * 2**30), "nvidia.com/gpu": "2"}
    assert container["resources"] == {"requests": amounts, "limits": amounts}
    assert container["command"][1:] == [
        "-m", "sweeps.launchers.kubernetes_pod", str(tmp_path / "out/.sweep/kubernetes" / ARRAY)
    ]  # fmt: skip
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "sweeps"}
    assert container["volumeMounts"] == [{"name": "sweep", "mountPath": str(tmp_path)}]
    assert pod["nodeSelector"] == {"zone": "a"}
    assert {one["key"] for one in pod["tolerations"]} == {"spot", "nvidia.com/gpu"}
    kubernetes_manifest.typed(job)

    job = made(tmp_path, tpu="v5e:2x4")
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice", "cloud.google.com/gke-tpu-topology": "2x4",
    }  # fmt: skip
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": "8"}
    kubernetes_manifest.typed(job)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda job: job["spec"].update(backofLimitPerIndex=0), r"manifest\.spec\.backofLimitPerIndex is not a field"),
        (lambda job: job["spec"].update(completions="three"), "completions"),
        (lambda job: job["spec"].pop("template"), "template"),
        (
            lambda job: job["spec"]["template"]["spec"]["containers"][0].update(volumeMount=[]),
            r"template\.spec\.containers\[0\]\.volumeMount is not a field",
        ),
    ],
)
def test_a_manifest_that_is_not_the_apis_is_refused(tmp_path, spoil, told) -> None:
    job = copy.deepcopy(made(tmp_path))
    spoil(job)
    with pytest.raises(UserError, match=f"the Job's manifest: .*{told}"):
        kubernetes_manifest.typed(job)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"image": ""}, "needs --image"),
        ({"claim": "Not/ok"}, "--claim=Not/ok: is not a name"),
        ({"namespace": "a.b"}, "--namespace=a.b"),
        ({"image": "a b"}, "--image=a b"),
        ({"node-selector": ["k=a b"]}, "--node-selector=k=a b"),
        ({"tpu": "v5e:4x4"}, "larger slices are several hosts"),
        ({"tpu": "v9:1x1"}, "--tpu=v9:1x1: must be v4, v5e, v5p, v6e"),
        ({"tpu": "v5e:1x1", "gpus": "1"}, "not both"),
        ({"mount": "/elsewhere"}, "must be in it"),
        ({"mount": "relative"}, "must be absolute"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path, given, told) -> None:
    with pytest.raises(UserError) as error:
        options(tmp_path, **given)
    assert told in str(error.value)


def test_a_sweep_runs_each_run_once_and_what_died_is_named(cluster, tmp_path) -> None:
    summary = run(tmp_path, sweep_of(tmp_path, ["a", "raise", "kill", "diverge"]))
    failed = {key: error.split(": ", 1)[-1] for key, error in summary.failed.items()}
    assert failed == {"raise/seed0": "no such luck", "kill/seed0": "Failed, killed by signal 9"}
    assert {*summary.diverged} == {"diverge/seed0"}
    runs = tmp_path / "out/runs"
    assert json.loads((runs / "a/seed0/run.json").read_text())["status"] == "done"
    assert (runs / "a/seed0/eval/loss.json").is_file() and not jobs.noted(tmp_path / "out")
    assert len(cluster.jobs) == 1, "one indexed Job"
    again = run(tmp_path, sweep_of(tmp_path, ["a"]))
    assert again.code == 0 and len(cluster.jobs) == 1, "what is done is not submitted again"


def test_a_pod_that_is_evicted_is_made_again_and_its_run_continues(cluster, tmp_path) -> None:
    def evict() -> None:
        metrics = tmp_path / "out/runs/brief/seed0/metrics.jsonl"
        until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 2)
        cluster.evict(0)

    thread = threading.Thread(target=evict)
    thread.start()
    summary = run(tmp_path, sweep_of(tmp_path, ["brief"]))
    thread.join()
    assert summary.code == 0, summary
    first, second = map(int, (tmp_path / "out/runs/brief/seed0/steps").read_text().split())
    assert 0 < first < second == 25
    assert len(cluster.jobs) == 1 and not cluster.deleted()


def test_waiting_runs_show_why_and_are_cancelled_without_a_launcher(cluster, tmp_path) -> None:
    cluster.held = True
    submitted(tmp_path)
    until(lambda: len(cluster.pods) == 2)
    board, silence = registry.overlay(tmp_path / "out", state.run_states(tmp_path / "out"))
    assert not silence and "Unschedulable" in board["a/seed0"].note and "kubernetes job ablax-" in board["a/seed0"].note
    kubernetes_api._vouched.clear()  # as in another process
    assert cancel.cancel(tmp_path / "out", 10.0) == 0
    assert len(cluster.deleted()) == 1 and not jobs.noted(tmp_path / "out")
    until(lambda: not cluster.jobs)


def test_a_job_that_somebody_deletes_is_left(cluster, tmp_path) -> None:
    cluster.held = True
    held, _ = submitted(tmp_path)
    with cluster.lock:
        cluster.jobs.clear()
        cluster.pods.clear()
    ended = []
    until(lambda: len(ended) == 2 or ended.extend(held.ended(0.2)))
    assert {(one.how, one.reason.rpartition(" ")[2]) for one in ended} == {("cancelled", "deleted")}


def test_part_of_a_job_is_taken_back_and_the_rest_goes_on(cluster, tmp_path) -> None:
    cluster.held = True
    _, todo = submitted(tmp_path)
    until(lambda: len(cluster.pods) == 2)
    (tmp_path / "out" / "runs").mkdir(exist_ok=True)
    wanted = {"a/seed0": todo["a/seed0"]}
    other = engine(tmp_path)
    taken = other.adopt(wanted)
    assert [job.key for job in taken.values()] == ["a/seed0"] and not cluster.deleted()
    assert {record.key for record in jobs.noted(tmp_path / "out")} == {"a/seed0"}
    (array,) = (tmp_path / "out" / FOLDER).iterdir()
    assert [path.name for path in array.glob("*.withdrawn")] == ["1.withdrawn"]
    # A launcher that was killed between the Job and its notes: the Job's labels tell.
    jobs.forget(tmp_path / "out", "a", 0)
    third = engine(tmp_path)
    assert [job.key for job in third.adopt(wanted).values()] == ["a/seed0"]


def test_nothing_of_a_foreign_directory_is_believed(cluster, tmp_path) -> None:
    cluster.held = True
    held, _ = submitted(tmp_path)
    (mine,) = [record.array for record in held._noted()][:1]
    other = tmp_path / "other"
    folder = other / FOLDER / mine
    folder.mkdir(parents=True)
    (folder / "where.json").write_text((tmp_path / "out" / FOLDER / mine / "where.json").read_text())
    foreign = Record("kubernetes", f"ablax-{mine}-0", "a", 0, "", "", mine)
    said = kubernetes_api.of_sweep(other, [foreign])
    assert said["a/seed0"].state == "GONE"
    kubernetes_api.cancel([foreign.id])
    assert not cluster.deleted(), "it is another sweep's"
    for values in ({"context": "here", "namespace": "../x"}, {"context": "no such", "namespace": "team"}, [], {"a": 1}):
        (folder / "where.json").write_text(json.dumps(values))
        assert kubernetes_api.where(folder) is None
    for bad in ("ablax-x-0", f"ablax-{mine}-99999", f"ablax-{mine}-01", "kube-system", f"ablax-{mine}-0/x", "4711"):
        assert not ID.fullmatch(bad)
    # The control: the sweep's own is deleted.
    own = held._noted()
    kubernetes_api.of_sweep(tmp_path / "out", own)
    kubernetes_api.cancel([record.id for record in own])
    assert len(cluster.deleted()) == 1


def test_what_the_api_server_refuses_is_one_line(cluster, tmp_path, monkeypatch) -> None:
    for forced, told in (
        (("POST", "jobs$", 403), "403: forced 403"),
        (("POST", "jobs$", 422), "the Job is refused: 422: forced 422"),
    ):
        cluster.answers = [forced]
        with pytest.raises(UserError, match=f"--launcher=kubernetes: .*{told}"):
            engine(tmp_path)
    with pytest.raises(UserError, match=r"--claim=none: 404: .*not found \(in namespace team\)"):
        KubernetesEngine(tmp_path / "out", options(tmp_path, claim="none"))
    with pytest.raises(UserError, match="--context=no: the kubeconfig has no such context, but here"):
        kubernetes_api.cluster("no")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(port=9)))
    with pytest.raises(UserError, match=r"--launcher=kubernetes: .*127\.0\.0\.1"):
        engine(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="no readable kubeconfig"):
        engine(tmp_path)


def test_answers_that_are_late_lost_or_in_pieces(cluster, tmp_path, monkeypatch) -> None:
    cluster.held = True
    held, _ = submitted(tmp_path)
    records = held._noted()
    until(lambda: len(cluster.pods) == 2)
    cluster.page = 1
    cluster.answers = [("GET", "pods$", 410)]  # the list expired: it is read anew
    said = kubernetes_api.of_sweep(tmp_path / "out", records)
    assert {word.reason for word in said.values()} == {"Unschedulable"}
    for status in (403, 500):
        cluster.answers = [("GET", "jobs/", status)] * 4
        assert kubernetes_api.of_sweep(tmp_path / "out", records) == {}
        cluster.answers = []
    cluster.answers = [("GET", "jobs/", 500)] * 4
    _, silence = registry.overlay(tmp_path / "out", state.run_states(tmp_path / "out"))
    assert silence.startswith("Kubernetes does not answer: 2 runs")
    cluster.answers = []
    # An answer that was lost: the Job is there, the client tries again and is told 409.
    before = held._create(made(tmp_path))
    assert held._create(made(tmp_path)).metadata.uid == before.metadata.uid
    with cluster.lock:
        cluster.jobs["team", f"ablax-{ARRAY}"]["body"]["metadata"]["labels"] = {}
    with pytest.raises(UserError, match="the Job is refused: 409"):
        held._create(made(tmp_path))


def test_a_preview_is_what_would_be_submitted(cluster, tmp_path) -> None:
    (tmp_path / "sweep.py").write_text("def get_sweep():\n    return dict(base='configs/tiny.py', seeds=[0, 1])\n")
    given = [f"--{name}={value}" for name, value in asked(tmp_path).items()]
    command = [f"--sweep={tmp_path / 'sweep.py'}", f"--out={tmp_path / 'out'}", "--launcher=kubernetes"]
    assert launch.main([*command, *given, f"--manifest={tmp_path / 'job.yaml'}"]) == 0
    job = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert job["spec"]["completions"] == 2 and kubernetes_manifest.typed(job)
    assert not cluster.jobs and not (tmp_path / "out" / "sweep.json").exists()


def test_numbers_in_the_short_form() -> None:
    assert kubernetes_api.indexes("1,3-5,7") == {1, 3, 4, 5, 7}
    assert kubernetes_api.indexes(None) == kubernetes_api.indexes("") == kubernetes_api.indexes("x-y") == set()


def test_a_pod_whose_run_is_taken_back_or_not_there_ends_at_once(tmp_path) -> None:
    folder = tmp_path / "out" / FOLDER / ARRAY
    folder.mkdir(parents=True)
    (folder / "2.withdrawn").touch()
    command = [sys.executable, "-m", "sweeps.launchers.kubernetes_pod", str(folder)]
    env = {**os.environ, "JOB_COMPLETION_INDEX": "2"}
    done = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "withdrawn" in done.stdout
    env["JOB_COMPLETION_INDEX"] = "0"
    done = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "is the claim mounted at --mount?" in done.stderr
