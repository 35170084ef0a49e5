"""Our speed compared with peers', in one run: `make bench`.

Peers: transformers' Llama in PyTorch (SDPA, fused AdamW), in a separate environment that is made at the first call;
plain JAX as commonly written; and with --maxtext MaxText, in another environment (Python 3.12). Each is a process that
waits while another works; they take turns on the same shapes with the same number of threads. Then the share of a
sweep's time in training and evaluation, and the growth of training memory with length. Beside our time is the share of
the machine's limit that it reaches (`bench.speed.machine`). Prints a table, and writes it and all measurements to
--out.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.environment import MAXTEXT, MAXTEXT_PYTHON, environment
from bench.speed import peers, sweep, table
from bench.speed.cases import CASES, Case
from bench.speed.peers import CHECKOUT, OURS
from configs import cli
from eval.progress import Reporter
from sweeps.launchers.resources import cores


def chosen(given: argparse.Namespace) -> list[Case]:
    """Returns the requested cases, in the requested dtype."""
    cases = [case for case in CASES if not given.only or given.only in case.name]

    def peers_of(case: Case) -> tuple[str, ...]:
        compiled = ("torch.compile",) if given.compile else ()
        return case.peers + compiled + (("maxtext",) if given.maxtext and case.kind == "train" else ())

    return [dataclasses.replace(case, dtype=given.dtype, peers=peers_of(case)) for case in cases]


def apart(module: str, *arguments: str) -> dict[str, Any]:
    """Returns the JSON that a module of bench.speed prints, run in a separate process."""
    line = [sys.executable, "-m", f"bench.speed.{module}", *arguments]
    return json.loads(subprocess.run(line, cwd=CHECKOUT, check=True, stdout=subprocess.PIPE, text=True).stdout)


def shapes(given: argparse.Namespace, message: Reporter) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Measures every case; returns a row for each, and the versions."""
    python = given.python or environment(given.environment)
    maxtext = None
    if given.maxtext:
        maxtext = given.maxtext_python or environment(given.maxtext_environment, MAXTEXT, MAXTEXT_PYTHON)
    rows = []
    message.say("limits: the rates of a large matmul and of reading")
    limit = apart("machine", f"--threads={given.threads}", f"--dtype={given.dtype}")
    with peers.started(peers.commands(python, given.threads, compiled=given.compile, maxtext=maxtext)) as result:
        about = {name: version for peer in result.values() for name, version in peer.about.items()}
        for case in message.track("shapes", chosen(given)):
            taking_part = [result[OURS], *(result[name] for name in case.peers)]
            seconds = peers.measure(case, taking_part, given.rounds, given.seconds)
            medians = {name: statistics.median(times) for name, times in seconds.items()}
            row = {**dataclasses.asdict(case), "tokens": case.tokens, "limit": limit[case.name]}
            rows.append({**row, "medians": medians, "seconds": seconds})
    return rows, about


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = CHECKOUT / "build"
    parser.add_argument("--out", type=Path, default=default / "bench", help="folder for speed.json and speed.md")
    parser.add_argument(
        "--environment", type=Path, default=default / "hf", help="PyTorch's environment, created if absent"
    )
    parser.add_argument("--python", type=Path, help="an existing Python with PyTorch and transformers, instead")
    parser.add_argument("--threads", type=int, default=cores(), help="of every peer (default: all cores)")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each peer (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="minimum seconds of a turn (default: %(default)s)")
    parser.add_argument("--only", default="", help="only cases with this in their name; no sweep and no memory")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of activations")
    parser.add_argument("--compile", action="store_true", help="also transformers under torch.compile")
    parser.add_argument("--maxtext", action="store_true", help="also MaxText's training steps")
    parser.add_argument(
        "--maxtext-environment", type=Path, default=default / "maxtext", help="MaxText's environment, created if absent"
    )
    parser.add_argument("--maxtext-python", type=Path, help="an existing Python with MaxText, instead")
    parser.add_argument("--no-sweep", action="store_true", help="skip the sweep, which takes three minutes")
    parser.add_argument("--whole-sweep", action="store_true", help="all five arms of it, not two: eight minutes")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """The command; returns 0 for all ratios."""
    given = parsed(argv)
    began, message = time.perf_counter(), Reporter()
    rows, about = shapes(given, message)
    results: dict[str, Any] = {"about": about, "threads": given.threads, "load": os.getloadavg()[0], "shapes": rows}
    if not given.only:
        message.say("memory: compiling two lengths")
        results["memory"] = apart("memory")
        if not given.no_sweep:
            message.say("sweep: head_count.py at the size of tiny.py, minutes")
            results["sweep"] = sweep.measure(given.threads, whole=given.whole_sweep)
    results["took"] = time.perf_counter() - began
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "speed.json").write_text(json.dumps(results, indent=1) + "\n")
    (given.out / "speed.md").write_text(table.markdown(results))
    message.show(table.drawn(results))
    message.say(f"{given.out}/speed.json and speed.md; {results['took']:.0f} s")
    return 0


if __name__ == "__main__":
    cli.main(main)
