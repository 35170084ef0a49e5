"""python -m tests.fuzz: gives every command spoilt input and prints what came of it.

    python -m tests.fuzz --inputs=300 --seed=0
    python -m tests.fuzz --kinds=corpus,prompts --inputs=1000
    python -m tests.fuzz --kinds=corpus --seed=0 --only=17       # one input again, shown

An input is handled (the command did its work), refused clearly (`error:` lines, exit code 2, naming the file or the
field), or found: a traceback, a hang, an error that names nothing, a wrong number. Exit code 1 where any is found.
Commands run in this process, so that thousands of inputs take minutes; runs whose numbers do not matter to the input
are prepared (config, data, tokenizer, run directory) and not trained.
"""

import argparse
import contextlib
import functools
import io
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from configs import cli
from tests import conftest  # noqa: F401 - compiles in haste, and before JAX is imported
from tests.fuzz import kinds, material, mutate

SECONDS = 300  # from which a command counts as hung; a busy machine can stop one for long


class Hung(BaseException):
    """A command took too long."""


@dataclass
class Count:
    """What came of one kind's inputs."""

    inputs: int = 0
    handled: int = 0
    refused: int = 0
    found: list[str] = field(default_factory=list)


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises `Hung` in what takes longer."""

    def end(*_: Any) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def commands(run: Path) -> dict[str, Callable[[list[str]], int | None]]:
    """Returns the commands by the names that kinds call them; `run` is the good run, which is loaded once."""
    import train
    from convert import from_hf, surgery, to_hf
    from eval import generate
    from eval import run as evaluations
    from report import build, compare
    from sweeps import status
    from sweeps.spec import expand
    from sweeps.store import state
    from training.loop import trainer
    from training.run_directory import run as runs

    def prepared(run: Any) -> dict[str, Any]:
        run.record.update(status="done")
        return run.record.values

    def only_prepared(argv: list[str]) -> int | None:
        with mock.patch.object(trainer, "finish", prepared):
            return train.main(argv)

    def expanded(argv: list[str]) -> int | None:
        expand.load(argv[0].removeprefix("--sweep="))
        return 0

    def taken_up(argv: list[str]) -> int | None:
        sweep = expand.load(argv[0].removeprefix("--sweep="))
        directory = Path(argv[1].removeprefix("--out="))
        with state.launching(directory):
            state.take_up(directory, sweep, "2026-01-01T00:00:00+00:00")
        return 0

    def evaluated(argv: list[str]) -> int | None:
        done = (Path(argv[0].removeprefix("--workdir=")) / "checkpoints").exists()
        return evaluations.main(argv) if done else 0

    load, good = runs.load, functools.cache(runs.load)

    def known(workdir: str | Path, step: int | None = None) -> Any:
        return good(run) if Path(workdir) == run else load(workdir, step)

    mock.patch.object(runs, "load", known).start()
    return {
        "train": only_prepared,
        "train for real": train.main,
        "generate": generate.main,
        "evaluate": evaluations.main,
        "evaluate if done": evaluated,
        "to_hf": to_hf.main,
        "from_hf": from_hf.main,
        "surgery": surgery.main,
        "report": build.main,
        "compare": compare.main,
        "status": status.main,
        "expand": expanded,
        "take up": taken_up,
    }


def attempt(main: Callable[[list[str]], int | None], argv: list[str]) -> tuple[str, str]:
    """Returns ("handled" | "refused" | "found", what was said)."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.ExitStack() as stack:
            for around in (contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mutate.obeying()):
                stack.enter_context(around)
            stack.enter_context(mock.patch.object(sys, "argv", ["command", *argv]))
            stack.enter_context(limited(SECONDS))
            cli.main(main)
    except SystemExit as ended:
        said = err.getvalue()
        if ended.code == 2:
            return "refused", said
        return ("handled", said) if ended.code in (0, 3) else ("found", f"exit code {ended.code}: {said}")
    except Hung:
        return "found", f"hung for {SECONDS} s\n{traceback.format_exc()}"
    except BaseException:
        return "found", traceback.format_exc()
    return "handled", err.getvalue()


def one(kind: str, seed: int, index: int, folder: Path, known: dict[str, Any]) -> tuple[str, str]:
    """Makes one input and gives it to its commands: the outcome, and what was said."""
    draw = random.Random(f"{kind} {seed} {index}")
    work = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        case = kinds.KINDS[kind](draw, folder, work)
        outcome, said = "handled", ""
        for name, argv in case.calls:
            outcome, said = attempt(known[name], argv)
            said = f"{case.how}\n{name} {' '.join(argv)}\n{said}"
            if outcome == "refused":
                lines = [line for line in said.split("\n")[2:] if line.startswith("error: ")]
                if not lines or len(said) > 100_000:
                    outcome = "found"
                elif case.names and not any(name in "\n".join(lines) for name in case.names):
                    outcome, said = "found", f"names no file: {said}"
            if outcome != "handled":
                return outcome, said
        wrong = case.check()
        return ("found", f"{wrong}\n{said}") if wrong else (outcome, said)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def sweeps(folder: Path) -> None:
    """Adds a sweep with made-up results, and one that was launched, to the material."""
    from sweeps.spec import expand
    from sweeps.store import state
    from tests.report import synthetic

    budget = {"budget": {"kind": "steps", "amount": 100.0}}
    arms = {"h1": synthetic.config(1) | budget, "h2": synthetic.config(2) | budget}
    evals = {"loss": synthetic.loss_json(1.7, ("yarn",)), "retrieval": synthetic.retrieval_json(1.0, ("yarn",), (1, 2))}
    evals |= {
        "throughput": synthetic.throughput_json(),
        "memory": synthetic.memory_json(),
        "heads": synthetic.heads_json(2, 2),
    }
    for arm in arms:
        for seed in (0, 1):
            where = folder / "sweep" / "runs" / arm / f"seed{seed}"
            synthetic.write_run(
                where, info=synthetic.run_json(seed), lines=synthetic.metrics(1.7, seed, 12), evals=evals
            )
    study = synthetic.study_json("heads", arms, [0, 1], evals=list(evals))
    synthetic.write_sweep(folder / "sweep", [study])
    path = folder / "small.py"
    path.write_text(kinds._as_python({**material.SWEEP, "base": str(folder / "preset.py")}))
    launched = folder / "launched"
    state.take_up(launched, expand.load(path), "2026-01-01T00:00:00+00:00")
    for run in expand.load(path).runs()[:2]:
        shutil.copytree(folder / "run", state.run_dir(launched, run.arm, run.seed))
        from configs import fields
        from training.run_directory.files import write_json

        write_json(state.run_dir(launched, run.arm, run.seed) / "config.json", fields.to_dict(run.config))


def checked_once() -> Callable[..., list[Any]]:
    """Returns Altair's check of a chart against its schema, which a chart that passed is not given to again.

    Most of a report's time is that check, and most of a report is the same whichever file of its sweep is spoilt.
    """
    from altair.utils import schemapi

    check, passed = schemapi._get_errors_from_spec, set()

    def checked(spec: Any, schema: dict[str, Any], rootschema: dict[str, Any] | None = None) -> list[Any]:
        known = hash((json.dumps(spec, default=repr), json.dumps(schema) if rootschema else id(schema), id(rootschema)))
        if known in passed:
            return []
        errors = check(spec, schema, rootschema)
        if not errors:
            passed.add(known)
        return errors

    return checked


def fuzz(names: Sequence[str], inputs: int, seed: int, only: int | None = None) -> dict[str, Count]:
    """Gives each kind as many inputs; findings are printed as they come."""
    warnings.simplefilter("ignore")
    from altair.utils import schemapi

    from report.charts import export

    counts = {name: Count() for name in names}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        with contextlib.redirect_stdout(io.StringIO()):
            folder = material.make(Path(scratch) / "material", trained=bool({*names} & {*kinds.TRAINED}))
            sweeps(folder)
        known = commands(folder / "run")
        # Drawing takes a second a page; what is drawn is made all the same.
        drawn = {"svg": lambda spec: "<svg/>", "png": lambda svg: b"png", "pdf": lambda svg: b"pdf"}
        # A spoilt data.cache_dir is a folder that is made: let it be made in here.
        here = Path(scratch) / "a" / "b" / "c"
        here.mkdir(parents=True)
        once = mock.patch.object(schemapi, "_get_errors_from_spec", checked_once())
        with mock.patch.multiple(export, **drawn), once, contextlib.chdir(here):
            for name in names:
                begun = time.monotonic()
                for index in range(inputs) if only is None else [only]:
                    outcome, said = one(name, seed, index, folder, known)
                    count = counts[name]
                    count.inputs += 1
                    count.handled += outcome == "handled"
                    count.refused += outcome == "refused"
                    if outcome == "found":
                        count.found.append(said)
                    if outcome == "found" or only is not None:
                        print(f"--- {name} --seed={seed} --only={index}: {outcome}\n{said}", flush=True)
                print(f"{name}: {counts[name].inputs} in {time.monotonic() - begun:.0f} s", flush=True)
    return counts


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100, help="of each kind (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(kinds.KINDS), help="of %(default)s")
    parser.add_argument("--only", type=int, help="the number of one input")
    args = parser.parse_args(argv)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # half a character may be in a finding
    counts = fuzz(args.kinds.split(","), args.inputs, args.seed, args.only)
    print(f"{'kind':16} {'inputs':>7} {'handled':>8} {'refused':>8} {'found':>6}")
    for name, count in counts.items():
        print(f"{name:16} {count.inputs:7} {count.handled:8} {count.refused:8} {len(count.found):6}")
    return 1 if any(count.found for count in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
