"""What the audit of dependencies found, and what it could not ask, are told apart."""

import json

import pytest

from bench import audit

CLEAN = {"name": "jax", "version": "0.10.2", "vulns": []}
BAD = {"name": "old", "version": "1.0", "vulns": [{"id": "GHSA-1", "fix_versions": ["1.1"], "aliases": []}]}
SILENT = {"name": "numpy", "skip_reason": "Dependency not found on PyPI and could not be audited: numpy (2.4)"}


@pytest.mark.parametrize(
    ("dependencies", "code", "message"),
    [
        ([CLEAN], 0, "1 dependencies, 0 vulnerabilities, 0 without an answer"),
        ([CLEAN, BAD], 1, "vulnerable: old 1.0: GHSA-1, fixed in 1.1"),
        ([BAD, SILENT], 1, "no answer: numpy: Dependency not found"),
        ([CLEAN, SILENT], 3, "0 vulnerabilities, 1 without an answer"),
        ([], 3, "no dependency"),
    ],
)
def test_found_and_unanswered_are_told_apart(dependencies, code, message):
    output = json.dumps({"dependencies": dependencies, "fixes": []})
    got, lines = audit.verdict(output, "", "osv")
    assert got == code and message in "\n".join(lines)


@pytest.mark.parametrize("output", ["", "{", "[]", '{"fixes": []}'])
def test_a_service_that_cannot_be_reached_is_no_finding(output):
    errors = "Traceback\n  ...\nrequests.exceptions.ConnectionError: no route\n"
    code, (line,) = audit.verdict(output, errors, "pypi")
    assert code == 3 and "did not answer" in line and "no route" in line


def test_a_program_that_fails_ends_with_its_own_code(capsys):
    assert audit.main(["false", "pypi"]) == 3
    assert "audit: pypi did not answer" in capsys.readouterr().err
