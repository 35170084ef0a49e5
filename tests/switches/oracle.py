"""The whole model in float64 NumPy, written from the formulas: the forward that every switch is held against.

Plain and slow: heads and layers are loops. It knows what the switches' table tries: pre-norm blocks with RMSNorm and
SwiGLU, tied embeddings, and every position and attention switch.
"""

from typing import Any

import numpy as np
from ml_collections import ConfigDict

from models.declared.positions import KINDS
from tests.switches import written
from tests.switches.written import Arrays


def logits(
    model: ConfigDict, params: Arrays, tokens: np.ndarray, seen: list[tuple[np.ndarray, np.ndarray]] | None = None
) -> np.ndarray:
    """Returns float64 logits [T, V] of one sequence [T]; each head's weights [T, T] and output [T, V] go to `seen`."""
    p = np.arange(len(tokens))
    kinds = tuple(model.position.pattern) or (model.position.kind,)
    windows = tuple(model.attention.window_pattern) or (model.attention.window,)
    x = params["embedding"][tokens] + written.embedded(model, kinds[0], params.get("schemes", {}), p)
    met: dict[str, int] = {}
    shared = {"value_embedding": params.get("value_embedding")}
    names = _schemes(model, kinds)
    read: list[tuple[Arrays, np.ndarray]] = []  # what each layer's keys and values come from
    for layer, block in enumerate(_layers(model, params["blocks"])):
        kind, window = kinds[layer % len(kinds)], windows[layer % len(windows)] or None
        name, of_layer = names[layer], with_heads(model, layer)
        own = dict(params.get("schemes", {}).get(name, {}))
        if KINDS[kind].layered:
            own = {leaf: array[met.get(name, 0)] for leaf, array in own.items()}
        met[name] = met.get(name, 0) + 1
        h = norm(model, x, block["attention_norm"])
        read.append((block["attention"], h))
        x = x + attention(
            of_layer, kind, window, block["attention"], own, h, p, seen, layer, tokens, shared,
            read[source(model, layer)],
        )  # fmt: skip
        h, mlp = norm(model, x, block["mlp_norm"]), block["mlp"]
        gate = h @ mlp["gate"]["kernel"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ mlp["up"]["kernel"])) @ mlp["down"]["kernel"]
    return norm(model, x, params["norm"]) @ params["embedding"].T


def with_heads(model: ConfigDict, layer: int) -> ConfigDict:
    """Returns the model with the heads and theta of one layer."""
    result, pattern = model.copy_and_resolve_references(), model.attention.pattern
    for name, value in dict(pattern[layer % len(pattern)]).items() if pattern else ():
        (result.position.rope if name == "theta" else result)[name] = value
    return result


def _dims(model: ConfigDict) -> tuple[int, int, int, float]:
    return model.num_heads, model.num_kv_heads, model.head_dim, model.position.rope.theta


def _schemes(model: ConfigDict, kinds: tuple[str, ...]) -> list[str]:
    """Returns the name of each layer's scheme: its kind, numbered where layers of that kind need several."""
    keys = []
    for layer in range(model.num_layers):
        kind, (heads, _, dim, theta) = kinds[layer % len(kinds)], _dims(with_heads(model, layer))
        turns = kind in ("rope", "p_rope", "xpos")
        keys.append((kind, *(() if kind in ("none", "learned", "sinusoidal") else (dim, theta if turns else heads))))
    unlike = {kind: [*dict.fromkeys(key for key in keys if key[0] == kind)] for kind in kinds}
    return [key[0] if len(unlike[key[0]]) == 1 else f"{key[0]}_{unlike[key[0]].index(key)}" for key in keys]


def source(model: ConfigDict, layer: int) -> int:
    """Returns the layer whose keys and values a layer reads."""
    share, first = model.attention.kv_share, model.attention.kv_share_from
    return first + (layer - first) // share * share if layer > first else layer


def _layers(model: ConfigDict, blocks: Arrays) -> list[Arrays]:
    """Returns each layer's parameters: of one stack, or of one for each kind of layer, in the order they come."""
    kinds = [(source(model, layer) == layer, *_dims(with_heads(model, layer))[:3]) for layer in range(model.num_layers)]
    if len(set(kinds)) == 1:
        return [_layer(blocks, layer) for layer in range(model.num_layers)]
    order = list(dict.fromkeys(kinds))
    return [_layer(blocks[str(order.index(kind))], kinds[:layer].count(kind)) for layer, kind in enumerate(kinds)]


def _layer(tree: Any, layer: int) -> Any:
    return {name: _layer(leaf, layer) for name, leaf in tree.items()} if isinstance(tree, dict) else tree[layer]


def norm(model: ConfigDict, x: np.ndarray, own: Arrays) -> np.ndarray:
    """Returns RMSNorm over the last axis."""
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + model.norm_eps) * own["scale"]


def linear(x: np.ndarray, own: Arrays) -> np.ndarray:
    """Returns x W + b."""
    return x @ own["kernel"] + own.get("bias", 0.0)


def attention(
    model: ConfigDict,
    kind: str,
    window: int | None,
    own: Arrays,
    scheme: Arrays,
    h: np.ndarray,
    p: np.ndarray,
    seen: list[tuple[np.ndarray, np.ndarray]] | None = None,
    layer: int = 0,
    tokens: np.ndarray | None = None,
    shared: Arrays | None = None,
    of_kv: tuple[Arrays, np.ndarray] | None = None,
) -> np.ndarray:
    """Returns a layer's attention [T, D] of normalised input [T, D].

    `of_kv` has the attention parameters and the normalised input of the layer whose keys and values it reads.
    """
    project = latent if model.attention.kind == "mla" else grouped
    q, k, v, factor = project(model, kind, own, h, p, of_kv or (own, h))
    v = _values(model, own, v, tokens, shared)
    q = q * written.temperature(model, kind, p)[:, None, None]
    requested, dims = model.attention, q.shape[2]
    scale = (
        requested.scale
        if requested.scale is not None
        else 1 / dims
        if requested.scale_rule == "mup"
        else 1 / np.sqrt(dims)
    )
    distance = p[:, None] - p[None, :]
    visible = (distance >= 0) & (distance < (window or np.inf))
    added = written.bias(model, kind, scheme, p, p)
    every = np.stack([factor * scale * q[:, head] @ _group(k, head, model).T for head in range(model.num_heads)])
    if requested.soft_cap is not None:
        every = requested.soft_cap * np.tanh(every / requested.soft_cap)
    if requested.talking_heads:
        every = np.einsum("hts,hj->jts", every, own["talking"]["scores"])
    less = _forgotten(every[0], visible, p) if requested.weights.kind == "selective" else 0.0
    maps = []
    for head, scores in enumerate(every + added - less):
        if kind == "cope":
            scores = scores + written.cope(scheme["table"], q[:, head], scores, visible)
        sink = np.exp(own["sinks"][head]) if requested.sinks else 0.0
        maps.append(weights(requested.weights, scores, visible, sink))
    if requested.talking_heads:
        maps = [*np.einsum("hts,hj->jts", np.stack(maps), own["talking"]["weights"])]
    if requested.kind == "differential":
        (a1, b1, a2, b2), first = own["lambdas"], 0.8 - 0.6 * np.exp(-0.3 * layer)
        factor = np.exp(a1 @ b1) - np.exp(a2 @ b2) + first
        maps = [one - factor * two for one, two in zip(maps[::2], maps[1::2], strict=True)]
        v = v.reshape(len(h), -1, 2 * model.head_dim)
    heads = []
    for head, one in enumerate(maps):
        values = v[:, head // (len(maps) // v.shape[1])]
        y = one @ values
        if requested.kind == "differential":
            y = (1 - first) * norm(model, y, own["head_norm"])
        heads.append(_output(model, own, head, y, values, h))
        if seen is not None:
            seen.append((one, heads[-1]))
    return linear(np.concatenate(heads, axis=1), own["out"])


def _values(model: ConfigDict, own: Arrays, v: np.ndarray, tokens: Any, shared: Arrays | None) -> np.ndarray:
    """Returns a layer's values [T, G, V] mixed with the first layer's, kept in `shared`, and with looked-up ones."""
    requested = model.attention
    shared = {} if shared is None else shared
    first = shared.setdefault("first", v)
    if requested.value_residual != "none":
        a, b = own["value_mix"]["residual_lambdas"] if requested.value_residual == "learned" else (0.5, 0.5)
        v = a * first + b * v
    if requested.value_embedding != "none":
        a, b = own["value_mix"]["embedding_lambdas"]
        table = shared["value_embedding"] if requested.value_embedding == "shared" else own["value_mix"]["table"]
        v = a * table[tokens].reshape(v.shape) + b * v
    return v


def _forgotten(first: np.ndarray, visible: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Returns what selective attention subtracts [T, T]: key by key and query by query, as 2410.02703 has it."""
    result = np.zeros_like(first)
    for i in range(1, len(p)):
        for j in range(len(p)):
            chosen = visible[i - 1, j] and j != i - 1 and p[j] != 0
            result[i, j] = result[i - 1, j] + (max(0.0, first[i - 1, j]) if chosen else 0.0)
    return result


def _group(k: np.ndarray, head: int, model: ConfigDict) -> np.ndarray:
    return k[:, head // (model.num_heads // k.shape[1])]


def weights(requested: ConfigDict, scores: np.ndarray, visible: np.ndarray, sink: float) -> np.ndarray:
    """Returns the weights [T, T] that a head makes of its scores."""
    if requested.kind == "sigmoid":
        return np.where(visible, 1 / (1 + np.exp(-scores - requested.sigmoid_bias)), 0)
    if requested.kind == "top_k":
        for at, row in enumerate(scores):
            seen = np.flatnonzero(visible[at])
            least = np.sort(row[seen])[::-1][: requested.top_k][-1]
            keep = seen[row[seen] >= least - 1e-5 * np.abs(row[seen]).max()]
            visible = visible.copy()
            visible[at] = False
            visible[at, keep] = True
    result = np.where(visible, np.exp(scores), 0)
    return result / (result.sum(1, keepdims=True) + sink)


def _output(model: ConfigDict, own: Arrays, head: int, y: np.ndarray, v: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Returns a head's output of what it attended to [T, V], its values [T, V] and the layer's input [T, D]."""
    requested = model.attention
    if requested.exclusive:
        y = np.stack([a - (a @ b) / (b @ b) * b for a, b in zip(y, v, strict=True)])
    if requested.gate.kind != "none":
        logits = h[:, : requested.gate.dims] @ own["gate"]["kernel"]
        heads = model.num_heads // (2 if requested.kind == "differential" else 1)
        by_head = logits.reshape(len(h), heads, -1)[:, head]
        y = y / (1 + np.exp(-by_head))
    return y


def grouped(
    model: ConfigDict, kind: str, own: Arrays, h: np.ndarray, p: np.ndarray, of_kv: tuple[Arrays, np.ndarray]
) -> tuple[Any, Any, Any, float]:
    """Returns q [T, H, K], k and v [T, G, K], turned, and 1."""
    H, G, K = model.num_heads, model.num_kv_heads, model.head_dim
    if model.attention.qkv == "fused":
        whole = linear(h, own["qkv"])
        q, k, v = whole[:, : H * K], whole[:, H * K : (H + G) * K], whole[:, (H + G) * K :]
    else:
        q, k = linear(h, own["query"]), linear(of_kv[1], of_kv[0]["key"])
        v = k if model.attention.tie_kv else linear(of_kv[1], of_kv[0]["value"])
    q, k, v = q.reshape(-1, H, K), k.reshape(-1, G, K), v.reshape(-1, G, K)
    if model.attention.qk_norm:
        q, k = norm(model, q, own["query_norm"]), norm(model, k, of_kv[0]["key_norm"])
    q = written.turned(model, kind, q, p, len(p))
    return q, written.turned(model, kind, k, p, len(p), keys=True), v, 1.0


def latent(
    model: ConfigDict, kind: str, own: Arrays, h: np.ndarray, p: np.ndarray, of_kv: tuple[Arrays, np.ndarray]
) -> tuple[Any, Any, Any, float]:
    """Returns multi-head latent attention's q and k [T, H, nope + rope] and v [T, H, value], and what scores grow by.

    Equations 9 to 19 of DeepSeek-V2, with its code's RMSNorm on the latents.
    """
    mla, H = model.attention.mla, model.num_heads
    c_q = h if mla.query_rank is None else norm(model, linear(h, own["query_down"]), own["query_norm"])
    q = linear(c_q, own["query"]).reshape(-1, H, mla.nope_dim + mla.rope_dim)
    down = linear(of_kv[1], of_kv[0]["kv_down"])
    c_kv, shared = norm(model, down[:, : mla.kv_rank], of_kv[0]["kv_norm"]), down[:, None, mla.kv_rank :]
    k_nope = linear(c_kv, own["key_up"]).reshape(-1, H, mla.nope_dim)
    v = linear(c_kv, own["value_up"]).reshape(-1, H, mla.value_dim)
    q_rope = written.turned(model, kind, q[:, :, mla.nope_dim :], p, len(p))
    k_rope = np.repeat(written.turned(model, kind, shared, p, len(p), keys=True), H, axis=1)
    scaling, factor = model.position.rope.scaling, 1.0
    if kind == "rope" and scaling.kind == "yarn" and scaling.mscale_all_dim:
        factor = written.mscale(scaling, scaling.mscale_all_dim) ** 2
    k = np.concatenate([k_nope, k_rope], axis=2)
    return np.concatenate([q[:, :, : mla.nope_dim], q_rope], axis=2), k, v, factor


def loss(model: ConfigDict, params: Arrays, tokens: np.ndarray, targets: np.ndarray) -> float:
    """Returns the mean cross-entropy of rows [B, T], in nats."""
    total = 0.0
    for row, expected in zip(tokens, targets, strict=True):
        out = logits(model, params, row)
        largest = out.max(axis=1)
        total += np.sum(np.log(np.exp(out - largest[:, None]).sum(1)) + largest - out[np.arange(len(row)), expected])
    return float(total / tokens.size)
