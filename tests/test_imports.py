"""Imports run one way; the report needs no JAX and nothing needs TensorFlow or PyTorch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = ("configs", "models", "data", "training", "train", "eval", "convert", "sweeps", "report", "studies")
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
    "studies": {"configs", "report"},
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
def test_rooms_read_no_pickle_and_no_other_framework(room: str) -> None:
    for path in sources(room):
        assert not imported(path) & {"pickle", "torch", "tensorflow", "transformers"}, path


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def graph() -> dict[str, set[str]]:
    """Every module of the rooms with the modules that it imports, inside functions and for types included."""
    paths = {module_of(path): path for room in ROOMS for path in sources(room)}
    edges: dict[str, set[str]] = {}
    for module, path in paths.items():
        edges[module] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                edges[module] |= {alias.name for alias in node.names} & set(paths)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                edges[module] |= full & set(paths)
                if not full <= set(paths):
                    edges[module] |= {node.module} & set(paths)
    return edges


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected groups of more than one module."""
    reach = {module: set(others) for module, others in edges.items()}
    for middle in edges:
        for module in edges:
            if middle in reach[module]:
                reach[module] |= reach[middle]
    groups = {tuple(sorted({b for b in edges if b in reach[a] and a in reach[b]})) for a in edges}
    return sorted(list(group) for group in groups if len(group) > 1)


def test_no_modules_import_each_other() -> None:
    assert circles(graph()) == []


def test_a_circle_would_be_seen() -> None:
    edges = graph()
    edges["configs.errors"] = edges["configs.errors"] | {"sweeps.launch"}
    assert circles(edges)


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        ("report.build, sweeps.status, studies.build, studies.run", ("jax", "flax", "tensorflow")),
        ("training.loop.trainer, eval.run, sweeps.launch", ("tensorflow", "torch")),
        ("sweeps.launch, models.counting", ("jax", "flax")),
        ("sweeps.execution.serve, sweeps.status", ("jax", "scipy.special", "scipy.optimize", "pandas")),
    ],
)
def test_what_is_loaded(modules: str, forbidden: tuple[str, ...]) -> None:
    code = f"import sys, {modules}; print([m for m in {forbidden!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
