"""Keys and tokens of the environment, kept out of everything that is written for others to read. No JAX."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
SHORTEST = 8  # characters; a shorter value would be found in many a text that does not mean it


def redacted(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Returns text in which the values of variables such as WANDB_API_KEY are replaced by the variables' names."""
    return _without(text, _secrets(os.environ if environment is None else environment))


def clean(value: Any) -> Any:
    """Returns a JSON value with every text in it redacted."""
    return _cleaned(value, _secrets(os.environ))


def _secrets(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in environment.items() if len(value) >= SHORTEST and SECRET.search(name)]


def _without(text: str, secrets: Sequence[tuple[str, str]]) -> str:
    for name, value in secrets:
        text = text.replace(value, f"[{name}]")
    return text


def _cleaned(value: Any, secrets: Sequence[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        return _without(value, secrets)
    if isinstance(value, dict):
        return {
            _without(key, secrets) if isinstance(key, str) else key: _cleaned(item, secrets)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_cleaned(item, secrets) for item in value]
    return value
