"""Every fault listed in docs/faults.md has a test."""

from pathlib import Path

from tests.faults import BROKEN, FAULTS, PAGE, marked, page


def test_every_fault_has_a_test() -> None:
    assert sorted(FAULTS) == list(range(1, 28))
    assert sorted(marked()) == sorted(FAULTS)


def test_the_page_is_that_of_the_marks() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.faults"


def test_what_was_broken_on_purpose_names_tests_that_prove_that_fault() -> None:
    tests = marked()
    assert all(test in tests[number] for number, _, test in BROKEN)
    assert len({number for number, *_ in BROKEN}) >= 10


def test_marks_are_read_and_slow_ones_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_a.py").write_text(
        "import pytest\n@pytest.mark.fault(3, 7)\n@pytest.mark.parametrize('x', [1])\ndef test_one(x): ...\n"
        "@pytest.mark.slow\n@pytest.mark.fault(4)\ndef test_two(): ...\ndef test_three(): ...\n"
        "class TestGroup:\n    @pytest.mark.fault(7)\n    def test_four(self): ...\n"
    )
    here = "tests/test_a.py::"
    assert marked(folder) == {3: [f"{here}test_one"], 7: [f"{here}test_one", f"{here}test_four"]}
