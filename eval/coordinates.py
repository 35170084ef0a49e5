"""`python -m eval.coordinates --config=F [--widths=64,128,256,512]`: do activations keep their size as width grows?

The coordinate check of muP (2203.03466, appendix D.1). Models of several widths take a few steps of Adam at one
learning rate on one batch of random tokens. For the residual stream after each layer, and for the logits, the mean
absolute change since initialization is measured, and the slope of its logarithm in ln(width). Under muP the residual
stream changes equally at every width; logits may decrease towards their limit, because their random part shrinks with 1
/ sqrt(width), and must not grow. The standard parametrization is the control: if it does not grow either, the check
could not have detected anything.

The base width is `model.mup_base_width`, or else the smallest width. The number of heads grows with width at a fixed
head_dim (--grow=head_dim: the reverse), and an explicit mlp_width in proportion. Exit code 1: muP is not flat, or the
control is.
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m eval.coordinates")

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from configs import cli, fields, validate
from configs.errors import ConfigError, UserError
from eval import options
from models import initialise
from models.observed import Wrapped
from models.transformer import Transformer
from training.run_directory.files import write_json
from training.step import optimizer, train_step

SCHEMA = 1
FLAT = 0.2  # largest absolute slope that counts as flat
FALLS = 0.6  # lower limit of the logits' slope: their random part has -1/2
GROWS = 0.3  # slope that some coordinate of the control must exceed
VOCABULARY = 256  # if the config leaves it open


@dataclass(frozen=True)
class Check:
    """Changes of each coordinate under one parametrization: {coordinate: one value per width}, and their slopes."""

    widths: tuple[int, ...]
    changes: dict[str, list[float]]

    @property
    def slopes(self) -> dict[str, float]:
        """Slope of ln(change) in ln(width), by least squares."""
        x = np.log(self.widths)
        return {name: float(np.polyfit(x, np.log(values), 1)[0]) for name, values in self.changes.items()}


def at_width(config: ConfigDict, width: int, base: int | None, grow: str) -> ConfigDict:
    """Returns the resolved config at another width; `base`: muP's, None for the standard parametrization.

    Raises:
        ConfigError: the width is not divisible into heads, or the config is impossible.
    """
    here = validate.resolve(config).model
    changed = fields.from_dict(fields.to_dict(config))
    model = changed.model
    if here.attention.pattern:
        raise ConfigError(
            f"model.attention.pattern = {here.attention.pattern!r}: heads by layer do not grow with width"
        )
    share = width / here.width
    heads = here.num_heads * share if grow == "num_heads" else here.num_heads
    if heads != int(heads) or heads < 1:
        raise ConfigError(f"--widths: {width} is not a multiple of head_dim {here.head_dim}; or use --grow=head_dim")
    groups = here.num_kv_heads * (share if grow == "num_heads" and here.num_kv_heads > 1 else 1)
    values: dict[str, Any] = {"width": width, "num_heads": int(heads), "num_kv_heads": max(1, int(groups))}
    values["head_dim"] = here.head_dim if grow == "num_heads" else int(here.head_dim * share)
    if config.model.mlp_width is not None:
        values["mlp_width"] = int(config.model.mlp_width * share)
    for name, value in values.items():
        fields.set_field(changed, f"model.{name}", value)
    with model.ignore_type():
        model.mup_base_width = base
    if model.vocab_size is None:
        model.vocab_size = VOCABULARY
    return validate.resolve(changed)


def coordinates(config: ConfigDict, steps: int, seed: int) -> dict[str, float]:
    """Returns {coordinate: mean absolute change} of a resolved config after `steps` steps at its learning rate."""
    graphdef, params = initialise(config.model, seed)
    opt_state = train_step.initial_opt_state(config, params)
    shape = (config.data.batch_size, config.data.length + 1)
    tokens = np.random.default_rng(seed).integers(config.model.vocab_size, size=shape, dtype=np.int32)
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": np.ones(tokens[:, 1:].shape, np.float32)}

    @jax.jit
    def seen(params: Any) -> dict[str, Array]:
        return _activations(nnx.merge(graphdef, params), jnp.asarray(batch["tokens"]))

    before = seen(params)
    step = train_step.jitted(config)
    for index in range(steps):
        key = jax.random.fold_in(jax.random.key(seed), index)
        rate = optimizer.rates(config.optimizer, config.optimizer.learning_rate)
        params, opt_state, _, _ = step(params, opt_state, batch, rate, key)
    after = seen(params)
    return {name: float(jnp.mean(jnp.abs(after[name] - before[name]))) for name in before}


def _activations(model: Transformer, tokens: Array) -> dict[str, Array]:
    """Returns the residual stream after each layer, and the logits, float32."""
    results: dict[str, Array] = {}

    def watched(index: int, block: Any, *args: Any, **how: Any) -> Any:
        x, *rest = block(*args, **how)
        results[f"layer {index + 1}"] = x.astype(jnp.float32)
        return x, *rest

    model.scan, model.remat = False, "none"
    layers: Any = [Wrapped(block, functools.partial(watched, i)) for i, block in enumerate(model.layers())]
    hidden = model.hidden(tokens, layers=layers)
    return {**results, "logits": model.logits(hidden)}


def check(
    config: ConfigDict,
    widths: Sequence[int],
    base: int | None,
    *,
    steps: int = 5,
    seeds: int = 2,
    grow: str = "num_heads",
) -> Check:
    """Measures every width under one parametrization, averaged over seeds."""
    changes: dict[str, list[float]] = {}
    for width in widths:
        one = at_width(config, width, base, grow)
        each = [coordinates(one, steps, seed) for seed in range(seeds)]
        for name in each[0]:
            changes.setdefault(name, []).append(sum(values[name] for values in each) / seeds)
    return Check(tuple(widths), changes)


def verdict(mup: Check, control: Check) -> tuple[bool, str]:
    """Returns whether muP is flat and the control is not, and the verdict in words."""
    lowest = {name: -FALLS if name == "logits" else -FLAT for name in mup.slopes}
    wrong = [name for name, slope in mup.slopes.items() if not lowest[name] <= slope <= FLAT]
    slopes = ", ".join(f"{name} {mup.slopes[name]:+.2f}" for name in wrong or mup.slopes)
    words = f"muP is not flat: slopes of {slopes}" if wrong else f"muP is flat: slopes of {slopes}"
    steepest = max(control.slopes, key=lambda name: control.slopes[name])
    words += f"; the standard parametrization grows with {control.slopes[steepest]:+.2f} ({steepest})"
    if control.slopes[steepest] < GROWS:
        return False, f"{words}, less than the {GROWS:g} required for a valid check: use more steps or a higher rate."
    return not wrong, f"{words}."


def show(name: str, result: Check) -> None:
    """Prints one line per coordinate."""
    print(f"{name:28}" + "".join(f"{width:>10}" for width in result.widths) + f"{'slope':>9}")
    for coordinate, values in result.changes.items():
        cells = "".join(f"{value:>10.3g}" for value in values)
        print(f"  {coordinate:26}{cells}{result.slopes[coordinate]:>+9.2f}")


def _widths(given: str) -> tuple[int, ...]:
    try:
        widths = tuple(sorted({int(one) for one in given.split(",")}))
    except ValueError:
        widths = ()
    if len(widths) < 2 or widths[0] < 1:
        raise UserError(f"--widths={given}: must be two whole numbers or more, such as 64,128,256")
    return widths


def main(argv: list[str]) -> int:
    """The command."""
    overrides, rest = cli.split_overrides(argv)
    args = options.coordinates(__doc__ or "").parse_args(rest)
    for name in ("steps", "seeds"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name}={getattr(args, name)}: must be 1 or more")
    widths = _widths(args.widths)
    config = cli.load(args.config, overrides)
    base = config.model.mup_base_width or widths[0]
    how = {"steps": args.steps, "seeds": args.seeds, "grow": args.grow}
    mup, control = check(config, widths, base, **how), check(config, widths, None, **how)
    show(f"muP, base width {base}", mup)
    show("standard parametrisation", control)
    good, words = verdict(mup, control)
    print(words)
    if args.json:
        parts = {"mup": mup, "standard": control}
        content = {name: {"changes": one.changes, "slopes": one.slopes} for name, one in parts.items()}
        write_json(
            Path(args.json),
            {"schema": SCHEMA, "base_width": base, "widths": list(widths), **how, **content, "flat": good},
        )
    return 0 if good else 1


if __name__ == "__main__":
    cli.main(main)
