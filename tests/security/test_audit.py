"""What could execute something that it reads: there is none of it but where config and sweep files are run."""

import ast
from pathlib import Path

import pytest

ROOMS = (
    "configs models data training eval convert sweeps report torture".split()
)  # bench has torch, in an environment of its own
UNSAFE = {"pickle", "cPickle", "dill", "shelve", "marshal", "joblib", "cloudpickle", "torch", "tarfile", "zipfile"}
# Where Python files of the user's are run; docs/security.md says that these are code.
RUN = {"configs/cli.py": {"exec_module"}}
CALLS = {
    "eval",
    "exec",
    "exec_module",
    "compile_command",
    "run_path",
    "execfile",
    "unpack_archive",
    "extractall",
    "popen",
}


def sources() -> list[Path]:
    return [Path("train.py"), *(path for room in ROOMS for path in sorted(Path(room).rglob("*.py")))]


def unsafe(tree: ast.AST) -> set[str]:
    """Returns what could execute what it reads: modules, calls by name, and the arguments that allow it."""
    result = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            result |= {name for name in names if name.split(".")[0] in UNSAFE}
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = getattr(getattr(node.func, "value", None), "id", "") if isinstance(node.func, ast.Attribute) else ""
        if name in CALLS and owner not in ("cls", "self"):
            result.add(name)
        if owner == "os" and name == "system":
            result.add("os.system")
        if owner == "yaml" and name in ("load", "load_all", "unsafe_load"):
            result.add(f"yaml.{name}")
        for keyword in node.keywords:
            true = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
            if keyword.arg in ("shell", "allow_pickle", "trust_remote_code") and true:
                result.add(f"{keyword.arg}=True")
    return result


def test_nothing_that_is_read_is_executed() -> None:
    results = {str(path): unsafe(ast.parse(path.read_text(encoding="utf-8"))) for path in sources()}
    assert len(results) > 200 and {path: what for path, what in results.items() if what} == RUN


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from torch import load", "eval('1')", "np.load(f, allow_pickle=True)", "os.system('ls')",
     "yaml.load(f)", "subprocess.run(x, shell=True)", "import tarfile", "exec(text)"],
)  # fmt: skip
def test_the_audit_sees_them(code: str) -> None:
    assert unsafe(ast.parse(code))
