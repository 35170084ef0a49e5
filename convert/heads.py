"""Joining, masking and removing heads of a trained model: functions of (config.model, flat parameters).

Parameters are {dotted path: array}, those of the blocks stacked [L, ...]. L layers, D width, H query heads, G key/value
heads, K head_dim; query head h reads key/value head h // (H / G).
"""

from collections.abc import Iterable, Mapping

import numpy as np
from ml_collections import ConfigDict

from configs.errors import UserError
from configs.rules.attention import outputs
from convert.hf.tensors import PARTS, Params, fuse, split
from convert.options import POOLS
from models.declared import attention, positions, switches
from models.declared.model import parameters
from models.declared.parameter import KV, QUERY, Parameter
from models.initial import initialise
from models.pattern import of_layer, plans, stacks
from training.run_directory.checkpoint import flat

# Added to the seed, so that fresh heads differ from the run's initial ones if both seeds are the default.
FRESH = 0x6B76

Heads = frozenset[tuple[int, int]]  # (layer, query head)


def grouped(
    model: ConfigDict, params: Params, num_kv_heads: int, pool: str = "mean", seed: int = 0
) -> tuple[ConfigDict, Params]:
    """Returns a model whose query heads share fewer key/value heads (GQA, or MQA for one; arXiv 2305.13245, section
    2.1).

    Each new head comes from the G / num_kv_heads old ones that its query heads read, by `pool`: their `mean`, the
    `first` of them, a `random` one (the same for keys and values, different for each layer and group), or a newly
    initialized `fresh` one. The paper compares mean, first ("select a single head") and fresh (its "random"), best
    first.

    Args:
        model: a resolved config.model.
        params: its parameters.
        num_kv_heads: must divide G.
        pool: one of POOLS.
        seed: for random and fresh.

    Raises:
        UserError: the number does not divide G, or G is already 1.
    """
    refuse_latent(model, "key/value heads")
    for switch in switches.active(model):
        if switch.unjoinable is not None:
            field = f"model.attention.{switch.fields[0]}"
            raise UserError(f"{field} ({switch.title}): {switch.unjoinable}, so key/value heads cannot be joined")
    if pool not in POOLS:
        raise UserError(f"pool = {pool!r}: must be {', '.join(POOLS)}")
    if not 0 <= seed < 2**63:
        raise UserError(f"seed = {seed}: must be in 0 .. 2**63 - 1")
    old = model.num_kv_heads
    if num_kv_heads < 1 or num_kv_heads >= old or old % num_kv_heads:
        allowed = [str(n) for n in range(1, old) if old % n == 0] or ["none: there is one"]
        raise UserError(f"num_kv_heads = {num_kv_heads}: the run has {old}; must be one of {', '.join(allowed)}")
    config = model.copy_and_resolve_references()
    config.num_kv_heads = num_kv_heads
    fresh = _split(config, dict(flat(initialise(config, (seed + FRESH) % 2**63)[1]))) if pool == "fresh" else {}
    ratio, layers = old // num_kv_heads, model.num_layers
    chosen = np.zeros((layers, num_kv_heads), int)
    if pool == "random":
        chosen = np.random.default_rng(seed).integers(0, ratio, chosen.shape)
    result = _split(model, params)
    for name in _names(result, PARTS[1:]):
        if pool == "fresh":
            result[name] = fresh[name]
            continue
        old_heads = result[name].reshape(layers, -1, num_kv_heads, ratio, model.head_dim)  # a bias is [L, 1, ...]
        if pool == "mean":
            pooled = old_heads.mean(axis=3, dtype=np.float64).astype(np.float32)
        else:
            pooled = np.take_along_axis(old_heads, chosen[:, None, :, None, None], axis=3)[:, :, :, 0]
        result[name] = pooled.reshape(*result[name].shape[:-1], num_kv_heads * model.head_dim)
    return config, _joined(config, result)


def masked(model: ConfigDict, params: Params, heads: Iterable[tuple[int, int]]) -> Params:
    """Returns parameters with masked (layer, head) pairs: their rows of the output projection are zero.

    That is Michel et al.'s mask (arXiv 1905.10650, equation 1) with xi_h = 0; shapes stay. Further training gives
    masked heads a gradient, so they can recover.

    Raises:
        UserError: there is no such head.
    """
    gone, result = checked(model, heads), dict(params)
    for path, layers in stacks(model).items():
        name, count = f"{path}.attention.out.kernel", outputs(of_layer(model, layers[0]))[0]
        rows = np.array([[(layer, head) not in gone for head in range(count)] for layer in layers], np.float32)
        result[name] = params[name] * np.repeat(rows, params[name].shape[1] // count, axis=1)[:, :, None]
    return result


def removed(model: ConfigDict, params: Params, heads: Iterable[tuple[int, int]]) -> tuple[ConfigDict, Params]:
    """Returns a smaller model without (layer, head) pairs, which computes the same function as the masked one.

    All layers have the same shapes, so each must keep equally many heads, in equally many groups of one size: a
    key/value head is removed with the last query head that reads it.

    Raises:
        UserError: no such head, nothing would be left, layers or groups would keep different numbers, or the positions
            depend on the number of heads (ALiBi's slopes).
    """
    refuse_latent(model, "removable heads; without --remove they are masked")
    gone = checked(model, heads)
    keep = [[h for h in range(model.num_heads) if (layer, h) not in gone] for layer in range(model.num_layers)]
    groups = [sorted({h * model.num_kv_heads // model.num_heads for h in kept}) for kept in keep]
    _refuse_uneven(model, keep)
    for kind in {plan.position for plan in plans(model)}:
        if (reason := positions.kind_of(kind).removable) is not None:
            raise UserError(f"model.position.kind = {kind!r}: {reason}; mask them instead")
    for switch in switches.active(model):
        if switch.unremovable is not None:
            field = f"model.attention.{switch.fields[0]}"
            raise UserError(f"{field} ({switch.title}): {switch.unremovable}; mask them instead")
    declared = parameters(model)
    config = model.copy_and_resolve_references()
    config.num_heads, config.num_kv_heads = len(keep[0]), len(groups[0])
    kept = {QUERY: (keep, model.num_heads), KV: (groups, model.num_kv_heads)}
    return config, {name: _without(np.asarray(x), name, declared[name], kept) for name, x in params.items()}


def checked(model: ConfigDict, heads: Iterable[tuple[int, int]]) -> Heads:
    """Returns (layer, head) pairs as a set.

    Raises:
        UserError: there is no such layer or head.
    """
    result = frozenset(heads)
    for layer, head in sorted(result):
        inside = 0 <= layer < model.num_layers
        count = outputs(of_layer(model, layer) if inside else model)[0]
        if not (inside and 0 <= head < count):
            raise UserError(
                f"head {layer}:{head}: the run has layers 0 .. {model.num_layers - 1} with heads 0 .. {count - 1}"
            )
    return result


def refuse_latent(model: ConfigDict, what: str) -> None:
    """Refuses attention whose heads cannot be joined or removed: multi-head latent, or shared by layers.

    Raises:
        UserError: the model has such attention.
    """
    if not attention.kind_of(model).surgery:
        raise UserError(f"model.attention.kind = {model.attention.kind!r}: has no {what}")
    if len(stacks(model)) > 1:
        share = f"model.attention.kv_share = {model.attention.kv_share}"
        if model.attention.kv_share > 1:
            raise UserError(f"{share}: a model whose layers share keys and values has no {what}")
        raise UserError(
            f"model.attention.pattern = {model.attention.pattern!r}: layers with different heads have no {what}"
        )


def _refuse_uneven(model: ConfigDict, keep: list[list[int]]) -> None:
    ratio = model.num_heads // model.num_kv_heads
    sizes = [np.bincount([h // ratio for h in kept], minlength=model.num_kv_heads) for kept in keep]
    left = [sorted(set(size[size > 0].tolist())) for size in sizes]
    if any(not kept for kept in keep):
        raise UserError(f"layer {[not kept for kept in keep].index(True)}: would lose all heads; mask them instead")
    for layer, (size, kept) in enumerate(zip(sizes, keep, strict=True)):
        if len(left[layer]) > 1:
            raise UserError(
                f"layer {layer}: its KV groups would keep {', '.join(map(str, size))} heads; removed heads must "
                "leave equally many in each group, or none; mask them instead"
            )
        if (len(kept), left[layer]) != (len(keep[0]), left[0]):
            raise UserError(
                f"layer {layer}: would keep {len(kept)} heads, {left[layer][0]} per KV group, layer 0 {len(keep[0])}, "
                f"{left[0][0]} per group; every layer must lose equally many; mask them instead"
            )


def _without(
    x: np.ndarray, name: str, declared: Parameter, kept: Mapping[str, tuple[list[list[int]], int]]
) -> np.ndarray:
    """Returns a parameter with only the kept heads.

    Args:
        x: the parameter.
        name: its path.
        declared: the meaning of its axis of heads.
        kept: of query and of key/value heads: (the remaining ones of each layer, the original number).

    Raises:
        UserError: layers that share it would keep different heads.
    """
    if not declared.heads:
        return x
    x = np.moveaxis(x, declared.head_axis, -1)
    total = sum(kept[owner][1] for owner in declared.heads)
    size = x.shape[-1] // total  # elements per head
    ends = np.cumsum([kept[owner][1] * size for owner in declared.heads])[:-1]
    pieces = []
    for piece, owner in zip(np.split(x, ends, axis=-1), declared.heads, strict=True):
        chosen = [kept[owner][0][layer] for layer in declared.layers]
        if declared.stacked:
            pieces.append(_columns(piece, chosen, size))
        elif any(other != chosen[0] for other in chosen):
            kind = name.split(".")[1]
            raise UserError(f"model.position.kind = {kind!r}: its table serves all layers; mask their heads instead")
        else:
            pieces.append(_columns(piece[None], chosen[:1], size)[0])
    return np.moveaxis(np.concatenate(pieces, axis=-1), -1, declared.head_axis)


def _columns(x: np.ndarray, kept: list[list[int]], size: int) -> np.ndarray:
    """Returns [n, ..., heads * size] with the heads `kept` in each of the n layers."""
    heads = x.reshape(*x.shape[:-1], -1, size)
    layers = [layer[..., chosen, :] for layer, chosen in zip(heads, kept, strict=True)]
    return np.stack([layer.reshape(*layer.shape[:-2], -1) for layer in layers])


def _names(params: Params, parts: Iterable[str]) -> list[str]:
    return [f"{part}.{kind}" for part in parts for kind in ("kernel", "bias") if f"{part}.{kind}" in params]


def _split(model: ConfigDict, params: Params) -> Params:
    arrays = {name: np.asarray(x) for name, x in params.items()}
    return split(arrays, model.num_heads, model.num_kv_heads, model.head_dim)


def _joined(model: ConfigDict, params: Params) -> Params:
    return fuse(params) if model.attention.qkv == "fused" else params
