"""The pinned dependencies against a list of known vulnerabilities; `make audit` runs it.

    python -m bench.audit PIP_AUDIT SERVICE

Exit code 0 if every dependency was checked and none has a known vulnerability; 1 if a vulnerability was found; 3 if
none was found but the service did not answer for all, which is neither a finding nor a clean result.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

CLEAN, FOUND, NO_ANSWER = 0, 1, 3
OPTIONS = ("--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", "--requirement=constraints.txt")


def verdict(output: str, errors: str, service: str) -> tuple[int, list[str]]:
    """Returns the exit code, and the lines that explain it.

    Args:
        output: of pip-audit, JSON if it finished.
        errors: its standard error.
        service: that was queried.
    """
    try:
        dependencies: list[Mapping[str, Any]] = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        messages = [line.strip() for line in errors.splitlines() if line.strip()]
        return NO_ANSWER, [f"{service} did not answer, so nothing is known: {(messages or ['no output'])[-1]}"]
    results = [
        f"{one['name']} {one['version']}: {vulnerability['id']}, fixed in "
        f"{', '.join(vulnerability.get('fix_versions') or ['no version yet'])}"
        for one in dependencies
        for vulnerability in one.get("vulns", ())
    ]
    silent = [f"{one['name']}: {one['skip_reason']}" for one in dependencies if "skip_reason" in one]
    lines = [f"vulnerable: {line}" for line in results] + [f"no answer: {line}" for line in silent]
    if not dependencies:
        return NO_ANSWER, [f"{service} checked no dependency"]
    summary = f"{len(dependencies)} dependencies, {len(results)} vulnerabilities, {len(silent)} without an answer"
    return FOUND if results else NO_ANSWER if silent else CLEAN, [*lines, f"{service}: {summary}"]


def main(argv: Sequence[str]) -> int:
    """Runs pip-audit and prints the verdict."""
    program, service = argv
    ran = subprocess.run([program, *OPTIONS, f"--vulnerability-service={service}"], capture_output=True, text=True)
    code, lines = verdict(ran.stdout, ran.stderr, service)
    print("\n".join(f"audit: {line}" for line in lines), file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
