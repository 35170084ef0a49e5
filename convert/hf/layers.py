"""Settings by layer: windows (`sliding_window`, `layer_types`) and layers without positions (`no_rope_layers`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict

from convert.hf.keys import Keys, Ours, Theirs, typed
from models import pattern

FULL, SLIDING = "full_attention", "sliding_attention"


def shortest(values: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the shortest prefix of `values` that gives all of them when it is repeated."""
    values = tuple(values)
    for size in range(1, len(values) + 1):
        if all(value == values[index % size] for index, value in enumerate(values)):
            return values[:size]
    return values


def _window(keys: Keys, default: int | None) -> int | None:
    value = keys.get("sliding_window", default)
    if value is None:
        return None
    value = typed(keys, "sliding_window", value, int)
    if value < 1:
        raise keys.error("sliding_window", "must be above 0, or null")
    return value


def _types(keys: Keys, layers: int) -> list[str] | None:
    value = keys.get("layer_types", None)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) < layers or any(item not in (FULL, SLIDING) for item in value):
        raise keys.error("layer_types", f"must name {FULL} or {SLIDING} for each of the {layers} layers")
    return value[:layers]


def _set(ours: Ours, windows: Sequence[int | None]) -> None:
    few = shortest(windows)
    one = len(few) == 1
    ours["model.attention.window"] = few[0] if one else None
    ours["model.attention.window_pattern"] = () if one else tuple(window or 0 for window in few)


def _windows(config: ConfigDict) -> list[int | None]:
    return [plan.window for plan in pattern.plans(config.model)]


@dataclass(frozen=True)
class OneWindow:
    """`sliding_window` in every layer; null: none."""

    default: int | None

    def read(self, keys: Keys, ours: Ours) -> None:
        """Sets the window."""
        window = _window(keys, self.default)
        layers = ours["model.num_layers"]
        types = _types(keys, layers)
        if types is not None and types != [FULL if window is None else SLIDING] * layers:
            raise keys.error("layer_types", f"not supported; sliding_window = {window} applies to every layer here")
        _set(ours, [window])

    def write(self, config: ConfigDict, theirs: Theirs) -> None:
        """Sets the key, to the first layer's window."""
        theirs["sliding_window"] = _windows(config)[0]


@dataclass(frozen=True)
class SomeWindows:
    """`sliding_window` if `use_sliding_window` is on, in the layers that `layer_types` names."""

    default: int | None  # the window if the key is absent
    slides: Callable[[Keys, Ours], list[bool]]  # which layers slide if layer_types is absent
    first: bool = True  # the family has max_window_layers

    def read(self, keys: Keys, ours: Ours) -> None:
        """Sets the windows."""
        window = _window(keys, self.default)
        layers = ours["model.num_layers"]
        slides = self.slides(keys, ours)
        types = _types(keys, layers)
        used = typed(keys, "use_sliding_window", keys.get("use_sliding_window", False) or False, bool)
        if not used:
            window = None
        if types is None:
            types = [SLIDING if window is not None and slide else FULL for slide in slides]
        if window is None and SLIDING in types:
            raise keys.error("layer_types", f"names {SLIDING}, but use_sliding_window or sliding_window is off")
        _set(ours, [window if kind == SLIDING else None for kind in types])

    def write(self, config: ConfigDict, theirs: Theirs) -> None:
        """Sets the keys; there is at most one window."""
        windows = _windows(config)
        theirs["use_sliding_window"] = any(windows)
        theirs["sliding_window"] = max([window for window in windows if window], default=None)
        theirs["layer_types"] = [SLIDING if window else FULL for window in windows]
        if self.first:
            theirs["max_window_layers"] = next((i for i, window in enumerate(windows) if window), len(windows))


def from_layer(keys: Keys, ours: Ours) -> list[bool]:
    """Qwen: layers from `max_window_layers` on slide."""
    value = keys.get("max_window_layers", 28)
    first = typed(keys, "max_window_layers", 28 if value is None else value, int)
    return [layer >= first for layer in range(ours["model.num_layers"])]


def without_rope(keys: Keys, ours: Ours) -> list[bool]:
    """SmolLM3: layers without RoPE slide."""
    return [not rope for rope in _ropes(keys, ours["model.num_layers"])]


def _ropes(keys: Keys, layers: int) -> list[bool]:
    interval = keys.get("no_rope_layer_interval", 4)
    given = keys.get("no_rope_layers", None)
    if given is None:
        interval = typed(keys, "no_rope_layer_interval", 4 if interval is None else interval, int)
        if interval < 1:
            raise keys.error("no_rope_layer_interval", "must be above 0")
        return [(layer + 1) % interval != 0 for layer in range(layers)]
    if not isinstance(given, list) or len(given) < layers or any(item not in (0, 1) for item in given):
        raise keys.error("no_rope_layers", f"must have 1 (RoPE) or 0 (none) for each of the {layers} layers")
    return [bool(item) for item in given[:layers]]


@dataclass(frozen=True)
class NopeLayers:
    """`no_rope_layers`: 1 means RoPE and 0 means none, despite its name. Follows `Rope`."""

    def read(self, keys: Keys, ours: Ours) -> None:
        """Sets model.position.pattern, or the kind if all layers are the same."""
        kind = ours["model.position.kind"]
        few = shortest([kind if rope else "none" for rope in _ropes(keys, ours["model.num_layers"])])
        if len(few) == 1:
            ours["model.position.kind"] = few[0]
        ours["model.position.pattern"] = () if len(few) == 1 else few

    def write(self, config: ConfigDict, theirs: Theirs) -> None:
        """Sets the keys."""
        ropes = [plan.position != "none" for plan in pattern.plans(config.model)]
        theirs["no_rope_layers"] = [int(rope) for rope in ropes]
        gap = ropes.index(False) + 1 if False in ropes else len(ropes) + 1
        theirs["no_rope_layer_interval"] = gap
