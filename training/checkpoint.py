"""Orbax checkpoints: parameters, optimizer state, and a JSON part with step, clocks, RNG and the data iterator."""

import copy
import logging
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from configs.errors import UserError
from training import integrity

policies = ocp.checkpoint_managers
logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax reports each save in dozens of lines, and raises errors


def flat(tree: Any) -> dict[str, Any]:
    """Returns {dotted path: leaf}, the form parameters and optimizer state have on disk."""

    def name(part: Any) -> str:
        return str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part))))

    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    # An NNX variable adds a last part of its own to the path, which is not the same in every version of Flax.
    return {".".join(name(p) for p in path).removesuffix(".value"): leaf for path, leaf in paths}


def unflat(leaves: dict[str, Any], like: Any) -> Any:
    """Returns a tree shaped as `like` with the leaves of `flat`."""
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in flat(like)])


class Checkpoints:
    """The checkpoints of one run directory: the last `keep` and the best by validation loss.

    Saving is asynchronous; `close` waits. A checkpoint that is being written has a temporary name, so that a killed
    run leaves only whole ones.
    """

    def __init__(self, workdir: str | Path, keep: int = 2, read_only: bool = False) -> None:
        folder = (Path(workdir) / "checkpoints").resolve()
        self.folder = folder
        best = policies.BestN(
            get_metric_fn=lambda metrics: metrics["val_loss"], reverse=True, n=1, keep_checkpoints_without_metrics=False
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(n=keep), best]),
            read_only=read_only,
            create=not read_only,
            cleanup_tmp_directories=not read_only,  # of a killed process
            enable_async_checkpointing=not read_only,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.manager = ocp.CheckpointManager(folder, options=options, item_handlers=_handlers(folder.parent))

    def steps(self) -> list[int]:
        """Returns the steps that have a whole checkpoint, in order."""
        return sorted(self.manager.all_steps())

    def save(self, step: int, params: Any, opt_state: Any, meta: dict[str, Any], val_loss: float | None) -> None:
        """Saves a step in the background; a step already saved is left as it is."""
        if step in self.manager.all_steps():
            return
        # The next step donates these buffers, and changes what meta refers to, while they are still being written.
        params, opt_state = jax.tree.map(jnp.copy, (flat(params), flat(opt_state)))
        meta = copy.deepcopy(meta)
        self.manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(params),
                opt_state=ocp.args.StandardSave(opt_state),
                meta=ocp.args.JsonSave(meta),
                checksums=integrity.ChecksumsArgs(),
            ),
            metrics=None if val_loss is None else {"val_loss": val_loss},
        )

    def save_params(self, step: int, params: Any, meta: dict[str, Any]) -> None:
        """Saves parameters alone: a checkpoint to start another run from, which none can be continued from."""
        items = {"params": ocp.args.StandardSave(flat(params)), "meta": ocp.args.JsonSave(meta)}
        self.manager.save(step, args=ocp.args.Composite(**items, checksums=integrity.ChecksumsArgs()))

    def restore(self, step: int, params: Any, opt_state: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Returns (parameters, optimizer state, meta) of a step, in the shapes of the given (abstract) trees.

        A leaf goes where its target's `sharding` says, and else to the first device; where it was saved from does not
        count, nor how many devices there were.

        Raises:
            UserError: it is damaged.
        """
        integrity.check(self.folder / str(step))
        wanted = {"params": params, "opt_state": opt_state}
        items = {name: ocp.args.StandardRestore(_targets(tree)) for name, tree in wanted.items()}
        found = self.manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore(), **items))
        return unflat(found.params, params), unflat(found.opt_state, opt_state), found.meta

    def restore_params(self, step: int, params: Any) -> Any:
        """Returns the parameters of a step alone, in the shapes of the given (abstract) tree.

        Raises:
            UserError: they are damaged.
        """
        integrity.check(self.folder / str(step), ("params",))
        found = self.manager.restore(step, args=ocp.args.Composite(params=ocp.args.StandardRestore(_targets(params))))
        return unflat(found.params, params)

    def shapes(self, step: int) -> dict[str, tuple[int, ...]]:
        """Returns {dotted path: shape} of the saved parameters, read from their metadata."""
        with ocp.StandardCheckpointer() as reader:
            tree = reader.metadata(self.folder / str(step) / "params").item_metadata.tree
        return {name: tuple(leaf.shape) for name, leaf in flat(tree).items()}

    def close(self) -> None:
        """Waits for what is being written."""
        self.manager.wait_until_finished()
        self.manager.close()


def _handlers(workdir: Path) -> dict[str, Any]:
    arrays = {name: ocp.StandardCheckpointHandler() for name in ("params", "opt_state")}
    return {
        **arrays,
        "meta": ocp.JsonCheckpointHandler(),
        integrity.ITEM: integrity.Checksums(workdir),
    }  # last


def _targets(tree: Any) -> dict[str, jax.ShapeDtypeStruct]:
    # Orbax would else restore to the devices it saved from, which need not be here: every target says where it goes.
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def target(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None) or here)

    return {name: target(x) for name, x in flat(tree).items()}


def saved(workdir: str | Path) -> list[int]:
    """Returns the steps of a run directory's checkpoints, in order, without opening them."""
    folder = Path(workdir) / "checkpoints"
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []


def newest(workdir: str | Path, step: int | None = None) -> int:
    """Returns the step to restore: the one asked for, or the newest.

    Raises:
        UserError: there is no (such) checkpoint.
    """
    found = saved(workdir)
    if not found:
        raise UserError(f"{workdir}: holds no checkpoint")
    if step is not None and step not in found:
        raise UserError(f"{workdir}: has no checkpoint of step {step}; there are {', '.join(map(str, found))}")
    return found[-1] if step is None else step
