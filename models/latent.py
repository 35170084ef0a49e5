"""Multi-head latent attention (MLA, DeepSeek-V2, arXiv 2405.04434, section 2.1): one small latent a token is kept."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from ml_collections import ConfigDict

from models.attention import AttentionBase, KeyValues, Rows
from models.declared.parameter import Parameters, under
from models.decoding.kv_cache import Entry, Track
from models.kernels import KERNELS
from models.layers import Initializer, Linear, Norm
from models.positions import Scheme


class LatentAttention(AttentionBase):
    """Attention whose keys and values are made of a latent c_kv that all heads share.

        c_kv = norm(W_dkv x)      k_rope = turn(W_kr x)      c_q = norm(W_dq x), or x without a query rank
        k_h = [W_uk,h c_kv ; k_rope]      v_h = W_uv,h c_kv      q_h = [q_nope,h ; turn(q_rope,h)] = W_uq,h c_q
        out = W_o [softmax(scale q_h . k_h) v_h]_h      scale 1/sqrt(nope_dim + rope_dim)

    Positions turn q_rope and the one k_rope alone, so that W_uk stays next to q_nope and can be multiplied into it. The
    expanded form above trains. Decoding keeps c_kv (normalized) and k_rope (rotated), kv_rank + rope_dim numbers a
    token, and never makes keys or values: it attends with q' = [W_uk^T q_nope ; turn(q_rope)] over the one head
    [c_kv ; k_rope], with values c_kv, and W_uv takes each head's sum of latents to its output (the absorbed form).

    Where DeepSeek's code and the paper differ, this is the code: the norms on c_kv and c_q are RMSNorms that equations
    9 to 19 leave out and section 3.1.2 mentions, together with factors at the bottlenecks, which the code has not.
    Where YaRN sets mscale_all_dim, scores are multiplied by g(mscale_all_dim)^2 (see `Scaling.score_factor`). The code
    pairs dims 2i with 2i + 1 (`position.rope.pairing` = interleaved); here that is the config's choice.
    """

    def __init__(self, config: ConfigDict, initial: Initializer, declared: Parameters) -> None:
        super().__init__(config, initial, declared)
        mla, eps = config.attention.mla, config.norm_eps
        self.num_heads, self.value_dim = config.num_heads, mla.value_dim
        self.kv_rank, self.nope_dim, self.rope_dim = mla.kv_rank, mla.nope_dim, mla.rope_dim
        self.query_down = Linear.maybe(initial, declared, "query_down")
        self.query_norm = Norm.maybe(initial, declared, "query_norm", eps=eps)
        self.kv_down = Linear.maybe(initial, declared, "kv_down")
        self.kv_norm = Norm.maybe(initial, declared, "kv_norm", eps=eps)
        self.query, self.key_up, self.value_up, self.out = (
            Linear(initial, under(declared, name)) for name in ("query", "key_up", "value_up", "out")
        )

    def queries(self, x_BTD: Array, rows: Rows, scheme: Scheme) -> tuple[Array, Array]:
        """Returns q_nope [B, T, H, nope_dim] and q_rope [B, T, H, rope_dim], rotated."""
        with jax.named_scope("query_projection"):
            c = x_BTD
            if self.query_down is not None and self.query_norm is not None:
                c = self.query_norm(self.query_down(x_BTD))
            q = self.query(c).reshape(*x_BTD.shape[:2], self.num_heads, -1)
        with jax.named_scope("rotation"):
            q = self.scale_queries(q, rows, scheme)  # a factor on each query, so it may come before the turn
            factor = scheme.score_factor
            q = q if isinstance(factor, float) and factor == 1.0 else (q * factor).astype(q.dtype)
            q_nope, q_rope = jax.lax.split(q, (self.nope_dim, self.rope_dim), axis=3)
            return q_nope, scheme.rotate(q_rope, rows.positions, rows.lengths)

    def latents(self, x_BTD: Array, rows: Rows, scheme: Scheme) -> dict[str, Array]:
        """Returns what the cache keeps: normalized c_kv [B, T, 1, kv_rank] and rotated k_rope [B, T, 1, rope_dim]."""
        assert self.kv_down is not None and self.kv_norm is not None
        with jax.named_scope("kv_projection"):
            c, k_rope = jax.lax.split(self.kv_down(x_BTD), (self.kv_rank, self.rope_dim), axis=2)
            c = self.kv_norm(c)
        with jax.named_scope("rotation"):
            k_rope = scheme.rotate(k_rope[:, :, None], rows.positions, rows.lengths, keys=True)
        return {"c_kv": c[:, :, None], "k_rope": k_rope}

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
        """Returns the layer's output [B, T, D], its part of the cache and the latents that it read.

        Arguments are those of `Attention`. A layer that reads another's latents makes keys and values of them itself.
        """
        of_q = rows.last(x_BTD.shape[1]) if last_query else rows
        finish = functools.partial(self.finished, x_BTD=x_BTD, rows=rows)
        q_nope, q_rope = self.queries(x_BTD[:, -1:] if last_query else x_BTD, of_q, scheme)
        if shared is None:
            kept, of_kv = self.latents(x_BTD, rows, scheme), Track(rows.positions, rows.segments)
            if entry is not None and rows.placement is not None:
                with jax.named_scope("kv_cache"):
                    entry, kept, of_kv = rows.placement.keep(entry, kept, x_BTD.dtype)
            shared = KeyValues(kept, of_kv)
        kept, of_kv = shared
        if rows.placement is None or rows.placement.fresh:
            q, k, v = self.expanded(q_nope, q_rope, **kept)
            out_BTHV = self.attend(q, k, v, of_q, of_kv, scheme, window, finish=finish)
        else:
            q, k = self.absorbed(q_nope, q_rope, **kept)
            # The absorbed form has other dims than the one that `attention.kernel` was chosen for.
            kernel = self.kernel if self.kernel in KERNELS and KERNELS[self.kernel].any_dims else "auto"
            sums = self.attend(q, k, kept["c_kv"], of_q, of_kv, scheme, window, kernel=kernel)
            out_BTHV = finish(self.values_of(sums))
        with jax.named_scope("out_projection"):
            return self.out(out_BTHV.reshape(*out_BTHV.shape[:2], -1)), entry, shared

    def expanded(self, q_nope: Array, q_rope: Array, c_kv: Array, k_rope: Array) -> tuple[Array, Array, Array]:
        """Returns q [B, T, H, K], k [B, S, H, K] and v [B, S, H, value_dim] of every head, K = nope_dim + rope_dim."""
        with jax.named_scope("kv_up_projection"):
            heads = (*c_kv.shape[:2], self.num_heads)
            k_nope, v = (up(c_kv[:, :, 0]).reshape(*heads, -1) for up in (self.key_up, self.value_up))
            k = jnp.concatenate([k_nope, jnp.broadcast_to(k_rope, (*heads, self.rope_dim))], axis=3)
        return jnp.concatenate([q_nope, q_rope], axis=3), k, v

    def absorbed(self, q_nope: Array, q_rope: Array, c_kv: Array, k_rope: Array) -> tuple[Array, Array]:
        """Returns q [B, T, H, kv_rank + rope_dim] and k [B, S, 1, kv_rank + rope_dim], whose values are c_kv."""
        with jax.named_scope("absorbed_query"):
            up_RHN = self.key_up.kernel[...].astype(q_nope.dtype).reshape(self.kv_rank, self.num_heads, self.nope_dim)
            q_BTHR = jnp.einsum("bthn,rhn->bthr", q_nope, up_RHN)
        return jnp.concatenate([q_BTHR, q_rope], axis=3), jnp.concatenate([c_kv, k_rope], axis=3)

    def values_of(self, sums_BTHR: Array) -> Array:
        """Returns the heads' outputs [B, T, H, value_dim] of their sums of latents."""
        with jax.named_scope("absorbed_value"):
            up = self.value_up.kernel[...].astype(sums_BTHR.dtype)
            return jnp.einsum("bthr,rhv->bthv", sums_BTHR, up.reshape(self.kv_rank, self.num_heads, self.value_dim))
