"""python -m bench.device: checks and measures this machine's accelerator, in one command and twenty minutes.

Equivalence of every attention kernel, thirty training steps of each preset (beside transformers under torch.compile if
PyTorch is installed), measured memory beside compiled, prefill and decode at batch 1, 8 and 64, packs of runs, and
profiles. Each part is a process with its own time limit: if one fails, the others still run. DIR/device.md and
DIR/device.json begin with what is wrong; they are rewritten after each part. Exit code 1 if something is wrong.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.device import parts, report
from configs import cli
from configs.errors import UserError, nearest

LEAST = 20.0  # minimum seconds of a part, so that those after a slow one still measure something
# Weights for dividing the time; time that a part leaves over goes to those after it.
WEIGHTS = {"device": 1.0, "equivalence": 4.0, "train": 3.0, "peer": 3.0, "decode": 2.0, "packs": 1.0, "profile": 1.5}


@dataclass(frozen=True)
class Part:
    """A process that writes JSON to a path.

    Attributes:
        command: from the path to the command line.
        weight: of its share of the time.
    """

    name: str
    command: Callable[[Path], Sequence[str]]
    weight: float


def ours(name: str, tiny: bool) -> Part:
    """Returns a part of `parts.PARTS`."""
    extra = ["tiny"] if tiny else []
    return Part(
        name,
        lambda out: [sys.executable, "-m", "bench.device.parts", name, str(out), *extra],
        WEIGHTS[name.partition(" ")[0]],
    )


def peer(name: str, tiny: bool, python: str, folder: Path) -> Part:
    """Returns the part that runs transformers on a preset, with a Python that has PyTorch."""

    def command(out: Path) -> list[str]:
        cases = folder / f"peer_{name}.cases.json"
        cases.write_text(json.dumps(parts.peer_cases(name, tiny)), encoding="utf-8")
        return [python, "-m", "bench.device.peer", str(cases), str(out)]

    return Part(f"peer {name}", command, WEIGHTS["peer"])


def chosen(tiny: bool, python: str, folder: Path) -> list[Part]:
    """Returns all parts except the first, the device's own, most important first."""
    results = [ours("equivalence", tiny)]
    for name in parts.PRESETS:
        results += [ours(f"train {name}", tiny), peer(name, tiny, python, folder)]
    return [*results, *(ours(name, tiny) for name in parts.PARTS if name.startswith(("decode", "packs", "profile")))]


def run(part: Part, folder: Path, limit: float) -> dict[str, Any]:
    """Runs a part for at most `limit` seconds; returns its results, or how it ended and what it had saved.

    Its output is in FOLDER/NAME.log. `status` is done, failed or timeout; what failed is in `wrong`.
    """
    stem = part.name.replace(" ", "_")
    out, log = folder / f"{stem}.json", folder / f"{stem}.log"
    out.unlink(missing_ok=True)
    began = time.perf_counter()

    def ended(status: str, why: str) -> dict[str, Any]:
        took = time.perf_counter() - began
        try:
            saved = json.loads(out.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            saved = {}
        messages = [*saved.get("wrong", ()), f"{part.name}: {why} ({log.name})"]
        return {**saved, "status": status, "took": took, "wrong": messages}

    try:
        with log.open("wb") as said:
            process = subprocess.Popen(
                part.command(out), cwd=parts.CHECKOUT, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                return ended("timeout", f"took more than its {limit:.0f} s")
            finally:
                _end(process)
        if code:
            why = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            return ended("failed", f"{why}: {last_line(log)}")
        result = json.loads(out.read_text(encoding="utf-8"))
    except (Exception, SystemExit) as error:  # from the part, its output, or the disk
        return ended("failed", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    return {"status": "done", "took": time.perf_counter() - began, **result}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a part's process and its children, and waits for it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_line(log: Path) -> str:
    """Returns the last line of a process's output."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def run_all(
    results: dict[str, dict[str, Any]], todo: Sequence[Part], folder: Path, until: float, message: Callable[[str], None]
) -> None:
    """Runs parts in turn until a time (of `time.monotonic`), and writes the report after each.

    Args:
        results: of each part, by name; filled here.
        todo: the remaining parts.
        folder: for the files.
        until: when all should be finished.
        message: called with a line before and after each.
    """
    for index, part in enumerate(todo):
        left = until - time.monotonic()
        share = part.weight / sum(other.weight for other in todo[index:])
        if left < LEAST and index:
            results[part.name] = {"status": "not run", "took": 0.0, "wrong": [], "not_run": "no time was left"}
        else:
            limit = max(LEAST, left * share if index + 1 < len(todo) else left)
            message(f"{part.name} (at most {limit:.0f} s)")
            results[part.name] = run(part, folder, limit)
            message(f"{part.name}: {results[part.name]['status']} in {results[part.name]['took']:.0f} s")
        report.write(folder, results)


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument("--out", type=Path, default=Path("build/device"), help="folder of device.md and device.json")
    parser.add_argument("--minutes", type=float, default=20.0, help="approximate total time (20)")
    parser.add_argument("--only", default="", metavar="NAMES", help="parts, comma-separated; see --list")
    parser.add_argument("--list", action="store_true", help="print the names of all parts")
    parser.add_argument("--tiny", action="store_true", help="the sizes for a CPU, on any device")
    parser.add_argument("--torch-python", default=sys.executable, help="a Python with PyTorch and transformers")
    args = parser.parse_args(argv)
    if not 0 < args.minutes < 24 * 60:
        raise UserError(f"--minutes={args.minutes:g}: must be above 0 and less than a day")
    names = [part.name for part in chosen(True, args.torch_python, args.out)]
    if args.list:
        print("\n".join(["device", *names]))
        return 0
    expected = [name.strip().replace("_", " ", 1) for name in args.only.split(",") if name.strip()]
    for name in expected:
        if name not in ("device", *names):
            raise UserError(f"--only={args.only}: {name!r} is not a part{nearest(name, ('device', *names))} (--list)")
    if shutil.which(args.torch_python) is None:
        raise UserError(f"--torch-python={args.torch_python}: cannot be run")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out={args.out}: cannot be created: {error.strerror}") from error
    folder, until = args.out.resolve(), time.monotonic() + 60 * args.minutes

    def report_line(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    results: dict[str, dict[str, Any]] = {}
    run_all(results, [ours("device", args.tiny)], folder, time.monotonic() + max(LEAST, 6 * args.minutes), report_line)
    tiny = args.tiny or results["device"].get("device", {}).get("platform", "cpu") == "cpu"
    todo = [part for part in chosen(tiny, args.torch_python, folder) if not expected or part.name in expected]
    run_all(results, todo, folder, until, report_line)
    print((folder / "device.md").read_text(encoding="utf-8"), end="")
    return 1 if report.wrong(results) else 0


if __name__ == "__main__":
    cli.main(main)
