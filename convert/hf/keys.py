"""Keys of a checkpoint's config.json and our fields: each correspondence is written once and serves both directions.

A pair has `read`, from their keys to our dotted fields, and `write`, from our config to their keys. A family is a list
of pairs (`convert/families`). Every key of a config.json must be read by a pair, be known not to change logits, or be
null: an unknown key that might change the result is refused by name.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ml_collections import ConfigDict

from configs import fields
from configs.errors import UserError

# Without effect on a causal model's logits: bookkeeping, dropout (which acts only in training), other heads' settings,
# and defaults of `generate`.
HARMLESS = frozenset(
    "architectures auto_map transformers_version _name_or_path _commit_hash name_or_path model_type dtype torch_dtype "
    "use_cache return_dict output_attentions output_hidden_states torchscript use_bfloat16 gradient_checkpointing "
    "_attn_implementation _attn_implementation_autoset attn_implementation _flash_attn_2_enabled "
    "chunk_size_feed_forward keys_to_ignore_at_inference tf_legacy_loss initializer_range pretraining_tp "
    "slow_but_exact is_decoder "
    "attention_dropout hidden_dropout classifier_dropout resid_pdrop embd_pdrop attn_pdrop embedding_dropout "
    "reorder_and_upcast_attn attention_softmax_in_fp32 masked_softmax_fusion bias_dropout_fusion skip_bias_add "
    "skip_bias_add_qkv summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout "
    "num_labels id2label label2id problem_type finetuning_task task_specific_params tokenizer_class prefix "
    "bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id mask_token_id "
    "decoder_start_token_id max_length min_length max_new_tokens do_sample early_stopping num_beams num_beam_groups "
    "diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size "
    "encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate "
    "forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
    "begin_suppress_tokens unsloth_version unsloth_fixed transformers.js_config offset_alibi "
    "max_window_layers is_llama_config".split()
)

# Harmless only with these values.
SWITCHED_OFF: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "is_encoder_decoder": (False,),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({}, []),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "adapters": ({},),
    "quantization_config": (),
}

REQUIRED = object()


class Keys:
    """A config.json being read; records which keys were read, and warnings."""

    def __init__(self, values: Mapping[str, Any], source: str = "config.json") -> None:
        self.values, self.source = values, source
        self.used: set[str] = set()
        self.notes: list[str] = []

    def error(self, key: str, why: str) -> UserError:
        """Returns the refusal of a key's value."""
        given = f"{key} = {self.values[key]!r}" if key in self.values else key
        return UserError(f"{self.source}: {given}: {why}")

    def warn(self, text: str) -> None:
        """Records a warning."""
        self.notes.append(f"{self.source}: {text}")

    def get(self, names: str | Iterable[str], default: Any = REQUIRED) -> Any:
        """Returns the value of the first of `names` that is present, including null.

        Raises:
            UserError: none is present and there is no default, or two of them differ.
        """
        names = (names,) if isinstance(names, str) else tuple(names)
        self.used.update(names)
        there = [name for name in names if name in self.values]
        if not there:
            if default is REQUIRED:
                raise self.error(names[0], "is missing")
            return default
        for other in there[1:]:
            if self.values[other] != self.values[there[0]]:
                raise self.error(other, f"differs from {there[0]} = {self.values[there[0]]!r}, which means the same")
        return self.values[there[0]]

    def finish(self, ignore: Iterable[str] = ()) -> None:
        """Refuses keys that nothing read and that are not known to be harmless.

        Raises:
            UserError: with all of them.
        """
        known = self.used | HARMLESS | set(ignore)
        left = {key: value for key, value in self.values.items() if key not in known and value is not None}
        bad = [key for key, value in left.items() if value not in SWITCHED_OFF.get(key, ())]
        if bad:
            message = ", ".join(f"{key} = {_short(self.values[key])}" for key in bad)
            raise UserError(f"{self.source}: {message}: not supported, and the result might depend on it")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


Ours = dict[str, Any]  # dotted field -> value
Theirs = dict[str, Any]  # key -> value


class Pair(Protocol):
    """A correspondence between their keys and our fields."""

    def read(self, keys: Keys, ours: Ours) -> None:
        """Sets our fields from their keys; earlier pairs have set theirs."""

    def write(self, config: ConfigDict, theirs: Theirs) -> None:
        """Sets their keys from our config. Omits what they cannot express, which reading back detects (`to_hf`)."""


def value_of(config: ConfigDict, name: str) -> Any:
    """Returns a dotted field's value."""
    node: Any = config
    for part in name.split("."):
        node = node[part]
    return node


def typed(keys: Keys, key: str, value: Any, kind: type) -> Any:
    """Returns a value as one of our types.

    Raises:
        UserError: it has another type; with the key.
    """
    exact = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if exact or (kind is float and isinstance(value, int) and not isinstance(value, bool)):
        return kind(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    raise keys.error(key, f"must be {fields.describe(kind)}")


@dataclass(frozen=True)
class Same:
    """A number or switch that both have; `ours` may be several fields set by one key."""

    key: str
    ours: str | tuple[str, ...]
    default: Any = REQUIRED
    aliases: tuple[str, ...] = ()  # other accepted spellings
    null: Callable[[Ours], Any] | None = None  # the meaning of null; None: the default

    def _fields(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def read(self, keys: Keys, ours: Ours) -> None:
        """Sets the fields."""
        value = keys.get((self.key, *self.aliases), self.default)
        if value is None and self.null is not None:
            value = self.null(ours)
        if value is None:
            value = self.default
        if value is REQUIRED:
            raise keys.error(self.key, "must be set")
        for name in self._fields():
            ours[name] = typed(keys, self.key, value, fields.types()[name])

    def write(self, config: ConfigDict, theirs: Theirs) -> None:
        """Sets the key from the first field."""
        theirs[self.key] = value_of(config, self._fields()[0])


@dataclass(frozen=True)
class Choice:
    """A name that both have with different spellings; the first of their spellings is written."""

    key: str
    ours: str
    names: Mapping[Any, Any] = field(hash=False)  # theirs -> ours
    default: Any = REQUIRED
    aliases: tuple[str, ...] = ()

    def read(self, keys: Keys, ours: Ours) -> None:
        """Sets the field."""
        value = keys.get((self.key, *self.aliases), self.default)
        if not isinstance(value, str | bool) or value not in self.names:
            raise keys.error(self.key, f"not supported; must be {', '.join(map(repr, self.names))}")
        ours[self.ours] = self.names[value]

    def write(self, config: ConfigDict, theirs: Theirs) -> None:
        """Sets the key."""
        ours = value_of(config, self.ours)
        same = [name for name, meaning in self.names.items() if meaning == ours]
        theirs[self.key] = (same or list(self.names))[0]


@dataclass(frozen=True)
class Only:
    """A key that must have one value (also if absent or null), because this family's models here have no other."""

    key: str
    value: Any
    written: bool = True

    def read(self, keys: Keys, ours: Ours) -> None:
        """Refuses another value."""
        if keys.get(self.key, self.value) not in (self.value, None):
            raise keys.error(self.key, f"not supported; must be {self.value!r}")

    def write(self, config: ConfigDict, theirs: Theirs) -> None:
        """Sets the key."""
        if self.written:
            theirs[self.key] = self.value


@dataclass(frozen=True)
class Always:
    """Our fields that a family fixes, or derives from others."""

    values: Mapping[str, Any] = field(hash=False)  # field -> value, or a function of the fields read so far

    def read(self, keys: Keys, ours: Ours) -> None:
        """Sets the fields."""
        for name, value in self.values.items():
            ours[name] = value(ours) if callable(value) else value

    def write(self, config: ConfigDict, theirs: Theirs) -> None:
        """Nothing to write."""


@dataclass(frozen=True)
class HeadDim:
    """head_dim: `default` if the key is absent (None: width / heads); null always means width / heads."""

    default: int | None = None
    divides: bool = False  # the heads must divide the width even if head_dim is set (transformers refuses otherwise)
    spoken: bool = True  # the family has the key; False: it must be width / heads
    usual: bool = False  # written only if it is not width / heads

    def read(self, keys: Keys, ours: Ours) -> None:
        """Sets model.head_dim."""
        width, heads = ours["model.width"], ours["model.num_heads"]
        value = keys.get("head_dim", self.default)
        if heads < 1 or ((value is None or self.divides or not self.spoken) and width % heads):
            raise keys.error("hidden_size", f"{width} must be a multiple of the {heads} attention heads")
        value = width // heads if value is None else typed(keys, "head_dim", value, int)
        if not self.spoken and value != width // heads:
            raise keys.error("head_dim", f"not supported; this family's is {width // heads}, width / heads")
        ours["model.head_dim"] = value

    def write(self, config: ConfigDict, theirs: Theirs) -> None:
        """Sets head_dim."""
        model = config.model
        ratio = model.width / model.num_heads
        if self.spoken and not (self.usual and model.head_dim == ratio):
            theirs["head_dim"] = model.head_dim
