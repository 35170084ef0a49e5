"""Matched arms: one field of each arm is solved so that it has a reference arm's parameters, FLOPs or KV bytes.

    match=dict(equal="parameters", to="kv8", by="model.mlp_width")

gives every other arm of the study the MLP width at which its parameters are closest to those of `kv8`. An arm that does
not come within 0.5% is refused, with the closest figure it can reach. Keys:

    equal        parameters (all of them), flops (of training, per token) or kv_bytes (of the cache, per token)
    to           the reference arm; it keeps its own values
    by           the solved field: see BY
    multiple_of  the field is a multiple of this (hardware prefers 64 or 128); unset: 1
    arms         the arms to solve; unset: all but the reference

A list of such dictionaries is solved in order, for arms that must agree in two counts by two fields; the result of an
earlier one must still hold after the later ones. Counts are those of models/counting.py, exact.
"""

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict

from configs import fields, validate
from configs.errors import ConfigError, nearest

WITHIN = 0.005  # relative to the reference's figure
EQUAL = {"parameters": "parameters", "flops": "FLOPs/token", "kv_bytes": "KV bytes/token"}
_SHAPES = ("model.num_layers", "model.head_dim", "model.num_kv_heads", "model.attention.mla.kv_rank")
BY = {"parameters": ("model.mlp_width", *_SHAPES), "flops": ("model.mlp_width", *_SHAPES), "kv_bytes": _SHAPES}
KEYS = ("equal", "to", "by", "multiple_of", "arms")
MOST = 2**20  # maximum of the solved field
SKIPPED = 32  # consecutive values that a config may refuse (such as an odd rotary width)


@dataclass(frozen=True)
class Match:
    """How close one arm came to the reference: `by` is `value`, which gives `reached`; the aim was `wanted`."""

    equal: str
    to: str
    by: str
    value: int
    reached: int
    wanted: int

    @property
    def error(self) -> float:
        """The relative deviation from `wanted`, negative if below it."""
        return self.reached / self.wanted - 1

    @property
    def words(self) -> str:
        """In words: `parameters within 0.04% of kv8's, by model.mlp_width = 360 (1,000,400 against 1,000,000)`."""
        near = f"within {math.ceil(1e4 * abs(self.error)) / 100:.2f}% of" if self.error else "equal to"
        counts = f" ({self.reached:,} against {self.wanted:,})" if self.error else f" ({self.reached:,})"
        return f"{EQUAL[self.equal]} {near} {self.to}'s, by {self.by} = {self.value}{counts}"

    def described(self) -> dict[str, Any]:
        """Returns its entry in sweep.json."""
        return {**dataclasses.asdict(self), "error": self.error, "words": self.words}


@dataclass
class Draft:
    """An arm while it is solved. `build` returns its resolved config with these fields set, or raises ConfigError.

    It starts from the unresolved config, so that derived fields follow the solved ones.
    """

    name: str
    build: Callable[[Mapping[str, Any]], ConfigDict]
    solved: dict[str, int]
    matches: list[Match]


def listed(given: Any) -> list[Any]:
    """Returns the matches of a sweep file: none, one, or several."""
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [given]


def check(given: Any, taken: Mapping[str, str], where: str) -> list[str]:
    """Returns the problems of a sweep's `match`, one per line.

    Args:
        given: a dictionary, or a list of them.
        taken: {field: what already sets it}, such as {"model.num_layers": "an axis"}.
        where: its name in messages.
    """
    several = isinstance(given, list | tuple)
    problems, solved = [], set[str]()
    for index, one in enumerate(listed(given)):
        here = f"{where}[{index}]" if several else where
        problems += _check_one(one, taken, here)
        field = one.get("by") if isinstance(one, Mapping) else None
        if isinstance(field, str) and field in solved:
            problems.append(f"{here}.by = {field!r}: is already solved by an earlier match")
        solved |= {field} if isinstance(field, str) else set()
    return problems


def _check_one(one: Any, taken: Mapping[str, str], where: str) -> list[str]:
    if not isinstance(one, Mapping):
        return [f"{where} = {one!r}: must be dict(equal=, to=, by=)"]
    problems = [f"{where}: unknown key {key!r}{nearest(str(key), KEYS)}" for key in one if key not in KEYS]
    equal, field, multiple = one.get("equal"), one.get("by"), one.get("multiple_of", 1)
    if equal not in EQUAL:
        return [*problems, f"{where}.equal = {equal!r}: must be {', '.join(EQUAL)}"]
    if field not in BY[equal]:
        problems.append(f"{where}.by = {field!r}: must be {', '.join(BY[equal])} for equal {EQUAL[equal]}")
    elif field in taken:
        problems.append(f"{where}.by = {field!r}: is already {taken[field]}, which `match` would overwrite")
    if not isinstance(one.get("to"), str):
        problems.append(f"{where}.to = {one.get('to')!r}: must name an arm")
    if isinstance(multiple, bool) or not isinstance(multiple, int) or multiple < 1:
        problems.append(f"{where}.multiple_of = {multiple!r}: must be a whole number above 0")
    arms = one.get("arms", ())
    if not isinstance(arms, list | tuple) or not all(isinstance(arm, str) for arm in arms):
        problems.append(f"{where}.arms = {arms!r}: must be a list of arms' names")
    return problems


def solve(given: Any, arms: list[Draft], where: str) -> list[str]:
    """Solves the arms in place (`solved`, `matches`); returns a line for each that cannot be matched.

    Args:
        given: a checked `match`.
        arms: every arm of the study.
        where: its name in messages.
    """
    by_name = {arm.name: arm for arm in arms}
    problems = []
    for one in listed(given):
        unknown = [name for name in (one["to"], *one.get("arms", ())) if name not in by_name]
        problems += [f"{where}: no arm {name!r}{nearest(name, by_name)}" for name in unknown]
        if unknown:
            continue
        expected = count(one["equal"], by_name[one["to"]].build({}))
        for name in one.get("arms") or by_name:
            if name != one["to"]:
                arm = by_name[name]
                match = _nearest(arm, one, expected)
                arm.solved |= {match.by: match.value}
                arm.matches.append(match)
    for arm in arms:
        arm.matches = [_again(match, arm) for match in arm.matches]
        problems += [refusal for match in arm.matches if (refusal := _refusal(arm.name, match, where))]
    return problems


def _again(match: Match, arm: Draft) -> Match:
    """Returns the match with the arm's count after all of its fields were solved."""
    return Match(match.equal, match.to, match.by, match.value, count(match.equal, arm.build(arm.solved)), match.wanted)


def _refusal(name: str, match: Match, where: str) -> str:
    if abs(match.error) <= WITHIN:
        return ""
    off = f"{abs(100 * match.error):.2f}% {'more' if match.error > 0 else 'fewer'}"
    return (
        f"{where}: arm {name}: its {EQUAL[match.equal]} come no closer than {match.reached:,} ({match.by} = "
        f"{match.value}), {off} than the {match.wanted:,} of {match.to}; must be within {100 * WITHIN:g}%"
    )


def _nearest(arm: Draft, one: Mapping[str, Any], expected: int) -> Match:
    """Returns the match closest to `expected`; among equals the arm's own value, then the smaller."""
    before = arm.build(arm.solved)
    own = fields.flatten(before)[one["by"]] or 1
    reachable = [(own, count(one["equal"], before)), *_reachable(arm, one, expected, before)]
    value, reached = min(reachable, key=lambda pair: (abs(pair[1] - expected), pair[0] != own, pair[0]))
    return Match(one["equal"], one["to"], one["by"], value, reached, expected)


def _reachable(arm: Draft, one: Mapping[str, Any], expected: int, before: ConfigDict) -> list[tuple[int, int]]:
    """Returns (value, count) on both sides of `expected`: every count grows with every field of BY."""
    field, step = one["by"], one.get("multiple_of", 1)

    @functools.cache
    def at(index: int) -> tuple[int, int] | None:
        try:
            return index * step, count(one["equal"], arm.build({**arm.solved, field: index * step}))
        except ConfigError:
            return None

    def first(index: int, way: int) -> list[tuple[int, int]]:
        """Returns the first value from `index` steps on that the config allows, if there is one nearby."""
        places = range(index, max(0, index + way * SKIPPED), way)
        return list(itertools.islice((result for place in places if (result := at(place))), 1))

    def enough(index: int) -> bool:
        result = first(index, 1)
        return not result or result[0][1] >= expected

    if field == "model.num_kv_heads":  # divides the heads, so that allowed values are far apart
        return [result for index in range(1, before.model.num_heads // step + 1) if (result := at(index))]
    points = first(1, 1) + first(SKIPPED, 1)
    if len({reached for _, reached in points}) < 2:  # the field has no effect here
        return points
    low, high = _bracket(enough, _guess(points, expected, step))
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return first(high, 1) + first(high - 1, -1)


def _guess(points: list[tuple[int, int]], expected: int, step: int) -> int:
    """Returns the step at which a line through two (value, count) meets `expected`: most counts are linear."""
    (x, y), (other, above) = points
    return max(1, min(MOST, round(x + (expected - y) * (other - x) / (above - y))) // step)


def _bracket(enough: Callable[[int], bool], guess: int) -> tuple[int, int]:
    """Returns (too few, enough) around a guess; 0 is too few, and MOST enough."""
    low, high, width = guess - 1, guess, 1
    while low > 0 and enough(low):
        low, high, width = max(0, low - width), low, 2 * width
    while high < MOST and not enough(high):
        low, high, width = high, min(MOST, high + width), 2 * width
    return low, high


def count(equal: str, config: ConfigDict) -> int:
    """Returns a resolved config's parameters, FLOPs or KV bytes a token, exactly."""
    from models import counting

    if equal == "kv_bytes":
        return counting.kv_bytes_per_token(config.model, 2 if config.model.dtype == "bfloat16" else 4)
    config = with_vocabulary(config)
    if equal == "flops":
        return counting.flops_per_token(config.model, config.data.length)["value"]
    return counting.parameters(config.model)["total"]


_VOCABULARIES: dict[str, int] = {}


def with_vocabulary(config: ConfigDict) -> ConfigDict:
    """Returns a resolved config with `model.vocab_size` set; opens the data if necessary."""
    if config.model.vocab_size is not None:
        return config
    from training.run_directory.run import vocabulary

    key = config.data.to_json()
    if key not in _VOCABULARIES:
        _VOCABULARIES[key] = vocabulary(config)
    config = config.copy_and_resolve_references()
    with config.ignore_type():
        config.model.vocab_size = _VOCABULARIES[key]
    return config


def draft(name: str, config: ConfigDict, derive: Callable[[ConfigDict], list[str]]) -> Draft:
    """Returns an arm to be solved.

    Args:
        config: unresolved, with derived fields set.
        derive: sets the derived fields in place again; returns the errors.
    """

    def build(values: Mapping[str, Any]) -> ConfigDict:
        changed = copy.deepcopy(config)
        for field, value in values.items():
            fields.set_field(changed, field, value)
        wrong = derive(changed)
        if wrong:
            raise ConfigError(wrong)
        return validate.resolve(changed)

    return Draft(name, build, {}, [])
