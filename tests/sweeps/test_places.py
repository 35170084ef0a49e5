"""The machine divided: cores without oversubscription, a device a worker."""

import subprocess
import sys

import pytest

from configs.errors import UserError
from sweeps.launchers import resources
from sweeps.launchers.resources import Machine


def env(here, workers, runs, tmp_path):
    return [place.env for place in resources.places(here, workers, runs, tmp_path)]


@pytest.mark.parametrize("cores, workers, runs, number, threads", [
    (2, None, 9, 2, 1), (8, None, 3, 3, 2), (8, 3, 9, 3, 2), (2, 4, 9, 4, 1), (4, 1, 9, 1, 4), (4, None, 1, 1, 4),
])  # fmt: skip
def test_workers_on_the_cpu_ask_for_no_more_than_the_cores(
    tmp_path, monkeypatch, cores, workers, runs, number, threads
):
    monkeypatch.setattr(resources.psutil, "virtual_memory", lambda: type("M", (), {"available": 1e12}))
    result = env(Machine("cpu", 1, cores), workers, runs, tmp_path)
    assert [e["NPROC"] for e in result] == [str(threads)] * number


def test_little_memory_means_fewer_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(resources.psutil, "virtual_memory", lambda: type("M", (), {"available": 4e9}))
    assert len(env(Machine("cpu", 1, 64), None, 100, tmp_path)) == 2


def test_each_gpu_has_one_worker(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    result = env(Machine("gpu", 4, 64), None, 9, tmp_path)
    assert result == [{"CUDA_VISIBLE_DEVICES": str(i)} for i in range(4)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    assert [e["CUDA_VISIBLE_DEVICES"] for e in env(Machine("gpu", 2, 64), 2, 9, tmp_path)] == ["3", "GPU-5"]
    shared = env(Machine("gpu", 2, 64), 3, 9, tmp_path)
    assert [e["CUDA_VISIBLE_DEVICES"] for e in shared] == ["3", "GPU-5", "3"]
    assert {e["XLA_PYTHON_CLIENT_MEM_FRACTION"] for e in shared} == {"0.450"}
    assert resources.shared(Machine("gpu", 2, 64), 3) and not resources.shared(Machine("gpu", 2, 64), 2)


def test_a_tpu_belongs_to_one_process(tmp_path):
    assert env(Machine("tpu", 4, 64), None, 9, tmp_path) == [{}]
    with pytest.raises(UserError, match="one process"):
        env(Machine("tpu", 4, 64), 2, 9, tmp_path)


def test_the_setting_keeps_jax_to_its_cores():
    """A worker with one thread must not use more processor time than has passed, however large the product."""
    code = """
import os, time
os.environ.update(%r)
import jax, jax.numpy as jnp
f = jax.jit(lambda a: jnp.exp(a @ a * 1e-3).sum())
a = jnp.ones((1000, 1000))
f(a).block_until_ready()
wall, cpu = time.perf_counter(), time.process_time()
for _ in range(20): f(a).block_until_ready()
print((time.process_time() - cpu) / (time.perf_counter() - wall))
"""
    env = dict.fromkeys(resources.THREADS, "1")
    done = subprocess.run([sys.executable, "-c", code % env], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.2
