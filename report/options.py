"""The options of this package's commands, separate from their code: --help and completion need no pandas."""

import argparse

from configs import cli

EVERY = 30  # seconds between two checks of a live report


def build(description: str) -> argparse.ArgumentParser:
    """Returns the parser of `report.build`."""
    parser = cli.parser(description)
    parser.add_argument("directory", metavar="DIR", help="a sweep directory or a single run directory")
    parser.add_argument("--live", action="store_true", help="rebuild when runs have changed, until all have ended")
    parser.add_argument(
        "--every", type=int, metavar="SECONDS", help=f"with --live: between two checks; default {EVERY}"
    )
    return parser


def compare(description: str) -> argparse.ArgumentParser:
    """Returns the parser of `report.compare`."""
    parser = cli.parser(description)
    parser.add_argument("directories", metavar="DIR", nargs="+", help="sweep or run directories, two or more")
    parser.add_argument("--baseline", metavar="ARM", help="the arm that all others are compared with")
    parser.add_argument("--out", metavar="FOLDER", help="write a report there")
    return parser
