"""Orbax checkpoints: parameters, optimizer state, and a JSON part with step, clocks, RNG and the data iterator."""

import contextlib
import copy
import json
import logging
import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from ml_collections import ConfigDict

from configs import fields
from configs.errors import UserError
from training.run_directory import integrity

policies = ocp.checkpoint_managers
IDENTITY = "trained_as"  # in meta: the config fields that define what was trained (`identity`)
TRAINED_AS = ("seed", "model.", "optimizer.", "data.")
PLACES = ("data.path", "data.validation_path", "data.mixture", "data.tokenizer", "data.retrieval.questions")
SCORED = "val_loss_of_these"  # in meta: the validation loss of the checkpoint's parameters, None if not evaluated
logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs dozens of lines per save, and raises errors


def flat(tree: Any) -> dict[str, Any]:
    """Returns {dotted path: leaf}, the on-disk form of parameters and optimizer state."""

    def name(part: Any) -> str:
        return str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part))))

    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    # An NNX variable adds a last part to the path, which differs between versions of Flax.
    return {".".join(name(p) for p in path).removesuffix(".value"): leaf for path, leaf in paths}


def unflat(leaves: dict[str, Any], like: Any) -> Any:
    """Returns a tree shaped as `like` with the leaves of `flat`."""
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in flat(like)])


class _Best:
    """Keeps the checkpoint with the lowest validation loss, including those of earlier processes.

    Orbax's own policy would read the losses from a file per checkpoint, and open nothing if one of those is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.losses: dict[int, float] = {}
        for path in folder.glob("*/meta/metadata"):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                self.add(int(path.parent.parent.name), json.loads(path.read_bytes()).get(SCORED))

    def add(self, step: int, val_loss: float | None) -> None:
        if isinstance(val_loss, float) and math.isfinite(val_loss):
            self.losses[step] = val_loss

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Returns for each checkpoint whether it is the best of them; of several the first one."""
        del context
        known = [info.step for info in checkpoints if info.step in self.losses]
        best = min(known, key=self.losses.__getitem__, default=None)
        return [info.step == best for info in checkpoints]


class _Always:
    """Keeps the checkpoints of the given steps."""

    def __init__(self, steps: Collection[int]) -> None:
        self.steps = frozenset(steps)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Returns for each checkpoint whether it is of one of the steps."""
        del context
        return [info.step in self.steps for info in checkpoints]


class Checkpoints:
    """The checkpoints of one run directory: the last `keep`, the best by validation loss, and those of `always`.

    Saving is asynchronous; `close` waits. A checkpoint being written has a temporary name, so that a killed run leaves
    only complete ones.
    """

    def __init__(
        self, workdir: str | Path, keep: int = 2, read_only: bool = False, always: Collection[int] = ()
    ) -> None:
        folder = (Path(workdir) / "checkpoints").resolve()
        self.folder = folder
        self.best = _Best(folder)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(n=keep), self.best, _Always(always)]),
            read_only=read_only,
            create=not read_only,
            cleanup_tmp_directories=not read_only,  # of a killed process
            enable_async_checkpointing=not read_only,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.manager = ocp.CheckpointManager(folder, options=options, item_handlers=_handlers(folder.parent))

    def refuse_others(self, step: int, params: Any, opt_state: Any, expected: Mapping[str, Any]) -> None:
        """Checks that a checkpoint is of this run's model and optimizer, before it is restored.

        Args:
            step: the checkpoint's.
            params: the (abstract) trees to restore into.
            opt_state: likewise.
            expected: the run's `identity`, compared with the checkpoint's own where it has one.

        Raises:
            UserError: it is of another model.
        """
        integrity.check(self.folder / str(step))
        place = f"{self.folder / str(step)}: is not a checkpoint of this run"
        for item, tree in (("params", params), ("opt_state", opt_state)):
            there, here = self.shapes(step, item), {name: tuple(leaf.shape) for name, leaf in flat(tree).items()}
            other = next((name for name in sorted({*there, *here}) if there.get(name) != here.get(name)), None)
            if other is not None:
                raise UserError(
                    f"{place}: {item} {other} has shape {there.get(other, 'nothing')} there, by config.json "
                    f"{here.get(other, 'nothing')}"
                )
        meta = self.manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta
        known = meta.get(IDENTITY) if isinstance(meta, dict) else None
        known = known if isinstance(known, dict) else {}  # of an earlier version
        for name in sorted({*known} & {*expected}):  # a field that only one version has is ignored
            if known[name] != expected[name]:
                raise UserError(
                    f"{place}: it has the same shapes, but was trained with {name} = {known[name]!r}, here "
                    f"{expected[name]!r}"
                )

    def steps(self) -> list[int]:
        """Returns the steps that have a complete checkpoint, in order."""
        return sorted(self.manager.all_steps())

    def save(self, step: int, params: Any, opt_state: Any, meta: dict[str, Any], val_loss: float | None) -> None:
        """Saves a step in the background; a saved step is left unchanged."""
        if step in self.manager.all_steps():
            return
        # The next step donates these buffers, and changes what meta refers to, while they are still being written.
        params, opt_state = jax.tree.map(jnp.copy, (flat(params), flat(opt_state)))
        meta = copy.deepcopy(meta) | {SCORED: val_loss}
        self.best.add(step, val_loss)
        self.manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(params),
                opt_state=ocp.args.StandardSave(opt_state),
                meta=ocp.args.JsonSave(meta),
                checksums=integrity.ChecksumsArgs(),
            ),
        )

    def save_params(self, step: int, params: Any, meta: dict[str, Any]) -> None:
        """Saves only parameters: a checkpoint to start another run from, which cannot be continued."""
        items = {"params": ocp.args.StandardSave(flat(params)), "meta": ocp.args.JsonSave(meta)}
        self.manager.save(step, args=ocp.args.Composite(**items, checksums=integrity.ChecksumsArgs()))

    def restore(self, step: int, params: Any, opt_state: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Returns (parameters, optimizer state, meta) of a step, in the shapes of the given (abstract) trees.

        A leaf is placed by its target's `sharding`, and otherwise on the first device, independent of the devices that
        it was saved from, and of their number.

        Raises:
            UserError: it is damaged.
        """
        integrity.check(self.folder / str(step))
        expected = {"params": params, "opt_state": opt_state}
        items = {name: ocp.args.StandardRestore(_targets(tree)) for name, tree in expected.items()}
        result = self.manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore(), **items))
        meta = {name: value for name, value in result.meta.items() if name not in (SCORED, IDENTITY)}
        return unflat(result.params, params), unflat(result.opt_state, opt_state), meta

    def restore_params(self, step: int, params: Any) -> Any:
        """Returns only the parameters of a step, in the shapes of the given (abstract) tree.

        Raises:
            UserError: they are damaged, or have other shapes: config.json is not the one they were trained with.
        """
        integrity.check(self.folder / str(step), ("params",))
        there = self.shapes(step)
        for name, expected in flat(params).items():
            if there.get(name) != expected.shape:
                raise UserError(
                    f"{self.folder.parent / 'config.json'}: does not fit the checkpoint of step {step}: {name} has "
                    f"shape {there.get(name, 'nothing')}, by config.json {expected.shape}"
                )
        result = self.manager.restore(step, args=ocp.args.Composite(params=ocp.args.StandardRestore(_targets(params))))
        return unflat(result.params, params)

    def shapes(self, step: int, item: str = "params") -> dict[str, tuple[int, ...]]:
        """Returns {dotted path: shape} of the saved parameters (or `opt_state`), read from their metadata."""
        with ocp.StandardCheckpointer() as reader:
            tree = reader.metadata(self.folder / str(step) / item).item_metadata.tree
        return {name: tuple(leaf.shape) for name, leaf in flat(tree).items()}

    def close(self) -> None:
        """Waits for running writes."""
        self.manager.wait_until_finished()
        self.manager.close()


def identity(config: ConfigDict) -> dict[str, Any]:
    """Returns what a run is trained as: the fields of its model, seed, optimizer and data that a resumed run may not
    change, except paths."""
    plain = json.loads(json.dumps(fields.flatten(config), default=lambda node: node.to_dict()))
    return {
        name: value
        for name, value in plain.items()
        if name.startswith(TRAINED_AS) and not fields.resumable(name) and name not in PLACES
    }


def _handlers(workdir: Path) -> dict[str, Any]:
    arrays = {name: ocp.StandardCheckpointHandler() for name in ("params", "opt_state")}
    return {
        **arrays,
        "meta": ocp.JsonCheckpointHandler(),
        integrity.ITEM: integrity.Checksums(workdir),
    }  # last


def _targets(tree: Any) -> dict[str, jax.ShapeDtypeStruct]:
    # Orbax would otherwise restore to the devices it saved from, which may not exist here: every target has its
    # placement.
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def target(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None) or here)

    return {name: target(x) for name, x in flat(tree).items()}


def saved(workdir: str | Path) -> list[int]:
    """Returns the steps of a run directory's checkpoints, in order, without opening them."""
    folder = Path(workdir) / "checkpoints"
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []


def newest(workdir: str | Path, step: int | None = None) -> int:
    """Returns the step to restore: the requested one, or the newest.

    Raises:
        UserError: there is no (such) checkpoint.
    """
    result = saved(workdir)
    if not result:
        raise UserError(f"{workdir}: has no checkpoint")
    if step is not None and step not in result:
        raise UserError(f"{workdir}: has no checkpoint of step {step}; available: {', '.join(map(str, result))}")
    return result[-1] if step is None else step
