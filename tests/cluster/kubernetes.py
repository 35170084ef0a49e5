"""A Kubernetes API server for tests: plain HTTP, the parts that the launcher asks, pods as processes of this machine.

A thread does the work of the Job controller for indexed Jobs: a pod for each completion, `parallelism` at a time, again
after a disruption, failed after any other death (backoffLimitPerIndex = 0).
"""

import json
import os
import re
import subprocess
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

INDEX = "batch.kubernetes.io/job-completion-index"
NAME = "batch.kubernetes.io/job-name"


class Cluster:
    """The server and its controller. `held`: pods stay Pending. `answers`: (method, path, status) to give once each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.held = folder, False
        self.jobs: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods: list[dict[str, Any]] = []
        self.claims = {"sweeps"}
        self.answers: list[tuple[str, str, int]] = []
        self.requests: list[tuple[str, str]] = []
        self.page: int | None = None  # objects of an answer, if smaller than asked
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.closing = threading.Event()
        for target in (self.server.serve_forever, self._control):
            threading.Thread(target=target, daemon=True).start()

    def kubeconfig(self, port: int | None = None) -> Path:
        path = self.folder / "kubeconfig"
        address = f"http://127.0.0.1:{port or self.server.server_port}"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1", "kind": "Config", "current-context": "here",
                    "clusters": [{"name": "c", "cluster": {"server": address}}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                    "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
                }
            )
        )  # fmt: skip
        return path

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()
        with self.lock:
            for pod in self.pods:
                if pod["process"] is not None and pod["process"].poll() is None:
                    pod["process"].kill()
                    pod["process"].wait()

    def running(self) -> list[dict[str, Any]]:
        with self.lock:
            return [pod for pod in self.pods if pod["process"] is not None and pod["process"].poll() is None]

    def evict(self, index: int) -> None:
        """What the eviction API, preemption and a drained node do to a pod."""
        with self.lock:
            for pod in self.running():
                if pod["index"] == index:
                    pod["disrupted"] = True
                    pod["process"].terminate()

    def deleted(self) -> list[str]:
        return [path for method, path in self.requests if method == "DELETE"]

    # The controller.

    def _control(self) -> None:
        while not self.closing.wait(0.05):
            with self.lock:
                for key, job in list(self.jobs.items()):
                    self._reconcile(key, job)

    def _reconcile(self, key: tuple[str, str], job: dict[str, Any]) -> None:
        done, failed, alive = job["done"], job["failed"], set()
        for pod in [pod for pod in self.pods if pod["job"] == key and not pod["counted"]]:
            code = None if pod["process"] is None else pod["process"].poll()
            if code is None and not (job["deleting"] and pod["process"] is None):
                alive.add(pod["index"])
                continue
            pod["counted"] = True
            if code == 0:
                done.add(pod["index"])
            elif not pod["disrupted"] and not job["deleting"]:
                failed.add(pod["index"])
        if job["deleting"]:
            if not alive:
                del self.jobs[key]
                self.pods = [pod for pod in self.pods if pod["job"] != key]
            return
        spec = job["body"]["spec"]
        for index in range(spec["completions"]):
            if index not in done | failed | alive and len(alive) < spec["parallelism"]:
                self.pods.append(self._pod(key, job, index))
                alive.add(index)
        if not self.held:
            for pod in self.pods:
                if pod["job"] == key and pod["process"] is None and not pod["counted"]:
                    pod["process"] = self._process(job, pod)

    def _pod(self, key: tuple[str, str], job: dict[str, Any], index: int) -> dict[str, Any]:
        return {"job": key, "index": index, "process": None, "disrupted": False, "counted": False, "made": time.time()}

    def _process(self, job: dict[str, Any], pod: dict[str, Any]) -> Any:
        container = job["body"]["spec"]["template"]["spec"]["containers"][0]
        env = {**os.environ, **{one["name"]: one["value"] for one in container["env"]}}
        env |= {"JOB_COMPLETION_INDEX": str(pod["index"]), "HOSTNAME": f"pod-{pod['index']}"}
        with (self.folder / "pods.log").open("a") as log:
            return subprocess.Popen(
                container["command"],
                cwd=container["workingDir"],
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    # What it answers.

    def _shown(self, job: dict[str, Any]) -> dict[str, Any]:
        def short(some: set[int]) -> str:
            return ",".join(map(str, sorted(some)))

        body = job["body"]
        over = len(job["done"] | job["failed"]) == body["spec"]["completions"]
        kind = "Failed" if job["failed"] else "Complete"
        status = {
            "completedIndexes": short(job["done"]), "failedIndexes": short(job["failed"]),
            "conditions": [{"type": kind, "status": "True", "reason": "FailedIndexes"}] if over else [],
        }  # fmt: skip
        metadata = {**body["metadata"], "uid": job["uid"], "namespace": job["namespace"]}
        if job["deleting"]:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return {**body, "metadata": metadata, "status": status}

    def _pod_shown(self, pod: dict[str, Any]) -> dict[str, Any]:
        process = pod["process"]
        code = None if process is None else process.poll()
        state: dict[str, Any] = {"waiting": {}} if process is None else {"running": {}}
        phase = "Pending" if process is None else "Running"
        if code is not None:
            phase = "Failed" if code else "Succeeded"
            state = {"terminated": {"exitCode": 128 - code if code < 0 else code, "reason": "Error"}}
        conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}] if process is None else []
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(pod["made"]))
        return {
            "metadata": {
                "name": f"{pod['job'][1]}-{pod['index']}-{int(pod['made'] * 1000)}", "creationTimestamp": stamp,
                "annotations": {INDEX: str(pod["index"])}, "labels": {NAME: pod["job"][1]},
            },
            "status": {
                "phase": phase, "conditions": conditions,
                "containerStatuses": [
                    {"name": "run", "ready": False, "restartCount": 0, "image": "", "imageID": "", "state": state}
                ],
            },
            "spec": {"containers": [{"name": "run"}]},
        }  # fmt: skip

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        self.requests.append((method, path))
        for forced in self.answers:
            if forced[0] == method and re.search(forced[1], path):
                self.answers.remove(forced)
                return forced[2], {"kind": "Status", "message": f"forced {forced[2]}", "code": forced[2]}
        selector = dict(part.split("=", 1) for part in (query.get("labelSelector") or [""])[0].split(",") if part)
        missing = {"kind": "Status", "message": f"{path} not found", "code": 404}
        if match := re.fullmatch(r"/apis/batch/v1/namespaces/([^/]+)/jobs(?:/([^/]+))?", path):
            namespace, name = match[1], match[2]
            if method == "POST":
                key = (namespace, body["metadata"]["name"])
                if query.get("dryRun") == ["All"]:
                    return 201, body
                if key in self.jobs:
                    return 409, {"kind": "Status", "message": "already exists", "code": 409}
                self.jobs[key] = {
                    "body": body, "uid": str(uuid.uuid4()), "namespace": namespace, "done": set(), "failed": set(),
                    "deleting": False,
                }  # fmt: skip
                return 201, self._shown(self.jobs[key])
            if name is None:
                items = [self._shown(job) for (space, _), job in self.jobs.items() if space == namespace]
                return 200, self._list("JobList", items, selector, query)
            job = self.jobs.get((namespace, name))
            if job is None:
                return 404, missing
            if method == "DELETE":
                uid = ((body or {}).get("preconditions") or {}).get("uid")
                if uid not in (None, job["uid"]):
                    return 409, {"kind": "Status", "message": "the UID is another", "code": 409}
                job["deleting"] = True
                for pod in self.running():
                    if pod["job"] == (namespace, name):
                        pod["process"].terminate()
            return 200, self._shown(job)
        if match := re.fullmatch(r"/api/v1/namespaces/([^/]+)/pods", path):
            items = [self._pod_shown(pod) for pod in self.pods if pod["job"][0] == match[1]]
            return 200, self._list("PodList", items, selector, query)
        if match := re.fullmatch(r"/api/v1/namespaces/[^/]+/persistentvolumeclaims/([^/]+)", path):
            return (200, {"metadata": {"name": match[1]}}) if match[1] in self.claims else (404, missing)
        return 404, missing

    def _list(self, kind: str, items: list[Any], selector: dict[str, str], query: dict[str, list[str]]) -> Any:
        items = [one for one in items if selector.items() <= (one["metadata"].get("labels") or {}).items()]
        limit = min(int((query.get("limit") or ["500"])[0]), self.page or 500)
        start = int((query.get("continue") or ["0"])[0])
        token = str(start + limit) if len(items) > start + limit else ""
        return {"kind": kind, "metadata": {"continue": token}, "items": items[start : start + limit]}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                parts = urlsplit(self.path)
                with cluster.lock:
                    status, value = cluster.answer(self.command, parts.path, parse_qs(parts.query), body)
                    text = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_DELETE = _serve

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
