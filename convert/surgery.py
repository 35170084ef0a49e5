"""python -m convert.surgery: makes a new run from a trained one, with fewer heads or other positions.

    python -m convert.surgery kv_heads   --from=RUN --workdir=NEW --num_kv_heads=2 [--pool=mean]
    python -m convert.surgery rope       --from=RUN --workdir=NEW --scaling=yarn [--factor=4] [--length=1024]
    python -m convert.surgery drop_heads --from=RUN --workdir=NEW --heads=0:1,0:3,1:2 [--remove]

kv_heads joins key/value heads (MHA to GQA or MQA, arXiv 2305.13245); rope sets another RoPE scaling or length and keeps
the parameters; drop_heads masks heads, given as layer:head, or removes them if every layer and KV group keeps equally
many. RUN is only read. NEW is an ordinary run directory, and is trained further, in a third directory, by

    python train.py --config=NEW/config.json --workdir=UPTRAINED --config.budget.amount=500
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m convert.surgery")

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from configs import cli, fields, provenance, validate
from configs.errors import ConfigError, UserError, nearest
from configs.rules.positions import SCALED, SCALINGS, kinds_of
from configs.schema.allowed import either
from convert import heads as of_heads
from convert import options
from convert.hf.tensors import Params
from convert.writing import refuse_existing, write_run
from training.run_directory import run as runs
from training.run_directory.checkpoint import flat
from training.run_directory.files import read_json

SCALING = "model.position.rope.scaling"
ROPE_FIELDS = (f"{SCALING}.", "model.position.rope.theta", "model.position.temperature.")


def kv_heads(
    source: str | Path,
    workdir: str | Path,
    num_kv_heads: int,
    pool: str = "mean",
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a run whose query heads share fewer key/value heads (see `heads.grouped`).

    Args:
        source: a run directory; its newest checkpoint is used.
        workdir: the new one, which must not exist, or be empty.
        num_kv_heads: of the new run.
        pool: mean, first, random or fresh.
        seed: for random and fresh.
        overrides: further fields of the new run, dotted; none of the model.

    Returns:
        workdir, absolute.

    Raises:
        UserError: no run there, workdir is not empty, or from `heads.grouped`.
    """
    config = _config(source, workdir, overrides)
    was = config.model.num_kv_heads

    def operate(params: Params) -> Params:
        config.model, params = of_heads.grouped(config.model, params, num_kv_heads, pool, seed)
        return params

    done = {"num_kv_heads": num_kv_heads, "from_kv_heads": was, "pool": pool}
    return _write(source, workdir, config, operate, "kv_heads", done | ({"seed": seed} if pool != "mean" else {}))


def rope(
    source: str | Path,
    workdir: str | Path,
    scaling: str | None = None,
    factor: float | None = None,
    length: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a run with another RoPE scaling or another length, and the same parameters.

    Args:
        source: a run directory; its newest checkpoint is used.
        workdir: the new one, which must not exist, or be empty.
        scaling: its kind; None: the run's own. The original length stays the run's, and numbers chosen for its own
            scaling (an attention factor) are unset.
        factor: None: length / original length, which just reaches `length`.
        length: new tokens per row, `data.length`; None: unchanged.
        overrides: further fields of the new run, dotted; of the model, those of the scaling, theta and temperature.

    Returns:
        workdir, absolute.

    Raises:
        UserError: no run there, workdir is not empty, nothing to change, or a scaling that the run's model refuses.
    """
    overrides = dict(overrides or {})
    if scaling is None and factor is None and length is None and not any(n.startswith(ROPE_FIELDS) for n in overrides):
        raise UserError("nothing to change: set --scaling, --factor or --length (see --help)")
    if scaling is not None and scaling not in SCALINGS:
        raise UserError(f"--scaling={scaling}: must be {either(SCALINGS)}{nearest(scaling, SCALINGS)}")
    config = _config(source, workdir, None)
    if scaling is not None or factor is not None:
        overrides = _scaling(config, scaling, factor, length) | overrides
    if length is not None:
        overrides = {"data.length": length} | overrides
    config = _config(source, workdir, overrides, ROPE_FIELDS)
    done = {name: overrides[name] for name in sorted(overrides)}
    return _write(source, workdir, config, lambda params: params, "rope", done)


def _scaling(config: ConfigDict, kind: str | None, factor: float | None, length: int | None) -> dict[str, Any]:
    """Returns the fields of another scaling."""
    own = config.model.position.rope.scaling
    if not kinds_of(config) & {*SCALED}:
        raise UserError(
            f"model.position.kind = {config.model.position.kind!r}: a RoPE scaling applies only to {either(SCALED)}"
        )
    kind = own.kind if kind is None else kind
    if kind == "none":
        factor = 1.0 if factor is None else factor
    elif factor is None and length is None:
        raise UserError(f"--scaling={kind}: needs --factor, or --length to derive it from")
    elif factor is None:
        factor = max(1.0, (length or 0) / own.original_length)
    results: dict[str, Any] = {f"{SCALING}.kind": kind, f"{SCALING}.factor": factor}
    if own.kind != "none":
        results |= dict.fromkeys(f"{SCALING}.{name}" for name in ("attention_factor", "mscale", "mscale_all_dim"))
    return results


def drop_heads(
    source: str | Path,
    workdir: str | Path,
    heads: Sequence[tuple[int, int]],
    remove: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a run without some of its query heads, as in head pruning at test time (arXiv 1905.10650).

    Args:
        source: a run directory; its newest checkpoint is used.
        workdir: the new one, which must not exist, or be empty.
        heads: (layer, head) pairs.
        remove: make the model smaller (see `heads.removed`); else mask them, which works for any choice of heads
            (`heads.masked`).
        overrides: further fields of the new run, dotted; none of the model.

    Returns:
        workdir, absolute.

    Raises:
        UserError: no run there, workdir is not empty, no such head, or from `heads.removed`.
    """
    config = _config(source, workdir, overrides)
    chosen = sorted(of_heads.checked(config.model, heads))
    if not chosen:
        raise UserError("--heads: is empty")

    def operate(params: Params) -> Params:
        if not remove:
            return of_heads.masked(config.model, params, chosen)
        config.model, params = of_heads.removed(config.model, params, chosen)
        return params

    done = {"heads": [f"{layer}:{head}" for layer, head in chosen], "removed": remove}
    return _write(source, workdir, config, operate, "drop_heads", done)


def _config(
    source: str | Path, workdir: str | Path, overrides: Mapping[str, Any] | None, allowed: tuple[str, ...] = ()
) -> ConfigDict:
    """Returns the source's config with overrides, checked.

    It has no curriculum, because that belongs to the source's training.
    """
    refuse_existing(Path(workdir).absolute())
    config = runs.load_config(source)
    for name in overrides or {}:
        if name.startswith("model.") and not name.startswith(allowed or "-"):
            some = ", ".join(f"{field}*" if field.endswith(".") else field for field in allowed)
            raise UserError(f"--config.{name}: is set by the source; {some or 'no field of the model'} can be set")
    config.data.curriculum = ()
    cli.apply(config, dict(overrides or {}))
    validate.check(config)
    return config


def _write(
    source: str | Path,
    workdir: str | Path,
    config: ConfigDict,
    operate: Callable[[Params], Params],
    operation: str,
    done: Mapping[str, Any],
) -> Path:
    run = runs.load(source)
    if line := provenance.parent_problem(source):
        raise UserError(f"{source}: {line}")
    info = read_json(path) if (path := Path(source) / "run.json").exists() else {}
    params = operate(dict(flat(run.params)))
    validate.check(config)
    origin = {"kind": "surgery", "from": str(Path(source).absolute()), "step": run.step, "operation": operation, **done}
    if info.get("origin"):
        origin["source_origin"] = info["origin"]
    folder = Path(source) / "tokenizer"
    return write_run(
        workdir,
        config,
        params,
        tokenizer_from=folder if folder.exists() else None,
        origin=origin,
        data=info.get("data"),
        parents=provenance.parents_of(Path(source).absolute(), run.step),
    )


def parse_heads(text: str) -> list[tuple[int, int]]:
    """Reads "0:1,0:3,1:2" as (layer, head) pairs.

    Raises:
        UserError: a part is not layer:head.
    """
    results = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        layer, _, head = part.partition(":")
        if not (layer.isdecimal() and head.isdecimal()):
            raise UserError(f"--heads: {part!r} is not layer:head, two whole numbers")
        results.append((int(layer), int(head)))
    return results


def main(argv: Sequence[str]) -> None:
    """The command."""
    overrides, rest = cli.split_overrides(argv)
    args = options.surgery(__doc__ or "").parse_args(rest)
    paths = (args.source, args.workdir)
    try:
        if args.command == "kv_heads":
            workdir = kv_heads(*paths, args.num_kv_heads, args.pool, args.seed, overrides)
        elif args.command == "rope":
            workdir = rope(*paths, args.scaling, args.factor, args.length, overrides)
        else:
            workdir = drop_heads(*paths, parse_heads(args.heads), args.remove, overrides)
    except ConfigError as error:
        raise ConfigError([f"{args.source}: {problem}" for problem in error.problems]) from None
    config = fields.flatten(runs.load_config(workdir))
    messages = {name: config[f"model.{name}"] for name in ("num_heads", "num_kv_heads")}
    messages |= {"scaling": config[f"{SCALING}.kind"], "length": config["data.length"]}
    print(f"{workdir}: " + ", ".join(f"{name} {value}" for name, value in messages.items()))


if __name__ == "__main__":
    cli.main(main)
