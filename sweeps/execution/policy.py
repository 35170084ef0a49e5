"""What a launcher does about runs that fail, hang or take too long."""

import re
from dataclasses import dataclass

from configs.errors import UserError

ON_FAILURE = ("continue", "stop")
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
RESUMPTIONS = 3  # times a run that was stopped from outside is resumed by one launcher


@dataclass(frozen=True)
class Policy:
    """Handling of failures, the same for every launcher.

    Attributes:
        on_failure: `continue` with the other runs; or `stop`: start no more, let running ones finish.
        retries: times a failed run, or a run with a failed evaluation, is retried by one launcher.
        timeout: seconds a run may take, from its start to its last evaluation; None: no limit.
    """

    on_failure: str = "continue"
    retries: int = 0
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.on_failure not in ON_FAILURE:
            raise UserError(f"--on-failure={self.on_failure}: must be {' or '.join(ON_FAILURE)}")
        if self.retries < 0:
            raise UserError(f"--retries={self.retries}: must be 0 or more")


def seconds(text: str, option: str) -> float:
    """Returns a time as seconds: `90`, `90s`, `15m`, `2h`, `1d`.

    Raises:
        UserError: it is invalid.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    value = float(match[1]) * UNITS[match[2] or "s"] if match else 0.0
    if value <= 0:
        raise UserError(f"{option}={text}: must be a time above 0, such as 90s, 15m, 2h or 1d")
    return value
