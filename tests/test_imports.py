"""Imports run one way; the report needs no JAX and nothing needs TensorFlow or PyTorch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = ("configs", "models", "data", "training", "train", "eval", "convert", "sweeps", "report", "torture")
ALLOWED = {
    "configs": set(),
    "models": {"configs"},
    "data": {"configs"},
    "training": {"configs", "models", "data"},
    "train": {"configs", "training"},
    "eval": {"configs", "models", "data", "training"},
    "convert": {"configs", "models", "data", "training"},
    "sweeps": {"configs", "models", "training", "train", "eval", "report"},
    "report": {"configs"},
    "torture": {"configs", "data", "training", "eval", "report"},
}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def sources(room: str) -> list[Path]:
    return [Path(f"{room}.py")] if Path(f"{room}.py").exists() else sorted(Path(room).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_one_way(room: str) -> None:
    for path in sources(room):
        others = imported(path) & set(ROOMS) - {room}
        assert others <= ALLOWED[room], f"{path} imports {sorted(others - ALLOWED[room])}"


@pytest.mark.parametrize("room", ROOMS)
def test_no_file_is_long_and_no_pickle_is_read(room: str) -> None:
    for path in sources(room):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 420, path
        assert not imported(path) & {"pickle", "torch", "tensorflow", "transformers"}, path


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        ("report.build, sweeps.status", ("jax", "flax", "tensorflow")),
        ("training.trainer, eval.run, sweeps.launch", ("tensorflow", "torch")),
        ("sweeps.launch, models.counting", ("jax", "flax")),
    ],
)
def test_what_is_loaded(modules: str, forbidden: tuple[str, ...]) -> None:
    code = f"import sys, {modules}; print([m for m in {forbidden!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
