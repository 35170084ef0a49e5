"""Keys and tokens of the environment, kept out of everything that is written for others to read. No JAX."""

import os
import re
from collections.abc import Mapping
from typing import Any

SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
SHORTEST = 8  # characters; a shorter value would be found in many a text that does not mean it


def redacted(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Returns text in which the values of variables such as WANDB_API_KEY are replaced by the variables' names."""
    for name, value in (os.environ if environment is None else environment).items():
        if len(value) >= SHORTEST and SECRET.search(name) and value in text:
            text = text.replace(value, f"[{name}]")
    return text


def clean(value: Any) -> Any:
    """Returns a JSON value with every text in it redacted."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {redacted(key) if isinstance(key, str) else key: clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value
