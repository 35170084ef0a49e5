"""Configs as the page shows them: values shared by all arms of a study, and differing ones, to compare any two."""

import json
from dataclasses import dataclass
from typing import Any

from report.page.formats import DASH
from report.reading.directories import Arm, Study

NOT_IN_DIFFERENCES = ("name", "seed", "tracker")


@dataclass(frozen=True)
class Settings:
    """A study's settings: `shared` by all arms, and `differing` as (field, its value in each arm)."""

    shared: dict[str, str]
    differing: list[tuple[str, list[str]]]


def settings(study: Study) -> Settings:
    """Returns every config field of a study except those that name the run; a dash if an arm lacks a field."""
    configs = [flat(config_of(arm)) for arm in study.arms]
    fields = list(dict.fromkeys(field for config in configs for field in config if field not in NOT_IN_DIFFERENCES))
    rows = [(field, [config.get(field, DASH) for config in configs]) for field in fields]
    shared = {field: values[0] for field, values in rows if len(set(values)) == 1}
    return Settings(shared, [(field, values) for field, values in rows if field not in shared])


def config_of(arm: Arm) -> dict[str, Any]:
    """Returns the arm's config from sweep.json, else from its first run that has one."""
    return arm.config or next((run.config for run in arm.runs if run.config), {})


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Returns {dotted field: value as text}; text is unchanged, everything else is JSON."""
    results: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            results |= flat(value, f"{prefix}{key}.")
        else:
            results[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return results
