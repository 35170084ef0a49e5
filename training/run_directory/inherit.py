"""Starting from another run's parameters: what must fit, and which differences are only reported."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from configs import fields, provenance
from configs.errors import ConfigError
from configs.rules.positions import kinds_of
from training.run_directory import run as runs
from training.run_directory.checkpoint import Checkpoints, flat, newest, saved
from training.step import train_step

# Matrices of equal shape would be read as other heads (8 of 4 dims are not 4 of 8), or belong to other layers.
HEADS = (
    "model.num_heads model.num_kv_heads model.head_dim model.attention.pattern model.attention.kv_share "
    "model.attention.kv_share_from"
).split()
# Fields that change how a model is computed or initialized, not the function of its parameters.
COMPUTED = (
    "model.dtype model.scan_layers model.remat model.attention.kernel model.attention.kv_storage model.dropout "
    "model.init model.init_std model.attention.window_stages model.position.rope.scaling.follow"
).split()


def check(config: ConfigDict, tokenizer: Any) -> None:
    """Refuses a run that cannot start from `config.init_from`, before any device work.

    Args:
        config: resolved, `model.vocab_size` set.
        tokenizer: this run's, or None.

    Raises:
        UserError: no run or no checkpoint there, another tokenizer, or fields of the model that its parameters do not
            fit; all are listed.
    """
    source = config.init_from
    if not saved(source):
        raise ConfigError(f"init_from = {source!r}: has no checkpoint")
    there = runs.load_config(source)
    if line := provenance.changed(source) or provenance.parent_problem(source):
        raise ConfigError(f"init_from = {source!r}: {line}")
    theirs = runs.load_tokenizer(source)
    if theirs is not None and tokenizer is not None and theirs.describe() != tokenizer.describe():
        raise ConfigError(
            f"data.tokenizer = {config.data.tokenizer!r}: init_from = {source!r} was trained with another tokenizer "
            f"({_words(theirs)}; this run's has {_words(tokenizer)}), so ids would mean other tokens"
        )
    differ = [name for name, *_ in differences(config, there)]
    wrong = [name for name in differ if name in HEADS] + [
        name for name in differ if name not in HEADS and _reshapes(config, there, name)
    ]
    if wrong:
        ours, its = fields.flatten(config), fields.flatten(there)
        message = ", ".join(f"{name} is {its[name]!r} there and {ours[name]!r} here" for name in wrong)
        raise ConfigError(
            f"init_from = {source!r}: {message}; its parameters do not fit. Change these fields, or use all of its "
            f"settings with --config={Path(source) / 'config.json'}"
        )


def _words(tokenizer: Any) -> str:
    about = tokenizer.describe()
    return f"{about['kind']}, {about['vocab_size']} tokens"


def differences(config: ConfigDict, there: ConfigDict) -> Iterator[tuple[str, Any, Any]]:
    """Yields (field, value there, value here) of the model's fields in which two resolved configs differ."""
    ours, theirs = fields.flatten(config), fields.flatten(there)
    for name, value in ours.items():
        if name.startswith("model.") and name not in COMPUTED and value != theirs[name]:
            yield name, theirs[name], value


def _reshapes(config: ConfigDict, there: ConfigDict, name: str) -> bool:
    """Returns whether a field's value here would change the shapes of the parameters there."""
    changed = fields.from_dict(fields.to_dict(there))
    fields.set_field(changed, name, fields.flatten(config)[name])
    try:
        return _shapes(changed) != _shapes(there)
    except Exception:  # such a model is impossible
        return True


def _shapes(config: ConfigDict) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in flat(train_step.abstract(config).params).items()}


def parameters(config: ConfigDict, shapes: train_step.Abstract) -> Any:
    """Returns the newest parameters of `config.init_from`, in the tree of `shapes.params`.

    Raises:
        ConfigError: a parameter is missing there, unknown here, or has another shape.
    """
    source = config.init_from
    at = newest(source)
    checkpoints = Checkpoints(source, read_only=True)
    try:
        there = checkpoints.shapes(at)
        expected = {name: tuple(x.shape) for name, x in flat(shapes.params).items()}
        for name in sorted(there.keys() | expected.keys()):
            if there.get(name) != expected.get(name):
                raise ConfigError(
                    f"init_from = {source!r}: its {name} has shape {there.get(name, 'nothing')}, this model's has "
                    f"{expected.get(name, 'nothing')}"
                )
        return checkpoints.restore_params(at, shapes.params)
    finally:
        checkpoints.close()


def identity(config: ConfigDict) -> dict[str, Any]:
    """Returns run.json's `identity` of a run that starts from the current `config.init_from`."""
    parents = provenance.parents_of(Path(config.init_from).absolute(), newest(config.init_from))
    return provenance.identity(fields.to_dict(config), parents)


def changes(config: ConfigDict) -> Iterator[str]:
    """Yields a line for each field of the model that differs from the source run's."""
    there = runs.load_config(config.init_from)
    for name, theirs, ours in differences(config, there):
        if not (_idle(config, name) and _idle(there, name)):
            yield f"init_from: {name} was {theirs!r}, is now {ours!r}"


def _idle(config: ConfigDict, name: str) -> bool:
    """Returns whether no part of a model reads a field that resolves to the data's length."""
    position = config.model.position
    return {
        "model.position.max_length": "learned" not in kinds_of(config),
        "model.position.temperature.length": position.temperature.kind == "none",
        "model.position.rope.scaling.original_length": position.rope.scaling.kind == "none",
    }.get(name, False)
