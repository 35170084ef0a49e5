"""Names of arms: from a template or a function, and valid as folder names on every system."""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import fields
from configs.errors import ConfigError
from sweeps.spec.axes import unknown_field

SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+,@-]*")
LONGEST = 100
ALLOWED = f"letters, digits and . _ = + , @ -, a letter or digit first, no dot last, {LONGEST} at most"
WINDOWS = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def check_template(arm: Any, where: str) -> list[str]:
    """Returns the problems of a sweep's `arm`: a format string over the config's fields, a function, or unset."""
    if arm is None or callable(arm):
        return []
    if not isinstance(arm, str) or not arm:
        return [
            f"{where} = {arm!r}: must be a format string such as 'h{{model.num_heads}}' or a function of the config"
        ]
    try:
        parts = [name for _, name, _, _ in string.Formatter().parse(arm) if name is not None]
    except ValueError as error:
        return [f"{where} = {arm!r}: {error}"]
    return [f"{where} = {arm!r}: {unknown_field(name)}" for name in parts if name not in fields.types()]


def of(arm: str | Callable[[ConfigDict], Any] | None, config: ConfigDict, default_name: str) -> str:
    """Returns an arm's name.

    Raises:
        ConfigError: the template or function fails, or the name is not valid as a folder.
    """
    try:
        if arm is None:
            name: Any = default_name
        elif isinstance(arm, str):
            name = arm.format(**{key: config[key] for key in config})
        else:
            name = arm(config)
    except Exception as error:
        raise ConfigError(f"its name failed: {type(error).__name__}: {error}") from error
    if not isinstance(name, str):
        raise ConfigError(f"its name is {name!r}, must be text")
    if not SAFE.fullmatch(name) or len(name) > LONGEST or name.endswith(".") or WINDOWS.fullmatch(name):
        raise ConfigError(f"its name {name!r} is not safe as a folder; allowed: {ALLOWED}")
    return name


def default(varied: Mapping[str, Any]) -> str:
    """Returns the name of an arm without a template: `num_heads=4,window=64`; empty without axes."""
    last = [name.rsplit(".", 1)[-1] for name in varied]
    parts = []
    for short, (full, value) in zip(last, varied.items(), strict=True):
        text = "-".join(map(str, value)) if isinstance(value, tuple) else str(value)
        text = re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-.") or "none"
        parts.append(f"{full if last.count(short) > 1 else short}={text}")
    return ",".join(parts)


def collisions(names: Sequence[str]) -> list[str]:
    """Returns a line for each name that two arms share, ignoring case: some systems give such names one folder."""
    problems = [
        f"arm {name}: {times} arms have this name; `arm` must distinguish them"
        for name, times in Counter(names).items()
        if times > 1
    ]
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            problems.append(f"arm {name}: differs from arm {other} only in case, and some systems give both one folder")
    return problems
