"""Refuses what is not allowed before any device work, and fills in unset fields.

Every problem is one line: the field, the value, what is allowed.
"""

from ml_collections import ConfigDict

from configs import base
from configs.errors import ConfigError, UserError
from configs.fields import flatten, from_dict, set_field, to_dict
from configs.rules import branches, data, evaluation, mesh, model, optimizer, tasks
from configs.rules.positions import rotary_dim
from configs.rules.tasks import uses

__all__ = ["ConfigError", "UserError", "check", "from_dict", "problems", "resolve", "rotary_dim", "to_dict", "uses"]


def problems(config: ConfigDict) -> list[str]:
    """Returns every problem of a config (resolved or not), a line each; empty when it is sound."""
    result = by_field(config)
    # Rules over several fields read values that must be sound first.
    result = result or [*model.problems(config), *data.problems(config), *data.curriculum_problems(config)]
    result = result or [*mesh.problems(config), *evaluation.watch_problems(config), *branches.problems(config)]
    result = result or optimizer.problems(config, base.SCHEMA)
    return result or tasks.asking_problems(config)


def by_field(config: ConfigDict) -> list[str]:
    """Returns the problems of each field by itself."""
    values = flatten(config)
    result = (field.problem(name, values[name]) for name, field in base.SCHEMA.items())
    return [*filter(None, result), *evaluation.lengths(config)]


def check(config: ConfigDict) -> None:
    """Refuses an unsound config.

    Raises:
        ConfigError: with one line for each problem.
    """
    if result := problems(config):
        raise ConfigError(result)


def resolve(config: ConfigDict) -> ConfigDict:
    """Checks a config and returns a copy with every unset field that can be derived filled in, in the schema's order.

    `model.vocab_size` stays unset where only the loaded tokenizer knows it; `attention.scale` stays unset for the
    usual 1/sqrt(head_dim).

    Raises:
        ConfigError: with one line for each problem.
    """
    check(config)
    config = from_dict(config.to_dict())
    values = flatten(config)
    for name, field in base.SCHEMA.items():
        if field.resolve is not None and (values[name] is None or not field.optional):
            set_field(config, name, field.resolve(config))
    return config
