"""RoPE's settings in config.json and model.position.rope: two schemas with one meaning.

transformers 5 has one `rope_parameters` with rope_theta, rope_type, partial_rotary_factor and the scaling's numbers
(possibly one per layer type); earlier versions have rope_theta and partial_rotary_factor at the top level and the rest
in `rope_scaling`, with `rope_type` or `type`. Both are read and both are written. Defaults of absent numbers follow
transformers' modeling_rope_utils.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict

from configs.errors import nearest
from convert.hf.keys import REQUIRED, Keys, Ours, Theirs, typed

ROPE = "model.position.rope"
LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")

# rope_type -> our scaling.kind
TYPES = {
    "default": "none",
    "linear": "linear",
    "dynamic": "dynamic",
    "yarn": "yarn",
    "llama3": "llama3",
    "longrope": "longrope",
    "proportional": "none",  # p-RoPE; its factor divides all frequencies, as in linear
}

# Numbers of each kind: key -> (type, value if absent or null). Our fields have the same names.
NUMBERS: dict[str, dict[str, tuple[type, Any]]] = {
    "none": {},
    "linear": {"factor": (float, REQUIRED)},
    "dynamic": {"factor": (float, REQUIRED)},
    "yarn": {
        "factor": (float, None),
        "attention_factor": (float, None),
        "beta_fast": (float, 32.0),
        "beta_slow": (float, 1.0),
        "truncate": (bool, True),
        "mscale": (float, None),
        "mscale_all_dim": (float, None),
    },
    "llama3": {
        "factor": (float, REQUIRED),
        "low_freq_factor": (float, REQUIRED),
        "high_freq_factor": (float, REQUIRED),
    },
    "longrope": {
        "short_factor": (tuple, REQUIRED),
        "long_factor": (tuple, REQUIRED),
        "factor": (float, None),
        "attention_factor": (float, None),
    },
}
ORIGINAL = "original_max_position_embeddings"
OF_ANY_KIND = {ORIGINAL, *(key for numbers in NUMBERS.values() for key in numbers)}
IN_TABLE = {"rope_theta", "rope_type", "type", "partial_rotary_factor"}
WITH_ORIGINAL = ("yarn", "llama3", "longrope")  # the others count from max_position_embeddings


@dataclass(frozen=True)
class Rope:
    """RoPE of one family: its defaults, and its older configs' names."""

    theta: float = 10000.0
    fraction: float = 1.0
    theta_key: str = "rope_theta"
    fraction_key: str = "partial_rotary_factor"
    types: Mapping[str, str] | None = None  # rope_type -> our scaling.kind; None: all of TYPES
    original: int | None = None  # the original length if no key has it; None: the longest
    bare: bool = False  # the older schema has only type and longrope's two lists
    partial: bool = False  # whether only a part of head_dim may be rotary; elsewhere transformers ignores the share

    def read(self, keys: Keys, ours: Ours) -> None:
        """Sets model.position.kind and model.position.rope; data.length becomes the length before stretching."""
        table = self._table(keys)
        theta, fraction = self._outside(keys, table)
        kind = self._kind(keys, table)
        ours["model.position.kind"] = "rope"
        ours[f"{ROPE}.pairing"] = "half"
        ours[f"{ROPE}.theta"] = typed(keys, self.theta_key, theta, float)
        ours[f"{ROPE}.fraction"] = typed(keys, self.fraction_key, fraction, float)
        if self._type(table) == "proportional":
            ours["model.position.kind"] = "p_rope"
            kind = "none" if table.get("factor") in (None, 1, 1.0) else "linear"
        elif not self.partial and ours[f"{ROPE}.fraction"] != 1:
            where = self.fraction_key if self.fraction_key in keys.values else "rope_parameters"
            raise keys.error(where, "partial rotary embeddings are not supported in this family")
        ours[f"{ROPE}.scaling.kind"] = kind
        self._refuse_strangers(keys, table, kind)
        self._lengths(keys, ours, table, kind)
        self._numbers(keys, ours, table, kind)

    def write(self, config: ConfigDict, theirs: Theirs) -> None:
        """Sets rope_parameters, and the older schema's keys beside it."""
        rope, kind = config.model.position.rope, config.model.position.rope.scaling.kind
        name = {ours: name for name, ours in reversed(list((self.types or TYPES).items()))}.get(kind)
        kinds = {config.model.position.kind, *config.model.position.pattern}
        if "p_rope" in kinds:
            name = "proportional" if kind in ("none", "linear") else None
        table: dict[str, Any] = {}
        if name is not None and name != "default":
            table["rope_type"] = name
            for key in NUMBERS[kind]:
                value = rope.scaling[key]
                if value is not None:
                    table[key] = list(value) if isinstance(value, tuple) else value
            if kind in WITH_ORIGINAL:
                table[ORIGINAL] = rope.scaling.original_length
        theirs["rope_parameters"] = {
            "rope_type": "default",
            **table,
            "rope_theta": rope.theta,
            "partial_rotary_factor": rope.fraction,
        }
        theirs["rope_scaling"] = table or None
        if kind == "longrope" and self.bare:
            lists = {key: table[key] for key in ("short_factor", "long_factor")}
            said = theirs["max_position_embeddings"] == rope.scaling.factor * rope.scaling.original_length
            if said and rope.scaling.attention_factor is None:
                theirs["rope_scaling"] = {"type": "longrope", **lists}
            # else the older schema cannot express it: transformers 4 refuses the table, which is better than a guess
        if kind == "longrope":
            theirs[ORIGINAL] = (
                rope.scaling.original_length
            )  # Phi-3 reads it at the top level, and uses 4096 if it is absent
        theirs[self.theta_key], theirs[self.fraction_key] = rope.theta, rope.fraction

    @staticmethod
    def _type(table: Mapping[str, Any]) -> Any:
        return table.get("rope_type", table.get("type", "default")) or "default"

    def _table(self, keys: Keys) -> dict[str, Any]:
        """Returns the single table of numbers of config.json, in either schema."""
        new, old = keys.get("rope_parameters", None), keys.get("rope_scaling", None)
        for key, value in (("rope_parameters", new), ("rope_scaling", old)):
            if value is not None and not isinstance(value, dict):
                raise keys.error(key, "must be an object")
        new = self._flattened(keys, "rope_parameters", new or {})
        old = self._flattened(keys, "rope_scaling", old or {})
        if new and old:
            for key in (new.keys() & old.keys()) - {"type"}:
                if new[key] != old[key]:
                    raise keys.error("rope_scaling", f"its {key} differs from that of rope_parameters, {new[key]!r}")
            if self._type(new) != self._type(old):
                raise keys.error("rope_scaling", f"its type differs from that of rope_parameters, {self._type(new)!r}")
        return {**old, **new}

    def _flattened(self, keys: Keys, name: str, table: dict[str, Any]) -> dict[str, Any]:
        """Returns the table; if there is one per layer type, they must agree."""
        nested = [key for key in table if key in LAYER_TYPES]
        if not nested:
            return table
        first = table[nested[0]]
        if len(nested) != len(table) or not isinstance(first, dict) or any(table[key] != first for key in nested):
            raise keys.error(name, "RoPE that differs by layer type is not supported")
        return first

    def _outside(self, keys: Keys, table: dict[str, Any]) -> tuple[Any, Any]:
        """Returns theta and the rotary share, which may be in the table or at the top level."""
        results = []
        for inside, outside, default in (
            ("rope_theta", self.theta_key, self.theta),
            ("partial_rotary_factor", self.fraction_key, self.fraction),
        ):
            on_top, value = keys.get(outside, None), table.get(inside)
            if value is not None and on_top is not None and value != on_top:
                raise keys.error(outside, f"differs from {inside} = {value!r}")
            results.append(next((v for v in (value, on_top) if v is not None), default))
            # A family with its own name ignores the usual one at the top level, as transformers does.
            if outside != inside and keys.get(inside, None) not in (None, results[-1]):
                keys.warn(f"{inside} = {keys.values[inside]!r} has no effect at top level in this family, which reads "
                          f"{outside}; {results[-1]!r} counts")  # fmt: skip
        return results[0], results[1]

    def _kind(self, keys: Keys, table: dict[str, Any]) -> str:
        name, types = self._type(table), self.types or TYPES
        where = "rope_parameters" if keys.values.get("rope_parameters") else "rope_scaling"
        if not isinstance(name, str) or name not in types:
            raise keys.error(where, f"rope_type {name!r} is not supported; must be {', '.join(types)}"
                             f"{nearest(str(name), types)}")  # fmt: skip
        return types[name]

    def _refuse_strangers(self, keys: Keys, table: dict[str, Any], kind: str) -> None:
        allowed = {*NUMBERS[kind], *IN_TABLE, *((ORIGINAL,) if kind in WITH_ORIGINAL else ())}
        for key, value in table.items():
            if key in allowed or value is None:
                continue
            if key not in OF_ANY_KIND:
                raise keys.error("rope_parameters" if "rope_parameters" in keys.values else "rope_scaling",
                                 f"its {key} is not supported, and the result might depend on it")  # fmt: skip
            if not (key == "factor" and value == 1):
                keys.warn(f"{key} = {value!r} has no effect with rope_type {self._type(table)!r}")

    def _lengths(self, keys: Keys, ours: Ours, table: dict[str, Any], kind: str) -> None:
        longest = ours["data.length"]
        on_top, inside = keys.get(ORIGINAL, None), table.get(ORIGINAL)
        if kind not in WITH_ORIGINAL:
            ours[f"{ROPE}.scaling.original_length"] = longest
            return
        if on_top is not None and inside is not None and on_top != inside:
            keys.warn(f"{ORIGINAL} = {on_top} is used, not the {inside} beside rope_type")
        original = next((value for value in (on_top, inside, self.original) if value is not None), longest)
        original = typed(keys, ORIGINAL, original, int)
        if original < 1:
            raise keys.error(ORIGINAL, f"{original} must be above 0")
        ours[f"{ROPE}.scaling.original_length"] = ours["data.length"] = original
        factor = table.get("factor")
        if kind != "llama3" and factor is not None and factor != longest / original and longest != original:
            keys.warn(
                f"the explicit factor {factor} is used, although max_position_embeddings / {ORIGINAL} is "
                f"{longest / original:g}"
            )
        # Below 1 only in longrope, whose factor only multiplies attention, by 1 in that case.
        table.setdefault("factor", None)
        if table["factor"] is None and kind in ("yarn", "longrope"):
            table["factor"] = max(longest / original, 1.0)

    def _numbers(self, keys: Keys, ours: Ours, table: dict[str, Any], kind: str) -> None:
        where = "rope_parameters" if keys.values.get("rope_parameters") else "rope_scaling"
        for key, (number, default) in NUMBERS[kind].items():
            value = table.get(key)
            if value is None or (default not in (None, REQUIRED) and number is float and value == 0):
                value = default
            if value is REQUIRED:
                raise keys.error(where, f"rope_type {self._type(table)!r} needs {key}")
            if number is tuple:
                if not isinstance(value, list):
                    raise keys.error(where, f"its {key} must be a list of numbers")
                value = tuple(typed(keys, where, item, float) for item in value)
            elif value is not None:
                value = typed(keys, where, value, number)
            ours[f"{ROPE}.scaling.{key}"] = value
        if kind == "longrope" and ours[f"{ROPE}.scaling.factor"] < 1:
            ours[f"{ROPE}.scaling.factor"] = 1.0
