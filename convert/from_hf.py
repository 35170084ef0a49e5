"""python -m convert.from_hf: converts a Hugging Face checkpoint (config.json and safetensors) to a run directory.

    python -m convert.from_hf --from=checkpoints/Qwen3-0.6B --workdir=runs/qwen3

The run can be evaluated, sampled from and trained like any other. Unsupported settings that would change the logits are
refused by name, and no pickle is opened.
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m convert.from_hf")

import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from configs import base, cli
from configs.errors import UserError, nearest
from convert import options
from convert.families import FAMILIES, Family
from convert.families.family import resolved
from convert.hf import files, tensors
from convert.hf.keys import Keys, Ours
from convert.hf.tensors import QKV
from convert.options import FREE
from convert.writing import refuse_existing, write_run
from data import tokenizers
from models import initial
from training.run_directory.checkpoint import flat

SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")  # kept for the export
TOKENS_A_BATCH = 8192


def convert(
    source: str | Path,
    workdir: str | Path,
    overrides: Mapping[str, Any] | None = None,
    ignore: Iterable[str] = (),
) -> Path:
    """Reads a checkpoint folder and writes a run directory.

    Args:
        source: config.json, model.safetensors or its shards and their index, optionally tokenizer.json.
        workdir: must not exist, or be empty.
        overrides: changes of the run's config, dotted; of the model only those that do not change the function.
        ignore: keys of config.json assumed to have no effect.

    Returns:
        workdir, absolute.

    Raises:
        UserError: workdir is not empty; the model_type, a key or a rope_type is not supported; tensors are missing,
            unknown, or have a wrong shape or type; the weights are pickled. ConfigError: a field is refused.
    """
    source, workdir, ignore = Path(source), Path(workdir), list(ignore)
    refuse_existing(workdir)
    values = files.read_config(source)
    family = family_of(values, source)
    keys = Keys(values, str(source / files.CONFIG))
    for key in ("num_hidden_layers", "n_layer"):  # before any table of layers is built
        if isinstance(values.get(key), int) and values[key] > base.MOST_LAYERS:
            raise keys.error(key, f"must be at most {base.MOST_LAYERS}")
    ours = family.read_config(keys, ignore)
    for key in ignore:
        if key not in values:
            raise UserError(f"--ignore={key}: {source / files.CONFIG} has no such key{nearest(key, values)}")
    for note in keys.notes:
        print(f"warning: {note}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = _tokenizer(source, values, ours, Path(folder))
        config = resolved({**ours, **_run_fields(ours, source, tokenizer)}, overrides)
        params = _parameters(family, config, files.Weights(source), str(source))
        origin = {"kind": "hugging_face", "model_type": family.name, "from": str(source.absolute())}
        origin |= {key: values[key] for key in SPECIAL if values.get(key) is not None}
        return write_run(workdir, config, params, tokenizer_from=tokenizer, origin=origin)


def family_of(values: Mapping[str, Any], source: Path) -> Family:
    """Returns the family of a config.json.

    Raises:
        UserError: its model_type is not supported.
    """
    name = values.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        hint = nearest(name, FAMILIES) if isinstance(name, str) else ""
        raise UserError(
            f"{source / files.CONFIG}: model_type = {name!r}: not supported; must be {', '.join(FAMILIES)}{hint}"
        )
    return FAMILIES[name]


def _tokenizer(source: Path, values: Mapping[str, Any], ours: Ours, folder: Path) -> Path | None:
    """Writes the checkpoint's tokenizer to `folder`; else bytes, if the vocabulary has them; else returns None."""
    path = source / tokenizers.HUGGING_FACE
    if path.is_file():
        by_name = tokenizers.from_file(path)
        tokenizer = _separated(by_name, source, values, ours["model.vocab_size"])
        tokenizer.save(folder)
        return folder
    if ours["model.vocab_size"] < tokenizers.Bytes.vocab_size:
        return None
    tokenizers.Bytes().save(folder)
    message = (
        f"{source}: has no {tokenizers.HUGGING_FACE}; the run reads text as bytes, which the model was not trained on"
    )
    print(f"warning: {message}", file=sys.stderr)
    return folder


def _separated(
    by_name: tokenizers.FromFile, source: Path, values: Mapping[str, Any], vocabulary: int
) -> tokenizers.FromFile:
    """Returns the tokenizer with the checkpoint's eos token as separator of documents, and prints which that is.

    `eos_token_id` of config.json is used, then that of generation_config.json, then a token with a usual name. Of
    several the one with the usual name, else the first: the others end turns of a conversation.
    """
    usual = by_name.separator
    for name in (files.CONFIG, files.GENERATION):
        ids = _eos_ids(values if name == files.CONFIG else files.read_optional(source / name), source / name)
        outside = [number for number in ids if not 0 <= number < vocabulary]
        if outside:
            message = f"{source / name}: eos_token_id = {outside[0]}: is not one of the model's {vocabulary:,} tokens"
            print(f"warning: {message}, and is ignored", file=sys.stderr)
        ids = [number for number in ids if number not in outside]
        if ids:
            chosen = usual if usual in ids else ids[0]
            tokenizer = tokenizers.from_file(source / tokenizers.HUGGING_FACE, chosen)
            other = "" if usual in (None, chosen) else f", not with {_named(by_name, usual)}"
            print(f"documents end with {_named(by_name, chosen)}, eos_token_id of {name}{other}")
            return tokenizer
    if usual is not None:
        print(f"documents end with {_named(by_name, usual)}, by its name; {files.CONFIG} has no eos_token_id")
    else:
        print(
            f"warning: {source}: has no eos_token_id, and no token has a usual name, so documents follow one "
            "another without a separator",
            file=sys.stderr,
        )
    return by_name


def _eos_ids(values: Mapping[str, Any], path: Path) -> list[int]:
    """Returns eos_token_id as a list.

    Raises:
        UserError: it is neither a whole number, nor a list of them, nor null.
    """
    given = values.get("eos_token_id")
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if any(type(number) is not int for number in ids):
        raise UserError(f"{path}: eos_token_id = {given!r}: must be a whole number, or a list of them")
    return ids


def _named(tokenizer: tokenizers.FromFile, number: int | None) -> str:
    """Returns a token for messages: its name and id, or only the id if the vocabulary has no name for it."""
    name = None if number is None else tokenizer.token(number)
    return f"token {number}" if name is None else f"{name!r} ({number})"


def _run_fields(ours: Ours, source: Path, tokenizer: Path | None) -> dict[str, Any]:
    """Returns fields beside the model: a name, a batch that fits the length, and data that fits the vocabulary."""
    vocabulary, length = ours["model.vocab_size"], ours["data.length"]
    rows = min(max(TOKENS_A_BATCH // length, 1), 16)
    results: dict[str, Any] = {"name": source.absolute().name, "data.batch_size": rows, "eval.batch_size": rows}
    if tokenizer is None:
        # Too few tokens for bytes: such a model can only be used for key-value recall.
        words = min(vocabulary - vocabulary % 2, 64)
        pairs = max(min(4, (length + 1) // 4, words // 2), 1)
        results |= {"data.weights.text": 0.0, "data.weights.mqar": 1.0}
        results |= {"data.mqar.vocab_size": words, "data.mqar.pairs": pairs}
    elif (tokenizer / tokenizers.HUGGING_FACE).is_file():
        results["data.tokenizer"] = str(tokenizer.absolute())
    return results


def _parameters(family: Family, config: ConfigDict, weights: files.Weights, source: str) -> tensors.Params:
    model = config.model
    shapes = {name: tuple(leaf.shape) for name, leaf in flat(initial.abstract(model)[1]).items()}
    apart = dict(shapes)
    for name in list(apart):
        if name.startswith(f"{QKV}."):
            *lead, _ = apart.pop(name)
            for part, heads in zip(tensors.PARTS, (model.num_heads, *[model.num_kv_heads] * 2), strict=True):
                apart[f"{part}.{name.removeprefix(f'{QKV}.')}"] = (*lead, heads * model.head_dim)
    params = family.read_tensors(weights.shapes, weights.read, apart, model.num_heads, source)
    return tensors.fuse(params) if apart != shapes else params


def main(argv: Sequence[str]) -> None:
    """The command."""
    overrides, rest = cli.split_overrides(argv)
    args = options.from_hf(__doc__ or "").parse_args(rest)
    for name in overrides:
        if name.startswith("model.") and name.removeprefix("model.") not in FREE:
            raise UserError(f"--config.{name}: is set by the checkpoint; only {', '.join(FREE)} can be set")
    ignore = [key.strip() for key in args.ignore.split(",") if key.strip()]
    workdir = convert(args.source, args.workdir, overrides, ignore)
    print(f"{args.source} -> {workdir}")


if __name__ == "__main__":
    cli.main(main)
