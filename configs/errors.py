"""A user's mistake, in one line; `configs.cli.main` prints it and exits with 2."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend: bad input, a missing file, an impossible request. The message is one clear line."""


class ConfigError(UserError):
    """A configuration that is refused. `problems` holds one line for each thing wrong with it."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Returns `; did you mean X?` for the closest allowed name (by its last part first), or an empty string."""
    allowed = list(allowed)
    last = name.rsplit(".", 1)[-1]
    by_last: dict[str, list[str]] = {}
    for full in allowed:
        by_last.setdefault(full.rsplit(".", 1)[-1], []).append(full)
    close = difflib.get_close_matches(last, by_last, n=4, cutoff=0.6)
    # Among last parts that are nearly as close as the closest, the whole name decides.
    likeness = [difflib.SequenceMatcher(None, last, other).ratio() for other in close]
    near = [other for other, share in zip(close, likeness, strict=True) if share > likeness[0] - 0.1]
    candidates = [full for other in near for full in by_last[other]] if near else allowed
    # Letters that only changed places say which of niah_single_1, _2 and _3 was meant.
    candidates = [full for full in allowed if sorted(full) == sorted(name)] or candidates
    best = difflib.get_close_matches(name, candidates, n=1, cutoff=0.0 if close else 0.6)
    return f"; did you mean {best[0]}?" if best else ""
