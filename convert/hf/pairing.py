"""Converts interleaved rotary pairs (2i, 2i + 1) to half-split ones (i, i + r/2), with the same scores q.k."""

import numpy as np
from ml_collections import ConfigDict

from configs import fields
from convert.hf.tensors import PARTS, Params


def to_half(params: Params, config: ConfigDict) -> tuple[Params, ConfigDict]:
    """Returns parameters (q, k and v separate) and config of the same function with the pairing `half`.

    In each head the rotary dims are reordered to 0 2 4 .. 1 3 5 .., for queries and keys equally, so that q.k does not
    change. Each has its own number of heads: H for queries, G for keys (keys permuted as if they had H heads give
    silently wrong models: flash-attention #546).
    """
    model = config.model
    kinds = {model.position.kind, *model.position.pattern}
    if model.position.rope.pairing == "half" or not kinds & {"rope", "p_rope"}:
        return params, config
    rotation = model.head_dim if "p_rope" in kinds else int(model.head_dim * model.position.rope.fraction)
    order = np.concatenate([np.arange(0, rotation, 2), np.arange(1, rotation, 2), np.arange(rotation, model.head_dim)])
    result = dict(params)
    for part, heads in ((PARTS[0], model.num_heads), (PARTS[1], model.num_kv_heads)):
        for name in (f"{part}.kernel", f"{part}.bias"):
            if name in result:
                by_head = result[name].reshape(*result[name].shape[:-1], heads, model.head_dim)
                result[name] = by_head[..., order].reshape(result[name].shape)
        if f"{part}_norm.scale" in result:
            result[f"{part}_norm.scale"] = result[f"{part}_norm.scale"][..., order]
    config = fields.from_dict(fields.to_dict(config))
    config.model.position.rope.pairing = "half"
    return result, config
