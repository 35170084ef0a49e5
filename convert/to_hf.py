"""python -m convert.to_hf: converts a run directory to a checkpoint that transformers loads.

    python -m convert.to_hf --workdir=runs/lm --to=exported

The family is the first that can express the model completely; the written config.json is read back and must give the
same model, so that nothing is lost.
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m convert.to_hf")

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs import cli, fields
from configs.errors import ConfigError, UserError, nearest
from convert import options
from convert.families import FAMILIES, Family
from convert.families.family import resolved
from convert.hf import files, tensors
from convert.hf.keys import Keys, Theirs
from convert.hf.pairing import to_half
from convert.writing import refuse_existing, whole_folder
from data import tokenizers
from models import pattern
from models.attention import scale_of
from models.declared import attention, positions
from models.positions.rope_scaling import SCALINGS
from training.run_directory import run as runs
from training.run_directory.checkpoint import flat
from training.run_directory.files import read_json, write_json

# Fields that do not change what a trained model computes without dropout, in float32.
FREE = "dropout init init_std dtype scan_layers remat attention.kernel attention.qkv attention.kv_storage".split()
FREE.append("attention.window_stages")  # training only: the written model is the one after the last stage
# Expressed by layer, and by the resulting number, in `significant`.
SAID = (
    "position.kind position.pattern attention.window attention.window_pattern attention.scale attention.scale_rule"
).split()
# Fields that only some kinds of position read.
OF_KIND = {
    f"position.{field}": tuple(name for name, kind in positions.KINDS.items() if field in kind.fields)
    for field in dict.fromkeys(field for kind in positions.KINDS.values() for field in kind.fields)
}


def export(workdir: str | Path, to: str | Path, family: str | None = None) -> Path:
    """Writes a run's newest checkpoint as a Hugging Face checkpoint, float32.

    Args:
        workdir: the run directory.
        to: must not exist, or be empty.
        family: a model_type; None: the one the run came from, else the first that can express the model.

    Returns:
        `to`, absolute.

    Raises:
        UserError: `to` is not empty, there is no run, or no family (or not this one) can express the model; with the
            fields that prevent it.
    """
    to = Path(to).absolute()
    refuse_existing(to)
    run = runs.load(workdir)
    origin = _origin(Path(workdir))
    model = run.config.model
    params = {name: np.asarray(leaf) for name, leaf in flat(run.params).items()}
    apart = tensors.split(params, model.num_heads, model.num_kv_heads, model.head_dim)
    apart, config = to_half(apart, run.config)
    chosen, theirs = choose(config, family, origin.get("model_type"))
    with whole_folder(to) as folder:
        files.write_weights(folder, chosen.write_tensors(apart, model.num_heads))
        write_json(folder / files.CONFIG, theirs | _special(run.tokenizer, origin))
        if isinstance(run.tokenizer, tokenizers.FromFile):
            run.tokenizer.save(folder)
            (folder / tokenizers.DESCRIPTION).unlink()
    return to


def _origin(workdir: Path) -> Mapping[str, Any]:
    path = workdir / "run.json"
    values = read_json(path) if path.exists() else {}
    origin = values.get("origin", {}) if isinstance(values, dict) else {}
    while isinstance(origin, dict) and origin.get("kind") == "surgery":
        origin = origin.get("source_origin")
    return origin if isinstance(origin, dict) and origin.get("kind") == "hugging_face" else {}


def _special(tokenizer: Any, origin: Mapping[str, Any]) -> Theirs:
    """Ids of special tokens; never a family's defaults, which may be outside the vocabulary."""
    separator = None if tokenizer is None else tokenizer.separator
    ids = {"bos_token_id": None, "eos_token_id": separator, "pad_token_id": None}
    return {"dtype": "float32", **{key: origin.get(key, value) for key, value in ids.items()}}


def choose(config: ConfigDict, name: str | None = None, first: str | None = None) -> tuple[Family, Theirs]:
    """Returns a family that expresses a resolved config's model completely, and its config.json.

    Args:
        config: resolved, `model.vocab_size` set.
        name: the requested family.
        first: the family to try first.

    Raises:
        UserError: an unknown family, or none (or not this one) can; with the reasons.
    """
    if name is not None and name not in FAMILIES:
        raise UserError(f"--family={name}: must be {', '.join(FAMILIES)}{nearest(name, FAMILIES)}")
    order = [name] if name else list(dict.fromkeys([*([first] if first in FAMILIES else []), *FAMILIES]))
    hurdles = {}
    for candidate in order:
        theirs = FAMILIES[candidate].write_config(config)
        lost = differences(config, FAMILIES[candidate], theirs)
        if not lost:
            return FAMILIES[candidate], theirs
        hurdles[candidate] = lost
    nearest_one = min(hurdles, key=lambda candidate: len(hurdles[candidate]))
    who = f"{name} cannot" if name else f"no family can ({nearest_one} comes closest)"
    raise ConfigError(f"{who} express this model: {'; '.join(hurdles[nearest_one])}")


def differences(config: ConfigDict, family: Family, theirs: Theirs) -> list[str]:
    """Returns what a family's config.json loses of a config's model, field by field; empty if nothing."""
    try:
        back = resolved({**family.read_config(Keys(theirs, family.name)), **_without_text(theirs)})
    except UserError as error:
        return str(error).splitlines()
    ours, read = significant(config.model), significant(back.model)
    return [
        f"model.{key} = {ours[key]!r} (would be read as {read.get(key)!r})"
        for key in ours
        if key not in read or ours[key] != read[key]
    ] + [f"model.{key} would be read as {read[key]!r}" for key in read.keys() - ours.keys()]


def _without_text(theirs: Theirs) -> dict[str, Any]:
    # For any vocabulary, data must not prevent reading the model.
    return {"data.tokenizer": "char"}


def significant(model: ConfigDict) -> dict[str, Any]:
    """Returns the function of a resolved config.model, as fields that are equal if two models are.

    An unknown field counts: a new one prevents export until a family can express it.
    """
    plans = pattern.plans(model)
    kinds = {plan.position for plan in plans}
    scaling = model.position.rope.scaling.kind
    results: dict[str, Any] = {}
    own = attention.kind_of(model)
    others = tuple(
        f"attention.{field}" for kind in attention.KINDS.values() if kind is not own for field in kind.fields
    )
    for name, value in fields.flatten(model).items():
        if name in FREE or name in SAID:
            continue
        if any(name.startswith(start) and not kinds & {*users} for start, users in OF_KIND.items()):
            continue
        last = name.rsplit(".", 1)[-1]
        if name.startswith("position.rope.scaling.") and last not in ("kind", *SCALINGS[scaling].fields):
            continue
        if name.startswith(others):
            continue
        if name.startswith("position.temperature.") and model.position.temperature.kind == "none":
            continue
        results[name] = value
    results["position.kind by layer"] = [plan.position for plan in plans]
    results["attention.window by layer"] = [plan.window for plan in plans]
    results["attention.scale"] = scale_of(model, model.head_dim)
    return results


def main(argv: Sequence[str]) -> None:
    """The command."""
    args = options.to_hf(__doc__ or "").parse_args(argv)
    to = export(args.workdir, args.to, args.family)
    print(f"{args.workdir} -> {to} ({read_json(to / files.CONFIG)['model_type']})")


if __name__ == "__main__":
    cli.main(main)
