"""What tests of several devices run in a process of its own: `python -m tests.training.on_four_devices FOLDER`.

FOLDER holds the run `one`, saved on a single device. Writes the run `four` and results.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import models
from tests.models.common import as_dict, build, tiny, tokens
from training.checkpoint import Checkpoints


def trees() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Parameters and optimizer state; two of the arrays can be cut in four, `odd` cannot."""
    draw = np.random.default_rng(0).standard_normal
    params = {"wide": draw((8, 12)), "tall": draw((3, 4)), "odd": draw(5)}
    params = {name: x.astype(np.float32) for name, x in params.items()}
    return params, {name: 2 * x for name, x in params.items()}


SPECS = {"wide": P("device"), "tall": P(None, "device"), "odd": P()}


def restored(folder: Path, mesh: Mesh) -> dict[str, Any]:
    """Restores a run to four devices; tells how its arrays lie and whether they are what was saved."""

    def abstract(tree: dict[str, np.ndarray]) -> dict[str, jax.ShapeDtypeStruct]:
        return {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, SPECS[name]))
            for name, x in tree.items()
        }

    saved = trees()
    checkpoints = Checkpoints(folder, read_only=True)
    *found, meta = checkpoints.restore(7, *map(abstract, saved))
    checkpoints.close()
    return {
        "equal": all(np.array_equal(f[name], x) for f, s in zip(found, saved, strict=True) for name, x in s.items()),
        "shards": {name: sorted({shard.data.shape for shard in x.addressable_shards}) for name, x in found[0].items()},
        "devices": {name: len(x.sharding.device_set) for name, x in found[1].items()},
        "meta": meta,
    }


def save(folder: Path, mesh: Mesh) -> None:
    """Saves a run whose arrays lie on four devices."""
    put = [{name: jax.device_put(x, NamedSharding(mesh, SPECS[name])) for name, x in t.items()} for t in trees()]
    checkpoints = Checkpoints(folder)
    checkpoints.save(7, *put, {"step": 7}, None)
    checkpoints.close()


def errors_of_few_kv_heads(mesh: Mesh, groups: int) -> dict[str, float]:
    """Returns each gradient's largest relative error with attention's matrices cut in four, of G KV heads.

    Queries, keys and values are cut by columns, the output by rows: tensor parallelism, G heads of 8 for 4 devices.
    """
    config = tiny(num_kv_heads=groups, head_dim=8, attention__qkv_bias=True)
    graphdef, params = nnx.split(build(config))
    ids = tokens(2, 9)

    @jax.jit
    def gradient(params: Any) -> Any:
        return jax.grad(lambda p: jnp.mean(jnp.sin(nnx.merge(graphdef, p)(ids))))(params)

    def place(path: Any, x: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path)
        spec = P()
        if any(f"['{part}']" in name for part in ("query", "key", "value")):
            spec = P(None, None, "device") if x.ndim == 3 else P(None, "device")
        elif "['out']" in name and x.ndim == 3:
            spec = P(None, "device", None)
        return jax.device_put(x, NamedSharding(mesh, spec))

    whole = as_dict(gradient(params))
    cut = jax.tree_util.tree_map_with_path(place, params)
    held = as_dict(cut)["blocks.attention.key.kernel"].addressable_shards[0].data.shape
    assert held == (2, 16, groups * 8 // 4), held
    found = as_dict(gradient(cut))
    return {name: float(np.abs(found[name] - x).max() / np.abs(x).max()) for name, x in whole.items()}


def main() -> None:
    """Runs everything once: starting a process takes longer than what it does."""
    folder, mesh = Path(sys.argv[1]), Mesh(np.array(jax.devices()), "device")
    assert len(jax.devices()) == 4 and models
    results = {
        "restored": restored(folder / "one", mesh),
        "errors": {groups: errors_of_few_kv_heads(mesh, groups) for groups in (1, 2)},
    }
    save(folder / "four", mesh)
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
