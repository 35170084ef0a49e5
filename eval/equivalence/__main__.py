"""python -m eval.equivalence: every kernel and layout a config could use against the reference, on this device.

For a run, or for a config before training. Exits with 1 if a tolerance is exceeded. With --target nothing runs: every
kernel is compiled at the config's shapes for a chip that need not be here, and 1 means that one which should compile
does not.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs import cli, validate
from configs.errors import UserError
from eval import equivalence, options
from eval import run as command
from eval.progress import Reporter
from training.devices import compile_only
from training.run_directory import files
from training.runtime import compilation, startup


def main(argv: Sequence[str]) -> int:
    """The command."""
    overrides, rest = cli.split_overrides(argv)
    args = options.equivalence(__doc__ or "").parse_args(rest)
    for name, value in (("length", args.length), ("batch_size", args.batch)):
        if value is not None:
            overrides[f"eval.equivalence.{name}"] = value
    if (args.workdir is None) == (args.config is None):
        raise UserError("give either --workdir=RUN or --config=FILE (see --help)")
    if args.workdir is not None and args.out is not None:
        raise UserError("--out: needs --config; a run's file is RUN/eval/equivalence.json")
    if args.target is not None:
        return _compiled(args, overrides)
    for name in options.GRID:
        if getattr(args, name) is not None:
            raise UserError(f"--{name}: needs --target")
    compilation.enable_cache()
    if args.workdir is not None:
        result = command.evaluate(args.workdir, ["equivalence"], command.eval_settings(overrides), Reporter())[
            "equivalence"
        ]
    else:
        result = equivalence.check(validate.resolve(cli.load(args.config, overrides)), Reporter())
        if args.out is not None:
            files.write_json(Path(args.out), {"schema": command.SCHEMA, "eval": "equivalence", **result})
    return 0 if result["passed"] else 1


def _compiled(given: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Compiles for --target; returns the exit code."""
    for name in ("workdir", "length", "batch"):
        if getattr(given, name) is not None:
            raise UserError(f"--{name}: cannot be combined with --target, which uses the shapes of --config")
    compile_only.check(given.target)
    config = validate.resolve(cli.load(given.config, overrides))
    startup.flags()
    from eval.equivalence import target

    grid = target.Grid(
        _words(given.schemes), _words(given.kernels), _words(given.dtypes), _numbers("head_dims", given.head_dims),
        _numbers("lengths", given.lengths),
    )  # fmt: skip
    result = target.check(config, given.target, Reporter(), grid)
    if given.out is not None:
        files.write_json(Path(given.out), {"schema": command.SCHEMA, "eval": "equivalence", **result})
    return 0 if result["passed"] else 1


def _words(given: str | None) -> list[str]:
    return [word.strip() for word in given.split(",") if word.strip()] if given else []


def _numbers(option: str, given: str | None) -> list[int]:
    words = _words(given)
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--{option}={given}: must be whole numbers above 0, separated by commas")
    return [int(word) for word in words]


if __name__ == "__main__":
    cli.main(main)
