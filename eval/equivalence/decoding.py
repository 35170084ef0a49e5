"""Decoding token by token through the KV cache against the forward pass over the whole row."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from eval.equivalence.rows import TOLERANCES, Outcome, Row, compared
from eval.equivalence.setting import Setting
from models import initial
from models.decoding import decode
from models.decoding.kv_cache import KVCache
from models.transformer import Transformer

NO_GRADIENT = "decoding is not differentiated"
# Rounding of caches, relative to the largest logit: int8 rounds at 1/254 of a token's largest number, fp8 (e4m3) at
# 1/16 of each number.
ROUNDED = {"int8": 2**-4, "fp8": 2**-2}
PREFIXES = 5  # lengths at which a row is read whole if its frequencies depend on its length


@dataclasses.dataclass(frozen=True)
class Programs:
    """A model and its compiled programs; prefill and steps are those used in generation."""

    setting: Setting
    graphdef: Any
    forward: Any  # (params, tokens, positions, segments) -> logits [B, T, V]

    @property
    def model(self) -> Transformer:
        """The model."""
        return nnx.merge(self.graphdef, self.setting.params)

    def whole(self, *arguments: Any) -> np.ndarray:
        """Returns the logits [B, T, V] of whole rows: tokens, optionally positions and segments."""
        with self.setting.precise():
            return np.asarray(self.forward(self.setting.params, *arguments))

    def prefill(self, cache: KVCache, *arguments: Any) -> tuple[np.ndarray, KVCache]:
        """Returns the logits [B, V] of the last tokens and the filled cache."""
        with self.setting.precise():
            logits, cache = decode.prefill(self.graphdef, self.setting.params, cache, *arguments)
        return np.asarray(logits), cache

    def step(self, cache: KVCache, tokens_B: np.ndarray) -> tuple[np.ndarray, KVCache]:
        """Returns the logits [B, V] after one more token per row, and the updated cache."""
        with self.setting.precise():
            logits, cache = decode.step(self.graphdef, self.setting.params, cache, tokens_B)
        return np.asarray(logits), cache


def rows(setting: Setting) -> Iterator[Row]:
    """Yields rows for decoding whole rows, left-padded rows, and every storage of the cache."""
    made = programs(setting, setting.model)
    tokens = setting.tokens()
    prompt = setting.length // 2
    changing = made.model._uses_lengths
    expected = growing(made, tokens, prompt) if changing else made.whole(tokens)[:, prompt - 1 :]
    note = f"the forward at {PREFIXES} lengths, each with its own frequencies" if changing else ""
    row = Row("decoding", "the forward", "output", setting.dtype, note=note)
    at = _lengths(setting.length, prompt) - prompt if changing else slice(None)
    decoded = through_cache(made, tokens, prompt)
    own = ROUNDED.get(setting.model.attention.get("kv_storage", "auto"))
    yield from compared(
        row, Outcome({"logits": decoded[:, at]}), Outcome({"logits": expected}), _tolerances(setting, own)
    )
    yield dataclasses.replace(row, part="gradient", note="", reason=NO_GRADIENT)

    padding = np.arange(setting.batch) % 3 + 1
    row = Row("left-padded decoding", "decoding without padding", "output", setting.dtype)
    ours = through_cache(made, tokens, prompt, padding)
    yield from compared(row, Outcome({"logits": ours}), Outcome({"logits": decoded[:, : ours.shape[1]]}))
    yield dataclasses.replace(row, part="gradient", reason=NO_GRADIENT)
    yield from _storages(setting, tokens, prompt, decoded)


def programs(setting: Setting, model: ConfigDict) -> Programs:
    """Returns the programs of a resolved config.model, compiled at their first call."""
    graphdef = initial.abstract(model)[0]
    forward = jax.jit(lambda params, *arguments: nnx.merge(graphdef, params)(*arguments))
    return Programs(setting, graphdef, forward)


def growing(made: Programs, tokens: np.ndarray, prompt: int) -> np.ndarray:
    """Returns the logits [B, PREFIXES, V] of the last token of rows that are read whole at several lengths.

    Rows are padded on the left so that one program serves all.
    """
    results = []
    for length in _lengths(tokens.shape[1], prompt):
        laid = _padded(tokens, np.full(len(tokens), tokens.shape[1] - length))
        results.append(made.whole(*laid)[:, -1])
    return np.stack(results, axis=1)


def _lengths(longest: int, prompt: int) -> np.ndarray:
    return np.unique(np.linspace(prompt, longest, PREFIXES).astype(int))


def through_cache(made: Programs, tokens: np.ndarray, prompt: int, padding: np.ndarray | None = None) -> np.ndarray:
    """Returns the logits [B, N, V] of the token at prompt - 1 and of each after it, decoded one by one.

    Args:
        made: the programs.
        tokens: whole rows; those after the prompt are fed whatever the logits are.
        prompt: number of tokens, including padding, that are read at once.
        padding: number of padding tokens before each row; the logits are still those of the tokens from prompt - 1 on,
            and end earlier by the maximum.
    """
    rows, length = tokens.shape
    cache = made.model.cache(rows, length)
    if padding is None:
        padding = np.zeros(rows, int)
        logits, cache = made.prefill(cache, tokens[:, :prompt])
    else:
        logits, cache = made.prefill(cache, *_padded(tokens[:, :prompt], padding))
    results = [logits]
    for at in range(prompt, length):
        logits, cache = made.step(cache, tokens[np.arange(rows), at - padding])
        results.append(logits)
    kept = length - prompt + 1 - int(padding.max())
    return np.stack([np.stack(results, axis=1)[row, skip : skip + kept] for row, skip in enumerate(padding)])


def _padded(tokens: np.ndarray, padding: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns tokens of the same shape shifted right behind padding, their positions and their segments."""
    places = np.arange(tokens.shape[1])[None] - padding[:, None]
    real = places >= 0
    positions = np.maximum(places, 0).astype(np.int32)
    moved = np.take_along_axis(tokens, positions, axis=1)
    return np.where(real, moved, 0).astype(np.int32), positions, real.astype(np.int32)


def _storages(setting: Setting, tokens: np.ndarray, prompt: int, decoded: np.ndarray) -> Iterator[Row]:
    """The same through caches that round, against the one the model has."""
    if "kv_storage" not in setting.model.attention:
        return
    for storage, most in ROUNDED.items():
        row = Row(f"{storage} cache", "the config's cache", "output", setting.dtype)
        if setting.model.attention.kv_storage == storage:
            yield dataclasses.replace(row, part="output, gradient", reason="is the config's storage")
            continue
        made = programs(setting, setting.having(attention__kv_storage=storage))
        rounded = through_cache(made, tokens, prompt)
        tolerances = _tolerances(setting, most)
        yield from compared(row, Outcome({"logits": rounded}), Outcome({"logits": decoded}), tolerances)
        yield dataclasses.replace(row, part="gradient", reason=NO_GRADIENT)


def _tolerances(setting: Setting, rounding: float | None) -> dict[str, float] | None:
    """Returns the tolerances for a rounding cache; None: the default ones."""
    return None if rounding is None else {"output": rounding + TOLERANCES[setting.dtype]["output"]}
