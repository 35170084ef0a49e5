"""Attention of one layer: projections, QK-norm, rotation, the kernel, and the output projection."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from configs.rules.attention import turning_dim
from models import kernels
from models.declared.attention import kind_of, weighting_of
from models.declared.parameter import Parameters, under
from models.decoding.kv_cache import Entry, Placement, Track
from models.kernels.masks import Masking
from models.layers import Initializer, Linear, Norm
from models.positions import Scheme, sequence_lengths, temperature_of
from models.switches import selective
from models.switches.exclusive import exclusive
from models.switches.gate import OutputGate
from models.switches.talking import TalkingHeads
from models.switches.values import ValueMix
from models.switches.weighting import Weighting, Weights


@dataclasses.dataclass(frozen=True)
class Rows:
    """Where the tokens of a call lie; the same for all layers.

    None for positions means 0 .. T - 1 in every row, None for segments one sequence per row and no padding: the masks
    are then made from indices alone.
    """

    positions: Array | None = None  # int32 [B|1, T]
    segments: Array | None = None  # int32 [B|1, T]
    lengths: Array | None = None  # int32 [B|1, T], of each token's own sequence; only where a scheme reads it
    placement: Placement | None = None  # in a cache; None: there is none
    layer: Array | int = 0  # the one that is called, from 0
    tokens: Array | None = None  # int32 [B, T], the ids
    first_values: Array | None = None  # [B, T, G, K], the first layer's, where layers mix them in
    value_embeddings: Array | None = None  # [B, T, G K], of the table that all layers share, if there is one

    def last(self, length: int) -> "Rows":
        """Returns the last of `length` tokens of each row alone."""

        def cut(x: Array | None) -> Array | None:
            return None if x is None else x[:, -1:]

        positions = jnp.full((1, 1), length - 1) if self.positions is None else self.positions[:, -1:]
        return dataclasses.replace(self, positions=positions, segments=cut(self.segments), lengths=cut(self.lengths))


class KeyValues(NamedTuple):
    """What a layer's queries attend to; layers after it may read it too."""

    arrays: dict[str, Array]  # k and v [B, S, G, K], or what latent attention makes them of
    track: Track  # where the S tokens lie


class AttentionBase(nnx.Module):
    """The base of every kind of attention: how scores become weights, and the kernel that runs."""

    # Called with (q, k, v, what the heads attended to, their outputs, what else `kernels.attend` was asked) where
    # somebody looks on (models/observed.py); what it returns takes the outputs' place.
    look: Callable[[Array, Array, Array, Array, Array, dict[str, Any]], Array] | None = None

    def __init__(self, config: ConfigDict, initial: Initializer, declared: Parameters) -> None:
        attention = config.attention
        self.kernel = attention.kernel
        self.scale = scale_of(config, kind_of(config).score_dims(config)[0])
        self.soft_cap = attention.soft_cap
        self.temperature = temperature_of(config)
        self.turning_dim = turning_dim(config)
        self.sinks = initial.maybe(declared, "sinks")
        self.exclusive = attention.exclusive
        self.weighting_name = weighting_of(config)
        self.weights = Weights.of(config)
        self.talking = TalkingHeads(initial, under(declared, "talking")) if attention.talking_heads else None
        self.gate = OutputGate(config, initial, declared) if "gate.kernel" in declared else None

    def scale_queries(self, q_BTHK: Array, rows: Rows, scheme: Scheme) -> Array:
        """Returns queries times the temperature of their positions, where the config has one."""
        if self.temperature is None or not self.temperature.acts(scheme):
            return q_BTHK
        return self.temperature(q_BTHK, rows.positions)

    def attend(
        self,
        q_BTHK: Array,
        k_BSGK: Array,
        v_BSGV: Array,
        of_q: Rows,
        of_kv: Track,
        scheme: Scheme,
        window: int | None,
        *,
        finish: Callable[[Array], Array] | None = None,
        scale: float | None = None,
        kernel: str | None = None,
        forgotten: Array | None = None,
    ) -> Array:
        """Returns [B, T, H, V] of queries, keys and values that are already rotated.

        Args:
            q_BTHK: queries.
            k_BSGK: keys.
            v_BSGV: values.
            of_q: where the queries lie.
            of_kv: where the keys lie.
            scheme: the layer's positions.
            window: keys each query sees, itself included.
            finish: what makes the heads' outputs of what they attended to (`finished`).
            scale: multiplies q.k; None: the config's.
            kernel: None: the config's.
            forgotten: what selective attention subtracts from the scores, [B, T, S].
        """
        requested = {
            **_places(of_q, of_kv, k_BSGK.shape[1]),
            "window": window,
            "bias": scheme.bias(),
            "scores": scheme.scores(),
            "soft_cap": self.soft_cap,
            "sinks": None if self.sinks is None else self.sinks[...],
            "scale": self.scale if scale is None else scale,
            "weighting": None if self.weighting_name is None else self.weighting(of_q, forgotten),
        }
        with jax.named_scope("attention"):
            out = kernels.attend(q_BTHK, k_BSGK, v_BSGV, **requested, kernel=self.kernel if kernel is None else kernel)
        finished = out if finish is None else finish(out)
        return finished if self.look is None else self.look(q_BTHK, k_BSGK, v_BSGV, out, finished, requested)

    def weighting(self, rows: Rows, forgotten: Array | None = None) -> Weighting:
        """Returns how the layer that `rows` names makes weights of scores, where that is no plain softmax."""
        return self.weights.weighting(self.weighting_name or "", self.talking, forgotten)

    def finished(self, out_BTHV: Array, x_BTD: Array, rows: Rows, v_BTGV: Array | None = None) -> Array:
        """Returns the heads' outputs as the output projection takes them: what they attended to, after the switches.

        Args:
            out_BTHV: what they attended to.
            x_BTD: the layer's normalized input at the queries, or at more tokens that end with them.
            rows: name the layer.
            v_BTGV: values of the same tokens, for exclusive attention.
        """
        T = out_BTHV.shape[1]
        if self.exclusive:
            assert v_BTGV is not None
            out_BTHV = exclusive(out_BTHV, v_BTGV[:, -T:])
        return out_BTHV if self.gate is None else self.gate.applied(out_BTHV, x_BTD[:, -T:])


class Attention(AttentionBase):
    """softmax(scale * q k^T + bias, under the mask) v for H query heads over G key/value heads (GQA, 2305.13245).

    head_dim is free of the width: q is [D, H K], k and v are [D, G K], the output [H K, D]. The fused layout is one
    matrix [D, (H + 2 G) K] with q, k and v side by side. Query head h reads key/value head h // (H / G).
    """

    def __init__(self, config: ConfigDict, initial: Initializer, declared: Parameters) -> None:
        super().__init__(config, initial, declared)
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.qkv, self.query, self.key, self.value = (
            Linear.maybe(initial, declared, name) for name in ("qkv", "query", "key", "value")
        )
        self.out = Linear(initial, under(declared, "out"))
        self.query_norm, self.key_norm = (
            Norm.maybe(initial, declared, name, eps=config.norm_eps) for name in ("query_norm", "key_norm")
        )
        mixes = config.attention.value_residual != "none" or config.attention.value_embedding != "none"
        self.value_mix = ValueMix(initial, under(declared, "value_mix")) if mixes else None
        self.tied = config.attention.tie_kv

    def values(self, x_BTD: Array) -> Array:
        """Returns a layer's own values [B, T, G, K] of its normalized input."""
        assert self.value is not None
        with jax.named_scope("qkv_projection"):
            return self.value(x_BTD).reshape(*x_BTD.shape[:2], self.num_kv_heads, self.head_dim)

    def project(
        self, x_BTD: Array, *, last_query: bool = False, values: Array | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """Returns q [B, T, H, K] (of the last token alone with `last_query`), and k and v [B, T, G, K], none rotated.

        There is no v where values are keys (k is then not normalized yet), and neither in a layer that reads another's.
        `values` are its own, where they are known already.
        """
        rows, length = x_BTD.shape[:2]
        q_width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        with jax.named_scope("qkv_projection"):
            if self.qkv is not None:
                q, k, v = jax.lax.split(self.qkv(x_BTD), (q_width, kv_width, kv_width), axis=2)
                q, flat = q[:, -1:] if last_query else q, {"k": k, "v": v}
            else:
                assert self.query is not None
                q = self.query(x_BTD[:, -1:] if last_query else x_BTD)
                into = {"k": self.key, "v": self.value if values is None else None}
                flat = {name: linear(x_BTD) for name, linear in into.items() if linear is not None}
                flat |= {} if values is None else {"v": values}
            q_BTHK = q.reshape(rows, -1, self.num_heads, self.head_dim)
            kv = {name: y.reshape(rows, length, self.num_kv_heads, self.head_dim) for name, y in flat.items()}
        if self.query_norm is not None:
            q_BTHK = self.query_norm(q_BTHK)
        return q_BTHK, kv

    def keys(self, k_BSGK: Array, positions: Array | None, lengths: Array | None, scheme: Scheme) -> Array:
        """Returns keys normalized and rotated."""
        k_BSGK = k_BSGK if self.key_norm is None else self.key_norm(k_BSGK)
        with jax.named_scope("rotation"):
            return scheme.rotate(k_BSGK, positions, lengths, keys=True)

    def keys_values(
        self, kv: dict[str, Array], rows: Rows, scheme: Scheme, entry: Entry | None, dtype: Any
    ) -> tuple[KeyValues, Entry | None]:
        """Returns the keys and values [B, S, G, K] that a call's queries may see, and this layer's part of the cache.

        Args:
            kv: of the call's tokens, as `project` gives them.
            rows: where these lie.
            scheme: the layer's positions.
            entry: this layer's part of the cache.
            dtype: to compute in.
        """
        track = Track(rows.positions, rows.segments)
        if not self.tied:
            kv = {**kv, "k": self.keys(kv["k"], rows.positions, rows.lengths, scheme)}
        if entry is not None and rows.placement is not None:
            with jax.named_scope("kv_cache"):
                entry, kv, track = rows.placement.keep(entry, kv, dtype)
        if self.tied:
            lengths = rows.lengths
            if scheme.uses_lengths and rows.placement is not None and track.positions is not None:
                lengths = sequence_lengths(track.positions, track.segments)
            kv = {"k": self.keys(kv["k"], track.positions, lengths, scheme), "v": kv["k"]}
        return KeyValues(kv, track), entry

    def forget(
        self, q_BTHK: Array, k_BSGK: Array, of_q: Rows, of_kv: Track, entry: Entry | None
    ) -> tuple[Array, Entry | None]:
        """Returns what selective attention subtracts from the scores, [B, T, S], and the cache entry with its sums."""
        places = _places(of_q, of_kv, k_BSGK.shape[1])
        scores, _ = kernels.maps(q_BTHK[:, :, :1], k_BSGK[:, :, :1], **places, soft_cap=self.soft_cap, scale=self.scale)
        masking = Masking(scores.shape[2], scores.shape[3], **places)
        if entry is None or of_q.placement is None:
            return selective.forgotten(scores[:, 0], masking)[0], entry
        kept = entry[selective.FORGOTTEN]
        assert isinstance(kept, Array)
        before = None if of_q.placement.fresh else kept.reshape(scores.shape[0], -1)
        by_BTS, after_BS = selective.forgotten(scores[:, 0], masking, before)
        after = after_BS.reshape(*kept.shape[:-2], -1, 1)
        sums = jax.lax.dynamic_update_slice_in_dim(kept, after, 0, kept.ndim - 2)
        return by_BTS, {**entry, selective.FORGOTTEN: sums}

    def __call__(
        self,
        x_BTD: Array,
        rows: Rows,
        scheme: Scheme,
        *,
        window: int | None,
        entry: Entry | None = None,
        last_query: bool = False,
        shared: KeyValues | None = None,
    ) -> tuple[Array, Entry | None, KeyValues]:
        """Returns the layer's output [B, T, D], its part of the cache, and the keys and values that it read.

        Args:
            x_BTD: normalized input.
            rows: where its tokens lie.
            scheme: the layer's positions.
            window: keys each query sees, itself included.
            entry: this layer's part of the cache.
            last_query: output the last token alone, [B, 1, D]; all keys and values are still written.
            shared: keys and values of the layer that this one reads; None: its own.
        """
        every_query = self.weights.selective  # the queries before the last decide what it forgets
        # The first layer need not compute its values again.
        own = rows.first_values if isinstance(rows.layer, int) and rows.layer == 0 else None
        one_query = last_query and not every_query
        q_BTHK, kv = self.project(x_BTD, last_query=one_query, values=own)
        if self.value_mix is not None:
            assert rows.tokens is not None
            kv["v"] = self.value_mix(kv["v"], rows.first_values, rows.value_embeddings, rows.tokens)
        of_q = rows.last(x_BTD.shape[1]) if one_query else rows
        with jax.named_scope("rotation"):
            q_BTHK = self.scale_queries(scheme.rotate(q_BTHK, of_q.positions, of_q.lengths), of_q, scheme)
        # The own tokens' values, which are their keys as projected where the two are tied.
        finish = functools.partial(self.finished, x_BTD=x_BTD, rows=rows, v_BTGV=kv.get("v", kv.get("k")))
        if shared is None:
            shared, entry = self.keys_values(kv, rows, scheme, entry, x_BTD.dtype)
        k_BSGK, v_BSGK = shared.arrays["k"], shared.arrays["v"]
        forgotten = None
        if every_query:
            forgotten, entry = self.forget(q_BTHK, k_BSGK, of_q, shared.track, entry)
        out_BTHK = self.attend(
            q_BTHK, k_BSGK, v_BSGK, of_q, shared.track, scheme, window, finish=finish, forgotten=forgotten
        )
        out_BTHK = out_BTHK[:, -1:] if last_query else out_BTHK
        with jax.named_scope("out_projection"):
            out = out_BTHK.reshape(*out_BTHK.shape[:2], self.num_heads * self.head_dim)
            return self.out(out), entry, shared


def scale_of(config: ConfigDict, dim: int) -> float:
    """Returns what multiplies q.k of `dim` dims: 1/sqrt(dim), muP's 1/dim (2203.03466, definition 4.1), or a number.

    muP's 1/dim comes without the constant that would make it equal 1/sqrt at some base head_dim: set `scale` for that.
    """
    attention = config.attention
    if attention.scale is not None:
        return attention.scale
    return 1 / dim if attention.scale_rule == "mup" else dim**-0.5


def _places(of_q: Rows, of_kv: Track, keys: int) -> dict[str, Any]:
    """Returns the places of queries and keys, as `kernels.attend` takes them."""
    return {
        "q_positions": of_q.positions,
        "kv_positions": of_kv.positions if of_q.positions is None else _or_index(of_kv.positions, keys),
        "q_segments": of_q.segments,
        "kv_segments": of_kv.segments,
        "aligned": of_q.placement is None or of_q.placement.fresh,
    }


def _or_index(positions: Array | None, length: int) -> Array:
    return jnp.arange(length, dtype=jnp.int32)[None] if positions is None else positions
