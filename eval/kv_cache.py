"""python -m eval.kv_cache: the size of a model's KV cache at a length, by formula, in GB and in GiB.

    python -m eval.kv_cache --heads=32 --head_dim=128 --length=128000
    python -m eval.kv_cache --model=llama-3-8b --length=128000 --batch=4
    python -m eval.kv_cache --config=configs/lm.py --config.model.num_kv_heads=2 --length=8192

A shape is given by heads (one layer, unless --layers says more), by a published model's name, or by a config file or
run directory. GB are 10^9 bytes, GiB 2^30. int8 and fp8 include the float32 scale of each token and head; layers with a
window keep no more tokens than it has. Exact: tests compare the formula with the caches used in decoding.
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m eval.kv_cache")

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from configs import cli, fields, validate
from configs.base import get_config
from configs.errors import UserError, nearest
from models import counting, pattern

GB, GIB = 10**9, 2**30
STORAGES = ("auto", "int8", "fp8")
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SHAPE = ("heads", "kv_heads", "head_dim", "layers", "window")

# layers, query heads, KV heads, head dim: the models' own config.json
MODELS = {
    "llama-2-7b": (32, 32, 32, 128),
    "llama-3-8b": (32, 32, 8, 128),
    "llama-3-70b": (80, 64, 8, 128),
    "llama-3.1-405b": (126, 128, 8, 128),
    "mistral-7b": (32, 32, 8, 128),
    "qwen2.5-7b": (28, 28, 4, 128),
    "qwen3-8b": (36, 32, 8, 128),
}


@dataclass(frozen=True)
class Size:
    """The KV cache in one storage dtype, in bytes.

    Attributes:
        storage: int8, fp8, or the dtype of unquantized numbers.
        per_token: of one token while all layers keep it.
        per_layer: of the largest layer, whole batch.
        total: of all layers, whole batch, including `scales`.
    """

    storage: str
    per_token: int
    per_layer: int
    total: int
    scales: int

    def described(self) -> dict[str, Any]:
        """Returns the sizes by name, including GB and GiB of the total."""
        return {**asdict(self), "GB": self.total / GB, "GiB": self.total / GIB}


def sizes(model: ConfigDict, *, length: int, batch: int, dtype: str) -> list[Size]:
    """Returns the cache's size unquantized, in int8 and in fp8.

    Args:
        model: a resolved config.model.
        length: tokens per row in the cache.
        batch: rows.
        dtype: of unquantized numbers, one of BYTES.
    """
    results = []
    for storage in STORAGES:
        stored = model.copy_and_resolve_references()
        stored.attention.kv_storage = storage
        held = counting.kv_cache_bytes(stored, BYTES[dtype], batch=batch, capacity=length)
        per_token = counting.kv_bytes_per_token(stored, BYTES[dtype])
        every = pattern.plans(stored)
        per_layer = max(
            sum(counting.token_bytes(pattern.of_layer(stored, layer), BYTES[dtype]).values())
            * min(length, every[layer].window or length)
            * batch
            for layer in pattern.owners(stored)
        )
        results.append(
            Size(dtype if storage == "auto" else storage, per_token, per_layer, sum(held.values()), held["scales"])
        )
    return results


def shaped(heads: int, head_dim: int, *, kv_heads: int | None, layers: int, window: int | None) -> ConfigDict:
    """Returns a resolved config.model with this attention shape; its other fields do not affect a KV cache.

    Raises:
        ConfigError: KV heads do not divide the heads, and the like.
    """
    config = get_config()
    given: dict[str, Any] = {
        "num_heads": heads,
        "head_dim": head_dim,
        "num_layers": layers,
        "num_kv_heads": kv_heads or heads,
    }
    given |= {"width": heads * head_dim, "position.kind": "none"}
    given |= {} if window is None else {"attention.window": window}
    for name, value in given.items():
        fields.set_field(config, f"model.{name}", value)
    return validate.resolve(config).model


def heads_of(model: ConfigDict) -> str:
    """Returns the heads in words; if layers differ, those of each kind of layer."""
    every = dict.fromkeys(plan.heads[:3] for plan in pattern.plans(model))
    words = [f"{groups} KV heads of {heads} heads x {head_dim}" for heads, groups, head_dim in every]
    kept = len(pattern.owners(model))
    sharing = "" if kept == model.num_layers else f", kept by {kept} of them"
    return " and ".join(words) + sharing + (", K = V" if model.attention.tie_kv else "")


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value < 2**63:
        raise ValueError
    return value


_positive.__name__ = "whole number of 1 .. 2**63 - 1"  # argparse's name for it


def _model(given: Any, overrides: dict[str, Any]) -> tuple[ConfigDict, str]:
    """Returns the model and its dtype from the command line.

    Raises:
        UserError: none, or several; an unknown name.
    """
    shape = [f"--{name}" for name in SHAPE if getattr(given, name) is not None]
    ways = ["--config"] * bool(given.config) + ["--model"] * bool(given.model) + shape[:1]
    if len(ways) != 1:
        message = f"not {' and '.join(ways)} at once" if ways else "none was given"
        raise UserError(f"a model is given by --heads and --head_dim, by --model or by --config; {message}")
    if overrides and not given.config:
        raise UserError(f"--config.{next(iter(overrides))}: needs --config=FILE")
    if given.config:
        config = validate.resolve(cli.load(given.config, overrides))
        return config.model, "float32" if config.model.dtype == "float32" else "bfloat16"
    if given.model:
        if given.model not in MODELS:
            hint = nearest(given.model, MODELS) or f"; known: {', '.join(MODELS)}"
            raise UserError(f"--model={given.model}: unknown{hint}")
        layers, heads, groups, head_dim = MODELS[given.model]
        return shaped(heads, head_dim, kv_heads=groups, layers=layers, window=None), "bfloat16"
    if given.heads is None or given.head_dim is None:
        raise UserError(f"{', '.join(shape)}: --heads and --head_dim are needed")
    layers = given.layers or 1
    return shaped(given.heads, given.head_dim, kv_heads=given.kv_heads, layers=layers, window=given.window), "bfloat16"


def show(results: list[Size], console: Console) -> None:
    """Prints the table."""
    table = Table(box=None, pad_edge=False)
    names = ("stored as", "bytes/token", "bytes, largest layer", "bytes, all layers", "GB", "GiB")
    for name in names:
        table.add_column(name, justify="left" if name == names[0] else "right", no_wrap=True)
    for size in results:
        counts = (f"{number:,}" for number in (size.per_token, size.per_layer, size.total))
        table.add_row(size.storage, *counts, f"{size.total / GB:.3f}", f"{size.total / GIB:.3f}")
    console.print(table)


def main(argv: Sequence[str]) -> int:
    """The command."""
    overrides, rest = cli.split_overrides(argv)
    parser = cli.parser(__doc__ or "")
    parser.add_argument("--heads", type=_positive, help="query heads")
    parser.add_argument("--kv_heads", type=_positive, help="KV heads; unset: as many as heads")
    parser.add_argument("--head_dim", type=_positive)
    parser.add_argument("--layers", type=_positive, help="unset: 1")
    parser.add_argument("--window", type=_positive, help="keys visible to a query; unset: all before it")
    parser.add_argument("--model", metavar="NAME", help=f"a published model: {', '.join(MODELS)}")
    parser.add_argument("--config", metavar="FILE", help="a config file, config.json or run directory")
    parser.add_argument("--length", type=_positive, required=True, help="tokens a row")
    parser.add_argument("--batch", type=_positive, default=1, help="rows (1)")
    parser.add_argument(
        "--dtype",
        choices=BYTES,
        metavar="DTYPE",
        help="of unquantized numbers; unset: the config's, with bfloat16 for auto",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.epilog = "--config.x=v changes a field of --config=FILE."
    args = parser.parse_args(rest)
    model, dtype = _model(args, overrides)
    result = sizes(model, length=args.length, batch=args.batch, dtype=args.dtype or dtype)
    if args.json:
        print(json.dumps([size.described() for size in result], indent=1))
        return 0
    kind = "latent (MLA)" if model.attention.kind == "mla" else heads_of(model)
    print(f"{model.num_layers} layer(s), {kind}, {args.length:,} tokens x {args.batch}")
    show(result, Console(width=None if Console().is_terminal else 120))
    return 0


if __name__ == "__main__":
    cli.main(main)
