"""The variants of an evaluation: a run's model at each length, with its own RoPE scaling and with others."""

from dataclasses import dataclass

from ml_collections import ConfigDict

from configs import validate
from models import pattern
from models.declared import positions
from models.positions import stretched
from models.positions.rope_scaling import SCALINGS

TRAINED = "trained"  # the run's own setting, unchanged
CONTROL = "local baseline"  # the run's own setting, with its attention window set to the training length


@dataclass(frozen=True)
class Variant:
    """One length and one scaling. `reason` says why it cannot be evaluated; then there is no model."""

    multiple: float  # of the training length
    length: int  # tokens
    scaling: str  # "trained", or the kind applied at evaluation only
    factor: float  # s of the scaling; 1 for dynamic where it is the multiple for the others
    model: ConfigDict | None  # config.model with that scaling
    reason: str | None = None
    stretch: float | None = None  # factor by which the slowest rotary pair is slowed at this length; None: none rotates

    @property
    def entry(self) -> dict[str, object]:
        """The keys that name this variant in a JSON file."""
        named = {"length": self.length, "multiple": self.multiple, "scaling": self.scaling, "factor": self.factor,
                 "stretch": self.stretch}  # fmt: skip
        return named if self.reason is None else {**named, "reason": self.reason}


def variants(config: ConfigDict) -> list[Variant]:
    """Returns every length of `lengths` with "trained" and each of `eval.scalings`, in that order.

    The config must be resolved. A scaling applied at evaluation keeps the run's original length and has the factor
    `eval.scaling_factor` or, if that is 0, the one that just reaches the length: length / original length, and 1 for
    dynamic, whose base grows with the length by itself. All are then equally strong (`Variant.stretch`).
    """
    results = []
    for scaling in [TRAINED, *dict.fromkeys(config.eval.scalings)]:
        results += [_variant(config, multiple, length, scaling) for length, multiple in lengths(config)]
    return results


def lengths(config: ConfigDict) -> list[tuple[int, float]]:
    """Returns (tokens, multiple of the training length) of `eval.multiples` and `eval.lengths`, sorted and unique."""
    results = {max(1, round(multiple * config.data.length)): float(multiple) for multiple in config.eval.multiples}
    for tokens in config.eval.lengths:
        results.setdefault(tokens, tokens / config.data.length)
    return sorted(results.items())


def at_training_length(config: ConfigDict) -> Variant:
    """Returns the run's unchanged model, at its training length."""
    stretch = stretched.slowest_stretch(config.model, config.data.length)
    return Variant(1.0, config.data.length, TRAINED, own_factor(config.model), config.model, stretch=stretch)


def beyond(config: ConfigDict, length: int) -> int:
    """Returns the training length if `length` is longer, else 0."""
    return int(config.data.length) if length > config.data.length else 0


def control(config: ConfigDict, variant: Variant) -> Variant:
    """Returns the local baseline of a variant: the run's model as trained, with no window beyond the training length.

    Each layer's window becomes the smaller of its own and the training length. A layer then reads no token that is
    farther back; stacked layers together reach `reach` tokens. `reason` says why there is none.
    """
    changed, length = validate.from_dict(validate.to_dict(config)), int(config.data.length)
    attention = changed.model.attention
    if attention.window_pattern:
        attention.window_pattern = tuple(min(window or length, length) for window in attention.window_pattern)
    else:
        attention.window = min(attention.window or length, length)
    problems = validate.problems(changed)
    reason = unreachable(changed.model, variant.length) or (problems[0] if problems else None)
    factor = own_factor(config.model)
    if reason is not None:
        return Variant(variant.multiple, variant.length, CONTROL, factor, None, reason)
    stretch = stretched.slowest_stretch(changed.model, variant.length)
    return Variant(variant.multiple, variant.length, CONTROL, factor, changed.model, None, stretch)


def reach(model: ConfigDict) -> int | None:
    """Returns how many tokens back anything can affect a prediction through all layers; None: unlimited."""
    windows = [plan.window for plan in pattern.plans(model)]
    return None if None in windows else sum(window - 1 for window in windows if window is not None)


def own_factor(model: ConfigDict) -> float:
    """Returns the factor the run was trained with, 1 without scaling."""
    scaling = model.position.rope.scaling
    return float(scaling.factor) if scaling.kind != "none" else 1.0


def kinds(model: ConfigDict) -> list[str]:
    """Returns the positional schemes that are used in some layer."""
    return list(dict.fromkeys(tuple(model.position.pattern) or (model.position.kind,)))


def rows_at(length: int, training_length: int, batch_size: int) -> int:
    """Returns the rows of a batch at `length` with about as many tokens as one at the training length."""
    return max(1, batch_size * training_length // length)


def unreachable(model: ConfigDict, length: int) -> str | None:
    """Returns why a model has no positions for rows of `length`, or None."""
    end = positions.reach(model)
    return None if end is None or length <= end[0] else end[1]


def _variant(config: ConfigDict, multiple: float, length: int, scaling: str) -> Variant:
    model = config.model
    factor = own_factor(model) if scaling == TRAINED else _factor(config, length, scaling)
    reason = unreachable(model, length)
    if reason is None and scaling != TRAINED and not set(kinds(model)) & set(stretched.KINDS):
        reason = f"a RoPE scaling has nothing to act on: position.kind = {'/'.join(kinds(model))}"
    if reason is None and scaling != TRAINED:
        model, reason = _rescaled(config, scaling, factor)
    if model is None or reason:
        return Variant(multiple, length, scaling, factor, None, reason)
    return Variant(multiple, length, scaling, factor, model, None, stretched.slowest_stretch(model, length))


def _factor(config: ConfigDict, length: int, scaling: str) -> float:
    if scaling == "none" or (SCALINGS[scaling].grows and not config.eval.scaling_factor):
        return 1.0
    original = config.model.position.rope.scaling.original_length
    return max(1.0, float(config.eval.scaling_factor) or length / original)


def _rescaled(config: ConfigDict, kind: str, factor: float) -> tuple[ConfigDict | None, str | None]:
    """Returns (config.model with another scaling, None), or (None, why that scaling is impossible).

    The run's own kind at its own factor is the run's own function. At another factor the rules that depend on the
    factor (mscale, mscale_all_dim) stay, and a number chosen for the run's own factor (attention_factor) is dropped;
    another kind keeps neither.
    """
    changed = validate.from_dict(validate.to_dict(config))
    scaling = changed.model.position.rope.scaling
    if scaling.kind != "none" and (scaling.kind, scaling.factor) != (kind, factor):
        scaling.attention_factor = None
        if scaling.kind != kind:
            scaling.mscale = scaling.mscale_all_dim = None
    scaling.kind, scaling.factor = kind, factor
    problems = validate.problems(changed)
    return (None, problems[0]) if problems else (changed.model, None)
