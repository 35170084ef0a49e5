"""The pinned dependencies against a list of known vulnerabilities; `make audit` runs it.

    python -m bench.audit PIP_AUDIT SERVICE

Ends with 0 where every dependency was answered for and nothing is known of any; with 1 where a vulnerability was found;
with 3 where nothing was found but the service did not answer for all, which is no finding and no clean bill either.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

CLEAN, FOUND, NO_ANSWER = 0, 1, 3
OPTIONS = ("--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", "--requirement=constraints.txt")


def verdict(output: str, errors: str, service: str) -> tuple[int, list[str]]:
    """Returns the exit code, and the lines that say why.

    Args:
        output: of pip-audit, JSON where it came to an end.
        errors: what it said beside.
        service: that was asked.
    """
    try:
        dependencies: list[Mapping[str, Any]] = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        messages = [line.strip() for line in errors.splitlines() if line.strip()]
        return NO_ANSWER, [f"{service} gave no answer, so nothing is known: {(messages or ['no output'])[-1]}"]
    results = [
        f"{one['name']} {one['version']}: {vulnerability['id']}, fixed in "
        f"{', '.join(vulnerability.get('fix_versions') or ['no version yet'])}"
        for one in dependencies
        for vulnerability in one.get("vulns", ())
    ]
    silent = [f"{one['name']}: {one['skip_reason']}" for one in dependencies if "skip_reason" in one]
    lines = [f"vulnerable: {line}" for line in results] + [f"no answer: {line}" for line in silent]
    if not dependencies:
        return NO_ANSWER, [f"{service} was asked about no dependency"]
    summary = f"{len(dependencies)} dependencies, {len(results)} vulnerabilities, {len(silent)} without an answer"
    return FOUND if results else NO_ANSWER if silent else CLEAN, [*lines, f"{service}: {summary}"]


def main(argv: Sequence[str]) -> int:
    """Runs pip-audit and says what came of it."""
    program, service = argv
    ran = subprocess.run([program, *OPTIONS, f"--vulnerability-service={service}"], capture_output=True, text=True)
    code, lines = verdict(ran.stdout, ran.stderr, service)
    print("\n".join(f"audit: {line}" for line in lines), file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
