"""Trains one config into one run directory.

    python train.py --config=configs/lm.py --config.model.num_heads=8 --workdir=runs/h8

The same command again resumes a stopped run exactly from its last checkpoint. Ctrl-C and SIGTERM save a checkpoint
first. A finished run is skipped.
"""

import sys

from configs import cli, validate
from configs.fields import listing

FILE = "a config file; FILE:ARG calls get_config(ARG); or a run directory or its config.json, for the same settings"
EXIT = {"done": 0, "diverged": 3, "preempted": 4}


def main(argv: list[str]) -> int:
    """Runs the command; the exit code is 0 if the run is done, 3 if it diverged, 4 if it was stopped."""
    overrides, rest = cli.split_overrides(argv)
    parser = cli.parser(__doc__ or "")
    parser.add_argument("--config", required=True, metavar="FILE", help=FILE)
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the run directory")
    parser.add_argument("--quiet", action="store_true", help="no progress output")
    parser.epilog = listing.overview()
    arguments = parser.parse_args(rest)
    config = cli.load(arguments.config, overrides)
    validate.check(config)

    # Everything above reports a user's mistake immediately; JAX takes seconds to load.
    from training.runtime import distributed

    distributed.initialise()
    from training.loop.trainer import train

    try:
        result = train(config, arguments.workdir, quiet=arguments.quiet)
    except Exception as error:
        distributed.end_with(error)
        raise
    loss = result["val_loss"]
    if not distributed.main():
        return EXIT[result["status"]]
    print(
        f"{result['status']}: {arguments.workdir}  step {result['step']:,}"
        + (f"  validation loss {loss:.4f}" if loss is not None else "")
        + (f"  ({result['error']})" if result["error"] else "")
    )
    return EXIT[result["status"]]


if __name__ == "__main__":
    cli.main(main)
    sys.exit()
