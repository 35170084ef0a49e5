"""Checks that the data files of all arms exist, before anything is launched. No JAX."""

import glob
import os
from pathlib import Path

from ml_collections import ConfigDict

from configs.errors import ConfigError
from configs.rules import tasks
from configs.rules.data import TOKENIZERS
from sweeps.spec.sweep import Sweep


def check(sweep: Sweep) -> None:
    """Checks that each data path of the arms matches something.

    Raises:
        ConfigError: a line for each path that does not, with its arms.
    """
    arms: dict[str, list[str]] = {}
    for study in sweep.studies:
        for arm in study.arms:
            for problem in missing(arm.config):
                arms.setdefault(problem, []).append(arm.name)
    if arms:
        raise ConfigError(
            f"{problem} (in {os.getcwd()}; {', '.join(names[:5])}{' and others' if len(names) > 5 else ''})"
            for problem, names in arms.items()
        )


def missing(config: ConfigDict) -> list[str]:
    """Returns the problems with the data paths of a resolved config."""
    data, result = config.data, []
    for name in ("path", "validation_path"):
        if data[name] and not _there(data[name]):
            result.append(f"data.{name} = {data[name]!r}: no file matches")
    for index, one in enumerate(data.mixture):
        for name in ("path", "validation_path"):
            if one.get(name) and not _there(one[name]):
                result.append(f"data.mixture[{index}].{name} = {one[name]!r}: no file matches")
    for name, field in tasks.IN_FILES.items():
        named = {f"data.retrieval.{field}": data.retrieval[field]} if tasks.uses(config, name) else {}
        if tasks.asked(config) == name and config.eval.retrieval[field]:
            named[f"eval.retrieval.{field}"] = config.eval.retrieval[field]
        result += [f"{where} = {path!r}: there is no such file" for where, path in named.items() if not _there(path)]
    if data.tokenizer and data.tokenizer not in TOKENIZERS and not Path(data.tokenizer).expanduser().exists():
        result.append(f"data.tokenizer = {data.tokenizer!r}: no such file")
    return result


def _there(pattern: str) -> bool:
    pattern = os.path.expanduser(pattern)
    return os.path.exists(pattern) or next(glob.iglob(pattern, recursive=True), None) is not None
