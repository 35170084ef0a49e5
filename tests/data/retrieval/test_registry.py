"""Every retrieval task that is declared has a file that makes it, a property test and a line in the docs."""

from pathlib import Path

import pytest

from configs import fields
from configs.errors import UserError
from configs.rules import tasks
from data import retrieval
from tests.data.common import settings
from tests.data.retrieval.common import made

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", tasks.TASKS)
def test_a_declared_task_is_made_tested_and_described(name: str) -> None:
    task, declared = made(name), tasks.RETRIEVAL[name]
    assert task.name == name
    assert (declared.tokens is None) == (declared.vocabulary is None) == declared.words
    assert isinstance(task, retrieval.PairTask) == declared.pairs
    assert f"data.weights.{name}" in fields.types()
    assert f"| `{name}` |" in (ROOT / "docs/retrieval.md").read_text()
    assert declared.words == bool(declared.haystack or declared.file) or name in ("cwe", "fwe")
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert f"retrieval.{declared.module} import" in tests or f'"{name}"' in tests


def test_every_file_that_makes_a_task_is_declared() -> None:
    files = {path.stem for path in (ROOT / "data/retrieval").glob("*.py") if "\ndef make(setting" in path.read_text()}
    assert files == {declared.module for declared in tasks.RETRIEVAL.values()}


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(UserError, match="'passkeys' is not a retrieval task; did you mean"):
        retrieval.make("passkeys", settings(), None, None)
