"""The options of this package's commands, separate from their code: --help and completion need no JAX."""

import argparse

from configs import cli
from configs.rules.positions import SCALINGS
from configs.schema.allowed import either
from convert.families import FAMILIES

# Fields of the model that change how it is computed, not what; all others are set by the checkpoint.
FREE = (
    "dtype", "scan_layers", "remat", "dropout", "init", "init_std", "attention.kernel", "attention.qkv",
    "attention.kv_storage",
)  # fmt: skip
POOLS = ("mean", "first", "random", "fresh")  # how KV heads are joined


def from_hf(description: str) -> argparse.ArgumentParser:
    """Returns the parser of `convert.from_hf`."""
    parser = cli.parser(description)
    parser.add_argument("--from", dest="source", required=True, metavar="DIR", help="the checkpoint's folder")
    parser.add_argument("--workdir", required=True, metavar="RUN", help="the run directory, which must not exist")
    parser.add_argument(
        "--ignore", default="", metavar="KEYS", help="keys of config.json without effect, comma-separated"
    )
    parser.epilog = (
        "--config.FIELD=VALUE sets a field of the run, such as --config.data.length=2048: rows shorter than the model "
        f"supports. Of the model's fields only {', '.join(FREE)}."
    )
    return parser


def to_hf(description: str) -> argparse.ArgumentParser:
    """Returns the parser of `convert.to_hf`."""
    parser = cli.parser(description)
    parser.add_argument("--workdir", required=True, metavar="RUN", help="the run directory")
    parser.add_argument("--to", required=True, metavar="DIR", help="the folder to write, which must not exist")
    parser.add_argument("--family", choices=tuple(FAMILIES), help="model_type; by default the first that fits")
    return parser


def surgery(description: str) -> argparse.ArgumentParser:
    """Returns the parser of `convert.surgery`."""
    parser = cli.parser(description)
    commands = parser.add_subparsers(dest="command", required=True, metavar="kv_heads | rope | drop_heads")

    def command(name: str, description: str) -> argparse.ArgumentParser:
        found = commands.add_parser(name, description=description, help=description, allow_abbrev=False)
        found.add_argument("--from", dest="source", required=True, metavar="RUN", help="the run directory to read")
        found.add_argument("--workdir", required=True, metavar="NEW", help="the run directory to write")
        found.epilog = "--config.FIELD=VALUE sets a further field of the new run: its data, budget or optimizer."
        return found

    group = command("kv_heads", "join key/value heads: MHA to GQA or MQA")
    group.add_argument("--num_kv_heads", type=int, required=True, help="how many remain; must divide the run's")
    pools = "of each group use the mean (default), the first, a random one, or a fresh initialization"
    group.add_argument("--pool", choices=POOLS, default="mean", help=pools)
    group.add_argument("--seed", type=int, default=0, help="for --pool=random and fresh")
    turn = command("rope", "set another RoPE scaling or another length")
    turn.add_argument("--scaling", metavar="KIND", help=either(SCALINGS))
    turn.add_argument("--factor", type=float, help="the stretch (default: length / original length)")
    turn.add_argument("--length", type=int, help="new tokens per row")
    drop = command("drop_heads", "mask or remove attention heads")
    drop.add_argument("--heads", required=True, metavar="L:H,...", help="layer:head pairs, counted from 0")
    drop.add_argument(
        "--remove", action="store_true", help="make the model smaller; every layer must lose equally many"
    )
    return parser
