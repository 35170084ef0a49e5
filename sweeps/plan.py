"""python -m sweeps.plan: the cost of every arm of a sweep, before anything is spent.

Parameters, FLOPs and KV bytes per token by formula; memory, bytes moved, collectives and (on TPUs) estimated cycles
from the compiler, using shapes alone: nothing is allocated and no data is read (unless only the tokenizer knows the
vocabulary). Arms of equal shapes are compiled once. An arm that does not fit is reported with required and available
memory.
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m sweeps.plan")

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ml_collections import ConfigDict
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from configs import cli, validate
from configs.errors import UserError
from sweeps.launchers import resources
from sweeps.plans import table, targets
from sweeps.plans.line import Line
from sweeps.plans.targets import Target
from sweeps.spec import expand, match
from sweeps.spec.sweep import Arm, Study, Sweep
from training.runtime import startup

if TYPE_CHECKING:  # it starts JAX, which --help should not
    from sweeps.plans.programs import Program
    from training.devices.chips import Chip

SCHEMA = 2
PROGRAMS = ("train_step", "decode")
ASSUMED_MFU = 0.4  # typical of well-tuned training of dense transformers; an assumption of the hours, not a result


Known = dict[tuple[str, str], "Program"]  # by the program's identity, and its name


def cost(study: Study, arm: Arm, target: Target, names: Sequence[str], known: Known | None = None) -> Line:
    """Returns the cost of an arm, with its programs compiled for a target.

    Args:
        study: the arm's.
        arm: which.
        target: what to compile for.
        names: of the programs.
        known: programs compiled for other arms, by identity; updated here.
    """
    from models import counting, platform
    from sweeps.plans import programs as plan_programs

    known = {} if known is None else known
    config = match.with_vocabulary(arm.config)
    with platform.compiling_for(target.platform):
        element = plan_programs.programs.element_bytes(config)
    tokens, flops = budget(config, lambda length: counting.flops_per_token(config.model, length)["value"])
    if config.init_state == "branch" and tokens and flops:  # the rest is part of the longer run
        tokens, flops = round(tokens * config.optimizer.decay_share), flops * config.optimizer.decay_share
    start = time.perf_counter()
    largest = with_largest_stage(config)
    for name in names:
        key = (plan_programs.identity(largest), name)
        if key not in known:
            known[key] = plan_programs.compiled(largest, target, name)
    devices = plan_programs.device_count(config, target)
    return Line(
        study=study.name,
        arm=arm.name,
        runs=len(study.seeds),
        parameters=counting.parameters(config.model),
        flops_per_token=counting.flops_per_token(config.model, config.data.length),
        kv_bytes_per_token=counting.kv_bytes_per_token(config.model, element),
        tokens=tokens,
        flops=flops,
        programs={name: known[plan_programs.identity(largest), name] for name in names},
        compile_seconds=time.perf_counter() - start,
        match=tuple(one.described() for one in arm.matches),
        hours_at_mfu=hours_at_mfu(flops, target.chip, devices),
    )


def hours_at_mfu(flops: float | None, chip: "Chip | None", devices: int) -> dict[str, float] | None:
    """Returns the training time at ASSUMED_MFU of the devices' published peak; None if either is unknown."""
    if flops is None or chip is None:
        return None
    return {"mfu": ASSUMED_MFU, "hours": flops / (ASSUMED_MFU * chip.flops * devices) / 3600}


def with_largest_stage(config: ConfigDict) -> ConfigDict:
    """Returns the config at its stage with the most tokens per step (of several, the longest)."""
    _, length, batch = max(stages(config), key=lambda stage: (stage[1] * stage[2], stage[1]))
    changed = validate.from_dict(validate.to_dict(config))
    changed.data.length, changed.data.batch_size = length, batch
    return changed


def budget(config: ConfigDict, flops_per_token: Callable[[int], float]) -> tuple[int | None, float | None]:
    """Returns (tokens, FLOPs) of a run's training; None for a budget in seconds.

    Stages of the curriculum come first, with the cost of their own lengths and batch sizes.
    """
    kind, left = config.budget.kind, float(config.budget.amount)
    if kind == "seconds":
        return None, None
    tokens, flops = 0.0, 0.0
    for steps, length, batch in stages(config):
        each = batch * length
        price = {"steps": 1.0, "tokens": float(each), "flops": each * flops_per_token(length)}[kind]
        taken = min(left / price, steps)
        left -= taken * price
        tokens += taken * each
        flops += taken * each * flops_per_token(length)
    return round(tokens), flops


def stages(config: ConfigDict) -> Iterator[tuple[float, int, int]]:
    """Yields (steps, length, batch size) of each stage; the main setting is last and has no end."""
    for stage in config.data.curriculum:
        yield stage["steps"], stage["length"], stage.get("batch_size", config.data.batch_size)
    yield float("inf"), config.data.length, config.data.batch_size


def plan(
    sweep: Sweep, target: Target, names: Sequence[str], message: Callable[[str], None] = lambda _: None
) -> list[Line]:
    """Returns the cost of every arm; `message` is called with the name of each finished one."""
    lines: list[Line] = []
    known: Known = {}
    for study in sweep.studies:
        for arm in study.arms:
            lines.append(cost(study, arm, target, names, known))
            message(arm.name)
    return lines


def main(argv: list[str]) -> int:
    """The command."""
    overrides, rest = cli.split_overrides(argv)
    parser = cli.parser(__doc__ or "")
    parser.add_argument("--sweep", required=True, metavar="FILE", help="a sweep file, such as configs/sweeps/demo.py")
    parser.add_argument(
        "--target",
        default="cpu",
        help="what to compile for: cpu (the default) or gpu, of this machine; or hardware that is not here: TPUs "
        "v5e:1x1, v5e:2x2, v6e:..., v5p:... (the extra tpu), GPUs h100:1, h100:8, h200:..., a100:..., b200:... "
        "(the extra plan-gpu)",
    )
    parser.add_argument(
        "--programs",
        metavar="NAMES",
        help=f"which to compile, of {','.join(PROGRAMS)}: by default train_step on the cpu, all elsewhere",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the plan as JSON")
    parser.epilog = "--config.x=v changes a field of every arm. Exit code 1 if an arm does not fit or compile."
    args = parser.parse_args(rest)
    targets.check(args.target)
    names = _programs(args.programs, args.target)
    sweep = expand.load(args.sweep, overrides)
    startup.flags()
    if args.target in targets.LOCAL and os.environ.get("JAX_PLATFORMS"):
        resources.machine()  # refuses a platform that is not here, even if the CPU could be planned for
    target = targets.open_target(args.target)
    _remember(target)
    lines = _with_progress(sweep, target, names)
    if args.json:
        _write(Path(args.json), sweep, target, lines)
    table.show(lines, target, Console(highlight=False))
    return 0 if all(line.good for line in lines) else 1


def _programs(given: str | None, target: str) -> tuple[str, ...]:
    if given is None:
        return PROGRAMS[:1] if target == "cpu" else PROGRAMS
    names = tuple(name.strip() for name in given.split(","))
    if unknown := [name for name in names if name not in PROGRAMS]:
        raise UserError(f"--programs={given}: {unknown[0]!r} is not one of {', '.join(PROGRAMS)}")
    return tuple(dict.fromkeys(names))


def _remember(target: Target) -> None:
    """Lets JAX cache what it compiles, if it can read it again (`plan_targets.open_target`)."""
    from training.runtime.compilation import enable_cache

    if target.name in targets.LOCAL:
        enable_cache()


def _with_progress(sweep: Sweep, target: Target, names: Sequence[str]) -> list[Line]:
    console = Console(stderr=True)
    arms = sum(len(study.arms) for study in sweep.studies)
    if not console.is_terminal:
        return plan(sweep, target, names)
    columns = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=arms)
        return plan(sweep, target, names, lambda _: bar.advance(task))


def _write(path: Path, sweep: Sweep, target: Target, lines: list[Line]) -> None:
    from training.run_directory.files import write_json

    content = {
        "schema": SCHEMA,
        "sweep": sweep.name,
        "target": target.name,
        "devices": target.kind,
        "memory": target.capacity,
        "arms": [line.as_json() for line in lines],
    }
    try:
        write_json(path, content)
    except OSError as error:
        raise UserError(f"--json={path}: cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    cli.main(main)
