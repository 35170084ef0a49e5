"""What tests of several devices run in a process of its own: `python -m tests.training.on_four_devices FOLDER`.

FOLDER holds the run `one`, saved on a single device. Writes the run `four` and results.json.
"""

import contextlib
import json
import re
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
from configs import base, cli, fields, validate
from eval.quality import scoring
from models import axes, kernels
from models.positions import build as build_scheme
from tests.models.common import as_dict, build, tiny, tokens
from training.run_directory.checkpoint import Checkpoints
from training.step import mesh as meshes
from training.step import optimizer, train_step
from training.step.mesh import TABLE


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
    *result, meta = checkpoints.restore(7, *map(abstract, saved))
    checkpoints.close()
    return {
        "equal": all(np.array_equal(f[name], x) for f, s in zip(result, saved, strict=True) for name, x in s.items()),
        "shards": {name: sorted({shard.data.shape for shard in x.addressable_shards}) for name, x in result[0].items()},
        "devices": {name: len(x.sharding.device_set) for name, x in result[1].items()},
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
    result = as_dict(gradient(cut))
    return {name: float(np.abs(result[name] - x).max() / np.abs(x).max()) for name, x in whole.items()}


def attention(core: str, groups: int, position: str, *, packed: bool, rules: axes.Rules | None) -> dict[str, Any]:
    """Returns output and gradients of one attention call on `rules`, and the collectives of its program by name."""
    draw = np.random.default_rng(1).standard_normal
    B, T, H, K = 4, 160, 4, 8
    q, k, v, target = (draw((B, T, n, K)).astype(np.float32) for n in (H, groups, groups, H))
    segments = np.repeat([[1, 2, 3, 0]], 40, axis=1) if packed else None
    places = {}
    if packed:
        segments = np.concatenate([segments, np.full((3, T), 1)]).astype(np.int32)
        places = {"q_segments": jnp.asarray(segments), "kv_segments": jnp.asarray(segments)}
    config = tiny(num_heads=H, num_kv_heads=H, head_dim=K, position__kind=position)
    scheme = build_scheme(config, position, rngs=nnx.Rngs(0))
    graph, state = nnx.split(scheme) if isinstance(scheme, nnx.Module) else (None, {})

    def loss(q: Any, k: Any, v: Any, state: Any) -> Any:
        made = scheme if graph is None else nnx.merge(graph, state)
        with axes.following(rules):
            out = kernels.attend(q, k, v, bias=made.bias(), kernel=core, **places)
            return jnp.sum(out * target), out

    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True))
    arguments = [q, k, v, state]
    if rules is not None:
        names = [("batch", None, "heads" if x.shape[2] % 2 == 0 else None, None) for x in (q, k, v)]
        arguments = [jax.device_put(x, rules.sharding(n, x.shape)) for x, n in zip((q, k, v), names, strict=True)]
        arguments.append(jax.device_put(state, NamedSharding(rules.mesh, P())))
    program = gradient.lower(*arguments).compile()
    (_, out), grads = program(*arguments)
    results = [np.asarray(x) for x in (out, *jax.tree.leaves(grads))]
    return {
        "found": results,
        "collectives": re.findall(r"= \S+ (all-[a-z]+|reduce-scatter|collective-permute)", program.as_text()),
    }


CALLS = {
    "blocked, one KV head, packed, a bias that learns": ("blocked", 1, "t5", True),
    "splash, one KV head, packed": ("splash", 1, "none", True),
    "flash, a bias by heads": ("flash", 2, "alibi", False),
    "fused, one KV head, packed, a bias that learns": ("fused", 1, "t5", True),
}


def attention_on_a_mesh() -> dict[str, Any]:
    """Returns for each of CALLS the largest error beside one device, and what the devices send one another."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 1, 1, 2), ("data", "fsdp", "context", "tensor"))
    rules = axes.Rules(mesh, tuple(TABLE.items()))
    results = {}
    for name, (core, groups, position, packed) in CALLS.items():
        with (
            kernels.interpreting("gpu" if core == "fused" else "tpu") if core != "blocked" else contextlib.nullcontext()
        ):
            one = attention(core, groups, position, packed=packed, rules=None)
            four = attention(core, groups, position, packed=packed, rules=rules)
        pairs = zip(four["found"], one["found"], strict=True)
        apart = max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-9)) for a, b in pairs)
        results[name] = {"apart": apart, "collectives": four["collectives"]}
    return results


def scores_of_long_rows() -> dict[str, float]:
    """Returns how far losses are apart where four devices have a quarter of the tokens each; logits come in pieces."""
    config = tiny(num_heads=4, num_kv_heads=2, head_dim=8, position__kind="alibi", attention__window_pattern=(24, 0))
    params = nnx.state(build(config))
    mesh = Mesh(np.array(jax.devices()).reshape(1, 1, 4, 1), ("data", "fsdp", "context", "tensor"))
    rules = axes.Rules(mesh, tuple(TABLE.items()))
    spread = jax.device_put(params, NamedSharding(mesh, P()))
    scoring.LOGITS = 2 * 10 * config.vocab_size  # ten tokens of two rows at once
    ids = np.asarray(tokens(2, 97))
    plain = {"tokens": ids[:, :-1], "targets": ids[:, 1:]}
    sizes = [40, 33, 20, 3]  # documents of a row, and three tokens of padding
    segments = np.repeat([[1, 2, 3, 0]], sizes, axis=1)[[0, 0]].astype(np.int32)
    places = np.concatenate([np.arange(size) for size in sizes])[None][[0, 0]].astype(np.int32)
    results = {}
    for name, batch in {"plain": plain, "packed": {**plain, "segments": segments, "positions": places}}.items():
        one, four = (scoring.score(config, p, batch, r)[0] for p, r in ((params, None), (spread, rules)))
        results[name] = float(np.abs(one - four).max())
    return results


def optimizers_on_a_mesh() -> dict[str, dict[str, Any]]:
    """Returns how the state of each optimizer lies, and how far parameters are apart after three steps.

    `divided`: arrays of a divided parameter's own shape that lie as it does; `otherwise`: those that do not.
    """
    results = {}
    for kind in fields.choices("optimizer.kind"):
        config = base.get_config()
        values = {"kind": kind, "adafactor.factor_from": 8 if kind == "adafactor" else 128}
        values["schedule"] = "constant" if kind == "schedule_free_adamw" else "cosine"
        shape = {"model.width": 16, "model.num_layers": 2, "model.num_heads": 2, "model.vocab_size": 260}
        batched = {"data.batch_size": 4, "data.length": 8, "mesh.fsdp": 2, "mesh.tensor": 2}
        cli.apply(config, {**{f"optimizer.{name}": value for name, value in values.items()}, **shape, **batched})
        config = validate.resolve(config)
        mesh = meshes.mesh_of(config)
        result = train_step.abstract(config, mesh)
        params, state = (jax.tree.leaves(tree) for tree in (result.params, result.opt_state))
        of_params = {(x.shape, x.sharding.spec) for x in params if not x.sharding.is_fully_replicated}
        shapes = {shape for shape, _ in of_params}
        lies = [(x.shape, x.sharding.spec) in of_params for x in state if x.shape in shapes]
        results[kind] = {"divided": sum(lies), "otherwise": len(lies) - sum(lies)}
        if kind in ("muon", "adafactor"):  # that are not elementwise
            one, four = (jax.tree.leaves(_after_steps(config, where)) for where in (None, mesh))
            pairs = zip(one, four, strict=True)
            results[kind]["apart"] = max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)
    return results


def _after_steps(config: Any, mesh: Mesh | None) -> Any:
    rules = meshes.rules_of(config, mesh)
    params = meshes.spread(rules, models.initialise(config.model, 0)[1])
    state = train_step.initial_opt_state(config, params, mesh)
    ids = np.random.default_rng(0).integers(0, 260, (4, 9), dtype=np.int32)
    batch = {"tokens": ids[:, :-1], "targets": ids[:, 1:], "weights": np.ones((4, 8), np.float32)}
    batch = meshes.whole_batch(rules, batch)
    for step in range(3):
        rate = optimizer.rates(config.optimizer, 1e-3 * step)
        params, state, *_ = train_step.jitted(config, mesh)(params, state, batch, rate, jax.random.key(step))
    return params


def main() -> None:
    """Runs everything once: starting a process takes longer than what it does."""
    folder, mesh = Path(sys.argv[1]), Mesh(np.array(jax.devices()), "device")
    assert len(jax.devices()) == 4 and models
    results = {
        "restored": restored(folder / "one", mesh),
        "errors": {groups: errors_of_few_kv_heads(mesh, groups) for groups in (1, 2)},
        "attention": attention_on_a_mesh(),
        "long": scores_of_long_rows(),
        "optimizers": optimizers_on_a_mesh(),
    }
    save(folder / "four", mesh)
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
