"""Which fields of config.optimizer each optimizer reads, and what it cannot be combined with."""

from collections.abc import Mapping

from ml_collections import ConfigDict

from configs.schema import Field

# The fields of config.optimizer that not every optimizer reads, by optimizer.kind.
KINDS: dict[str, tuple[str, ...]] = {
    "adamw": ("beta1", "beta2", "eps"),
    "muon": (
        *("beta1", "beta2", "eps"),  # of AdamW, which takes what is not a matrix of a layer
        *("muon.learning_rate", "muon.momentum", "muon.nesterov", "muon.steps"),
    ),
    "lion": ("beta1", "beta2"),
    "adafactor": (
        *("adafactor.decay_rate", "adafactor.clip_threshold"),
        *("adafactor.factor_from", "adafactor.parameter_scale"),
    ),
    "schedule_free_adamw": ("beta1", "beta2", "eps"),
}


def problems(config: ConfigDict, schema: Mapping[str, Field]) -> list[str]:
    """Returns what is wrong: a field that is set and not read, and combinations that an optimizer excludes."""
    optimizer = config.optimizer
    kind, values = optimizer.kind, {}
    for name in dict.fromkeys(name for read in KINDS.values() for name in read):
        *groups, last = name.split(".")
        values[name] = (optimizer[groups[0]] if groups else optimizer)[last]
    results = []
    for name, value in values.items():
        default = schema[f"optimizer.{name}"].default
        if name not in KINDS[kind] and value != default:
            results.append(
                f"optimizer.{name} = {value!r}: optimizer.kind = {kind!r} does not read it; leave it at {default!r}"
            )
    if kind == "schedule_free_adamw":
        if optimizer.schedule != "constant":
            results.append(
                f"optimizer.schedule = {optimizer.schedule!r}: must be constant for {kind}, which averages parameters "
                "instead of lowering the learning rate"
            )
        if optimizer.beta1 == 0:
            results.append(f"optimizer.beta1 = 0: must be above 0 for {kind}")
    if kind == "adafactor" and optimizer.adafactor.parameter_scale and config.model.mup_base_width is not None:
        results.append(
            "optimizer.adafactor.parameter_scale = True: must be False with model.mup_base_width, whose factors are "
            "of updates that do not depend on the size of the parameters"
        )
    return results
