"""The decoder-only, pre-norm Transformer: embed, L times (attend, MLP), norm, logits.

    x = dropout(table[tokens] + positions), normalized where `embedding_norm` says so
    x = x + dropout(attention_l(norm(x)));  x = x + dropout(mlp_l(norm(x)))      l = 1 .. L
    logits = cap(norm(x) W_out)

A parallel residual (GPT-J; GPT-NeoX, arXiv 2204.06745) adds both branches to one input instead, each with its own norm:
x = x + dropout(attention_l(norm(x))) + dropout(mlp_l(norm'(x))).

Parameters are float32; activations have the compute dtype; norms, softmax and logits are float32. All parameters of the
blocks are stacked, [L, ...], whether the layers run as one compiled loop (accelerators) or one after the other (CPU).
Layers whose parameters are unlike have a stack for each kind of layer (`pattern.stacks`).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from ml_collections import ConfigDict

from configs.errors import ConfigError
from models import axes, pattern, positions
from models.attention import Attention, KeyValues, Rows
from models.declared.model import layers_of, parameters
from models.declared.parameter import Parameters, under
from models.decoding.kv_cache import Entry, KVCache, Layout
from models.differential import DifferentialAttention
from models.kernels.block import SAVED
from models.latent import LatentAttention
from models.layers import MLP, Initializer, Norm, compute_dtype, dropout, hidden_share, in_parts, matmul, soft_cap
from models.platform import current

STREAM = ("batch", "length", None)  # the axes of the residual stream

ATTENTIONS: dict[str, type[Attention] | type[LatentAttention]] = {
    "gqa": Attention,
    "mla": LatentAttention,
    "differential": DifferentialAttention,
}


class Block(nnx.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x)); or both of one x, with a parallel residual."""

    def __init__(self, config: ConfigDict, initial: Initializer, declared: Parameters) -> None:
        norm = dict(kind=config.norm, eps=config.norm_eps)
        self.rate = config.dropout
        self.parallel = config.residual == "parallel"
        self.recomputes_mlp = config.remat in ("block", "attention")
        self.mlp_bytes = config.mlp_width * jnp.dtype(compute_dtype(config)).itemsize  # of a token's hidden activation
        self.attention_norm = Norm(initial, under(declared, "attention_norm"), **norm)
        self.attention = ATTENTIONS[config.attention.kind](config, initial, under(declared, "attention"))
        self.mlp_norm = Norm(initial, under(declared, "mlp_norm"), **norm)
        self.mlp = MLP(config, initial, under(declared, "mlp"))

    def __call__(
        self,
        x_BTD: Array,
        rows: Rows,
        scheme: positions.Scheme,
        *,
        window: int | None,
        entry: Entry | None = None,
        keys: Array | None = None,
        last_only: bool = False,
        shared: KeyValues | None = None,
    ) -> tuple[Array, Entry | None, KeyValues]:
        """Returns the residual stream, this layer's part of the cache, and the keys and values that it read.

        Args:
            x_BTD: the residual stream.
            rows: where the tokens lie.
            scheme: the layer's positions.
            window: keys each query sees, itself included.
            entry: this layer's part of the cache.
            keys: two dropout keys; None: no dropout.
            last_only: return the last token alone, [B, 1, D].
            shared: keys and values of the layer that this one reads; None: its own.
        """
        first, second = (None, None) if keys is None else (keys[0], keys[1])
        y, entry, kv = self.attention(
            self.attention_norm(x_BTD), rows, scheme, window=window, entry=entry, last_query=last_only, shared=shared
        )
        x_BTD = x_BTD[:, -1:] if last_only else x_BTD
        with jax.named_scope("residual"):
            after_BTD = x_BTD + dropout(y, self.rate, first)
        y = self._mlp(x_BTD if self.parallel else after_BTD)
        with jax.named_scope("residual"):
            return axes.constrain(after_BTD + dropout(y, self.rate, second), *STREAM), entry, kv

    def _mlp(self, x_BTD: Array) -> Array:
        def branch(x: Array) -> Array:
            return self.mlp(self.mlp_norm(x))

        return in_parts(branch, x_BTD, self.mlp_bytes) if self.recomputes_mlp else branch(x_BTD)


class Transformer(nnx.Module):
    """The model of a resolved config.model (see the file's docstring for the formula).

    Raises:
        ConfigError: vocab_size is not set.
    """

    def __init__(self, config: ConfigDict, *, rngs: nnx.Rngs) -> None:
        if config.vocab_size is None:
            raise ConfigError("model.vocab_size is not set: it comes from the tokenizer, or set it")
        initial = Initializer.of(config, rngs)
        self.dtype = compute_dtype(config)
        self.rate = config.dropout
        self.remat = config.remat
        self.logit_soft_cap = config.logit_soft_cap
        self.logit_scale = hidden_share(config)
        self.plans = pattern.plans(config)
        self.period = pattern.period(config)
        self.stacks = tuple(pattern.stacks(config).items())
        self.owners = pattern.owners(config)
        self.layout = Layout.of(config)
        on_cpu = current() == "cpu"
        self.scan = config.scan_layers == "yes" or (config.scan_layers == "auto" and not on_cpu)
        declared = parameters(config)
        self.embedding = initial.parameter(declared["embedding"])
        self.schemes = nnx.Dict(
            {
                name: positions.build(
                    pattern.of_layer(config, layers[0]),
                    self.plans[layers[0]].position,
                    rngs=nnx.Rngs(initial.named(f"positions.{self.plans[layers[0]].position}")),
                )
                for name, layers in layers_of(config).items()
            }
        )
        self.value_embedding = initial.maybe(declared, "value_embedding")
        self.mixes_first_values = config.attention.value_residual != "none"
        stacks = [
            Block(pattern.of_layer(config, layers[0]), initial, under(declared, path)) for path, layers in self.stacks
        ]
        alone = len(stacks) == 1
        self.blocks = stacks[0] if alone else nnx.Dict({str(index): stack for index, stack in enumerate(stacks)})
        norm = dict(kind=config.norm, eps=config.norm_eps)
        self.embedding_norm = Norm.maybe(initial, declared, "embedding_norm", **norm)
        self.norm = Norm(initial, under(declared, "norm"), **norm)
        self.head = initial.maybe(declared, "head")

    def __call__(
        self,
        tokens_BT: Array,
        positions_BT: Array | None = None,
        segments_BT: Array | None = None,
        *,
        cache: KVCache | None = None,
        dropout_key: Array | None = None,
    ) -> Any:
        """Returns float32 logits [B, T, V]; with a cache, (logits, the cache with these tokens).

        Args:
            tokens_BT: int32.
            positions_BT: int32 [B|1, T], each token's place in its own sequence; None: 0 .. T - 1, or with a cache
                the places after each row's last token.
            segments_BT: int32, 0 for padding, else the document's number: tokens see their own document alone. None:
                one document a row.
            cache: attend to its tokens too, and add these.
            dropout_key: None: no dropout.

        Raises:
            ValueError: the cache is full (outside jit; inside, logits are NaN).
        """
        hidden = self.hidden(tokens_BT, positions_BT, segments_BT, cache=cache, dropout_key=dropout_key)
        if cache is None:
            return self.logits(hidden)
        return self.logits(hidden[0]), hidden[1]

    def before_logits(self, hidden_BTD: Array) -> Array:
        """Returns final hidden states as the output matrix takes them: with muP times base width / width."""
        return hidden_BTD if self.logit_scale == 1 else hidden_BTD * jnp.asarray(self.logit_scale, hidden_BTD.dtype)

    def logits(self, hidden_BTD: Array, table_DV: Array | None = None) -> Array:
        """Returns float32 logits [..., V] of final hidden states [..., D]; `table_DV` is `output_table`, taken once."""
        with jax.named_scope("logits"):
            table_DV = self.output_table() if table_DV is None else table_DV
            hidden_BTD = self.before_logits(hidden_BTD)
            out = matmul(hidden_BTD, table_DV.astype(hidden_BTD.dtype), jnp.float32)
            return soft_cap(out, self.logit_soft_cap)

    def output_table(self) -> Array:
        """Returns the output matrix [D, V] in the compute dtype.

        Decoding takes it once for all its steps: as [V, D] its product is twice as long on the CPU.
        """
        return self.output_parameter().astype(self.dtype).T

    def output_parameter(self) -> Array:
        """Returns the output matrix as it is learned, float32 [V, D]: the embedding's where they are tied."""
        return (self.embedding if self.head is None else self.head)[...]

    def hidden(
        self,
        tokens_BT: Array,
        positions_BT: Array | None = None,
        segments_BT: Array | None = None,
        *,
        cache: KVCache | None = None,
        dropout_key: Array | None = None,
        layers: Sequence[Block] | None = None,
        fresh: bool = False,
        last_only: bool = False,
    ) -> Any:
        """Returns the final, normalized hidden states [B, T, D]; with a cache, (hidden states, cache).

        Args as in `__call__`, and:
            layers: `self.layers()`, to take the slices once for many calls.
            fresh: the cache is empty, so that attention need not read it (prefill).
            last_only: compute the last layer for the last token alone and return [B, 1, D].
        """
        if cache is None:
            rows = Rows(positions_BT, segments_BT, self._lengths(tokens_BT, positions_BT, segments_BT))
            return self._run(tokens_BT, rows, dropout_key, layers, last_only)[0]
        with jax.named_scope("kv_places"):
            placement = cache.place(tokens_BT, positions_BT, segments_BT, fresh=fresh)
        placed = placement.cache
        rows = Rows(placement.own.positions, placement.own.segments, placement=placement)
        if placed.tokens is None:
            x, entries = self._run(tokens_BT, rows, dropout_key, layers, last_only)
        else:
            x, entries = self._changing(tokens_BT, rows, cache, dropout_key, layers, last_only)
        return placed.guard(x), dataclasses.replace(placed, entries=entries)

    def cache(self, batch: int, capacity: int, dtype: DTypeLike | None = None) -> KVCache:
        """Returns an empty KV cache for this model (see `KVCache.create`)."""
        return KVCache.empty(self.layout, batch, capacity, dtype, keep_tokens=self._uses_lengths)

    def layers(self) -> list[Block]:
        """Returns a block for each layer; slices whose transpose is one stack for each parameter."""
        results: dict[int, Block] = {}
        for stack, layers in self._stacks():
            graph, state = nnx.split(stack)
            leaves, tree = jax.tree.flatten(state)
            with jax.named_scope("layer_slices"):
                slices = list(zip(*(jnp.unstack(leaf) for leaf in leaves), strict=True))
            for layer, parts in zip(layers, slices, strict=True):
                results[layer] = nnx.merge(graph, jax.tree.unflatten(tree, parts))
        return [results[layer] for layer in range(len(self.plans))]

    def _stacks(self) -> list[tuple[Block, tuple[int, ...]]]:
        """Returns each stack of blocks with the layers that it holds."""
        if isinstance(self.blocks, Block):
            return [(self.blocks, self.stacks[0][1])]
        return [(self.blocks[str(index)], layers) for index, (_, layers) in enumerate(self.stacks)]

    def _run(
        self, tokens_BT: Array, rows: Rows, dropout_key: Array | None, layers: Sequence[Block] | None, last_only: bool
    ) -> tuple[Array, tuple[Entry, ...]]:
        with jax.named_scope("embed"):
            table_VD = axes.constrain(self.embedding[...], "vocab", None)
            x = jnp.take(table_VD, tokens_BT, axis=0).astype(self.dtype)
            for name in sorted(self.schemes):
                x = self.schemes[name].embed(x, rows.positions)
            x = x if self.embedding_norm is None else self.embedding_norm(x)
            x = axes.constrain(x, *STREAM)
            rows = dataclasses.replace(rows, tokens=tokens_BT)
            if self.value_embedding is not None:
                values = jnp.take(self.value_embedding[...], tokens_BT, axis=0).astype(self.dtype)
                rows = dataclasses.replace(rows, value_embeddings=values)
        keys = None
        if dropout_key is not None and self.rate > 0:
            first, rest = jax.random.split(dropout_key)
            x = dropout(x, self.rate, first)
            keys = jax.random.split(rest, (len(self.plans), 2))
        if self.mixes_first_values:
            layers = self.layers() if layers is None else layers
            first = layers[0]
            assert isinstance(first.attention, Attention)
            rows = dataclasses.replace(rows, first_values=first.attention.values(first.attention_norm(x)))
        whole = len(self.plans) == self.period
        if self.scan and rows.placement is None and not whole and not last_only:
            return self.norm(self._scanned(x, rows, keys)), ()
        x, entries = self._unrolled(x, rows, keys, self.layers() if layers is None else layers, last_only)
        return self.norm(x), entries

    def _block(self, index: int, last_only: bool = False, groups: int | Array = 0) -> Any:
        """Returns the function of the layer `index`, `groups` whole periods further on."""
        plan = self.plans[index]
        names = [other.scheme for other in self.plans]
        before = names[:index].count(plan.scheme) + groups * names[: self.period].count(plan.scheme)
        scheme = self.schemes[plan.scheme].layer(before)
        is_read = any(later.kv_back for later in self.plans[index + 1 : index + 2])

        def call(
            block: Block, x: Array, rows: Rows, entry: Entry | None, keys: Array | None, shared: KeyValues | None
        ) -> Any:
            rows = dataclasses.replace(rows, layer=index + groups * self.period)
            x, entry, kv = block(
                x, rows, scheme, window=plan.window, entry=entry, keys=keys, last_only=last_only, shared=shared
            )
            return x, entry, kv if is_read else None

        return call

    def _unrolled(
        self, x: Array, rows: Rows, keys: Array | None, layers: Sequence[Block], last_only: bool
    ) -> tuple[Array, tuple[Entry, ...]]:
        entries = [] if rows.placement is None else list(rows.placement.cache.entries)
        shared, length = None, x.shape[1]
        for index, block in enumerate(layers):
            # After the last layer that writes to the cache nothing but the last token is needed.
            call = self._block(index, last_only and index == self.owners[-1])
            if last_only and index == self.owners[-1] + 1:
                rows = rows.last(length)
            owner = self.owners.index(index) if index in self.owners else None
            entry = entries[owner] if entries and owner is not None else None
            layer_keys = None if keys is None else keys[index]
            shared = None if owner is not None else shared
            if self.remat != "none" and rows.placement is None:
                x, shared = _rematerialised(self.remat, call, nnx.split(block), x, rows, layer_keys, shared)
            else:
                x, entry, shared = call(block, x, rows, entry, layer_keys, shared)
            if entry is not None and owner is not None:
                entries[owner] = entry
        return x, tuple(entries)

    def _scanned(self, x: Array, rows: Rows, keys: Array | None) -> Array:
        graphs, stacks = zip(*(nnx.split(stack) for stack, _ in self._stacks()), strict=True)
        groups = len(self.plans) // self.period
        # The first group's layers: (stack, place among the stack's layers of a group).
        at = [
            (number, layers.index(index))
            for index in range(self.period)
            for number, (_, layers) in enumerate(self.stacks)
            if index in layers
        ]

        def grouped(leaf: Array) -> Array:
            return leaf.reshape(groups, leaf.shape[0] // groups, *leaf.shape[1:])

        def run_group(x: Array, number: Array | int, states: Any, group_keys: Array | None) -> Array:
            shared = None
            for index, (stack, place) in enumerate(at):
                layer_keys = None if group_keys is None else group_keys[index]
                call = self._block(index, groups=number)
                shared = shared if self.plans[index].kv_back else None
                if self.remat != "none":
                    split = (graphs[stack], states[stack])
                    x, shared = _rematerialised(self.remat, call, split, x, rows, layer_keys, shared, place)
                else:
                    block = nnx.merge(graphs[stack], _at(states[stack], place))
                    x, _, shared = call(block, x, rows, None, layer_keys, shared)
            return x

        every = (jnp.arange(groups), *jax.tree.map(grouped, (stacks, keys)))
        if self.mixes_first_values:
            # The first layer's values are computed already; inside the loop the layer's number is not known.
            x = run_group(x, 0, *jax.tree.map(lambda leaf: leaf[0], every[1:]))
            every = jax.tree.map(lambda leaf: leaf[1:], every)
        return jax.lax.scan(lambda x, group: (run_group(x, *group), None), x, every)[0]

    @property
    def _uses_lengths(self) -> bool:
        return any(scheme.uses_lengths for scheme in self.schemes.values())

    def _lengths(self, tokens: Array, at: Array | None, segments: Array | None, of: Array | None = None) -> Any:
        """Returns the lengths of the tokens' sequences where a scheme reads them, else None."""
        if not self._uses_lengths:
            return None
        at = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] if at is None else at
        return positions.sequence_lengths(at, segments, of)

    def _changing(
        self,
        tokens_BT: Array,
        rows: Rows,
        before: KVCache,
        dropout_key: Array | None,
        layers: Sequence[Block] | None,
        last_only: bool,
    ) -> tuple[Array, tuple[Entry, ...]]:
        """Runs a step whose frequencies depend on the length: from the tokens where the old keys cannot be used."""
        placement = rows.placement
        assert placement is not None and placement.cache.tokens is not None
        cache, tokens = placement.cache, placement.cache.tokens
        layers = self.layers() if layers is None else layers
        if placement.fresh:
            lengths = self._lengths(tokens_BT, rows.positions, rows.segments)
            return self._run(tokens_BT, dataclasses.replace(rows, lengths=lengths), dropout_key, layers, last_only)
        old = self._lengths(tokens, cache.positions, before.segments, cache.segments)
        new = self._lengths(tokens, cache.positions, cache.segments)
        seen = before.segments != 0

        def turned_alike(name: str) -> Array:
            layer = next(layer for layer, plan in enumerate(self.plans) if plan.scheme == name)
            block = next(block for block, layers in self._stacks() if layer in layers)
            probe, scheme = jnp.ones((*seen.shape, 1, block.attention.turning_dim)), self.schemes[name]
            first, second = (scheme.rotate(probe, cache.positions, lengths, keys=True) for lengths in (old, new))
            return jnp.all(jnp.where(seen[..., None, None], first == second, True))

        serves = jnp.stack([turned_alike(name) for name in sorted(self.schemes)]).all()
        lengths = self._lengths(tokens, cache.positions, cache.segments, rows.segments)

        def step() -> Any:
            return self._run(tokens_BT, dataclasses.replace(rows, lengths=lengths), dropout_key, layers, last_only)

        def recomputed() -> Any:
            every = Rows(cache.positions, cache.segments, new, placement.again())
            x, entries = self._run(tokens, every, dropout_key, layers, False)
            x = jax.lax.dynamic_slice_in_dim(x, placement.start, tokens_BT.shape[1], axis=1)
            return x[:, -1:] if last_only else x, entries

        return jax.lax.cond(serves, step, recomputed)


def _saved_attention(primitive: Any, *args: Any, **params: Any) -> Any:
    """A policy that keeps attention's output and its softmax statistics, whatever kernel they come from."""
    fused = primitive.name == "pallas_call" or primitive.name.startswith("dot_product_attention_fwd")
    return fused or _NAMED(primitive, *args, **params)


_NAMED = jax.checkpoint_policies.save_only_these_names(SAVED)
# What each choice of model.remat keeps of a layer beside its input; all else is computed again.
POLICIES: dict[str, Any] = {
    "block": jax.checkpoint_policies.nothing_saveable,
    "attention": _saved_attention,
    "projections": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def _rematerialised(
    remat: str,
    call: Any,
    split: tuple[Any, Any],
    x: Array,
    rows: Rows,
    keys: Array | None,
    shared: KeyValues | None,
    place: int | None = None,
) -> tuple[Array, KeyValues | None]:
    """Runs a block keeping its input and what the policy of `remat` names for the backward pass.

    Keys and values that later layers read are outputs of the block, and kept. In a loop over layers the block is given
    as the loop's own slice of the stacks, `split`, and `place` in it: what is sliced outside of the checkpoint would be
    kept for every layer, which is a second copy of all parameters.
    """
    graph, state = split

    def run(state: Any, x: Array, keys: Array | None, shared: KeyValues | None) -> Any:
        block = nnx.merge(graph, state if place is None else _at(state, place))
        x, _, kv = call(block, x, rows, None, keys, shared)
        return x, kv

    return jax.checkpoint(run, policy=POLICIES[remat])(state, x, keys, shared)


def _at(state: Any, place: int) -> Any:
    """Returns one layer's parameters of stacked ones."""
    return jax.tree.map(lambda leaf: leaf[place], state)
