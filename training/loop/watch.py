"""Optional checks that end a run early, with a reason: `config.watch`. They do not change a run's numbers.

Gradients and losses are checked when the metrics are read anyway, so that no step waits for them; heads and attention
scores at the validation interval, by a separate program. A check that fires ends the run as `diverged`.
"""

import functools
import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from configs import fields
from configs.rules import layers
from models import axes
from models.observed import Layer, observe
from training.run_directory.checkpoint import Checkpoints
from training.step import mesh as meshes
from training.step import train_step as steps

SILENT = 1e-3  # relative to the residual stream's norm: a head that writes less is dead
HELD = 2**24  # scores in memory at once (64 MB)


class Diverged(Exception):
    """The run cannot continue: a loss that is not finite, or a condition of `config.watch`."""


class Spiked(Diverged):
    """The loss of a step rose suddenly; the state before it is worth keeping."""

    def __init__(self, text: str, step: int) -> None:
        super().__init__(text)
        self.step = step


class Watch:
    """Gradient norms and losses since the last check, and the losses that a spike is measured against.

    Attributes:
        keeps: whether the run's state is kept, to be saved after a spike.
    """

    def __init__(self, config: ConfigDict) -> None:
        self.whole, self.config = config, config.watch
        self.probe: Callable[[Any], dict[str, Any]] | None = None
        self.looked: dict[str, Any] = {}
        self.keeps = self.config.loss_spike > 0
        self.norms: list[Any] = []  # on the device until they are read
        self.checked = 0  # steps
        self.recent: deque[float] = deque(maxlen=self.config.loss_steps)
        self.snapshots = Snapshots()

    def add(self, norm: Any) -> None:
        """Takes a step's gradient norm, still on the device."""
        if self.config.gradients:
            self.norms.append(norm)

    def prepare(self, batch: Any, mesh: Any) -> None:
        """Takes the validation batch on which heads are checked."""
        self.probe = probe(self.whole, batch, mesh)

    def look(self, params: Any) -> None:
        """Checks every layer's heads, if requested."""
        self.looked = self.probe(params) if self.probe else {}

    @property
    def metrics(self) -> dict[str, Any]:
        """The entries of a metrics line from the last check."""
        return {"attention_logit": max(self.looked["attention_logits"]), **self.looked} if self.looked else {}

    def after(
        self, step: int, evaluated: bool, params: Any, opt_state: Any, meta: Callable[[], dict[str, Any]]
    ) -> None:
        """Judges the check of this step, and copies the run's state, to be saved if the loss rises from here.

        Raises:
            Diverged: see `judge`.
        """
        if evaluated and self.looked:
            judge(self.whole, self.looked, step)
        if self.keeps:
            self.snapshots.take(step, params, opt_state, meta())

    def check(self, last: int, losses: Sequence[float], checkpoints: Checkpoints | None = None) -> None:
        """Checks the new steps.

        Args:
            last: the newest step.
            losses: of the steps up to it; those already checked are left out.
            checkpoints: where the state before a spike is saved; None: it is not.

        Raises:
            Diverged: a gradient is not finite.
            Spiked: a loss is too far above the median of those before it.
        """
        norms, self.norms = [float(norm) for norm in self.norms], []
        for step, norm in enumerate(norms, last - len(norms) + 1):
            if not np.isfinite(norm):
                raise Diverged(f"the gradient's norm became {norm} at step {step} (watch.gradients)")
        if not self.keeps:
            return
        for step, loss in enumerate(losses, last - len(losses) + 1):
            if step <= self.checked or not np.isfinite(loss):  # the loop itself reports those
                continue
            if len(self.recent) == self.recent.maxlen:
                middle = float(np.median(self.recent))
                if loss > middle + self.config.loss_spike:
                    spike = Spiked(
                        f"the training loss rose to {loss:.4f} at step {step}, {loss - middle:.4f} above the median of "
                        f"the {len(self.recent)} steps before (watch.loss_spike = {self.config.loss_spike:g})",
                        step,
                    )
                    if checkpoints is not None:
                        self.snapshots.save_before(spike, checkpoints)
                    raise spike
            self.recent.append(loss)
            self.checked = step

    @property
    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"recent": list(self.recent), "checked": self.checked}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Continues from a checkpoint's state; one written without it has seen nothing."""
        self.recent.extend((state or {}).get("recent", ()))
        self.checked = (state or {}).get("checked", 0)


class Snapshots:
    """The run's state at the last two checks of its losses, on the devices.

    The newest may include the very update whose spike shows one step later, so the one before it is saved then, unless
    the spike came after further steps.
    """

    def __init__(self) -> None:
        self.kept: deque[tuple[int, Any, Any, dict[str, Any]]] = deque(maxlen=2)

    def take(self, step: int, params: Any, opt_state: Any, meta: dict[str, Any]) -> None:
        """Copies the state: the next step donates its buffers."""
        copies = jax.tree.map(jnp.copy, (params, opt_state))
        self.kept.append((step, *copies, json.loads(json.dumps(meta))))

    def save_before(self, spike: Spiked, checkpoints: Checkpoints) -> NoReturn:
        """Saves the state before a spike, unless a checkpoint is as new, and ends the run.

        Raises:
            Diverged: with the checkpoint.
        """
        kept = self.before(spike.step)
        newest = max(checkpoints.steps(), default=-1)
        if kept is not None and kept[0] > newest:
            checkpoints.save(*kept, None)
            newest = kept[0]
        where = f"; the checkpoint of step {newest} is from before it" if newest >= 0 else ""
        raise Diverged(f"{spike}{where}") from None

    def before(self, step: int) -> tuple[int, Any, Any, dict[str, Any]] | None:
        """Returns the newest state that is at least two updates older than a step's loss, or None."""
        return next((one for one in reversed(self.kept) if one[0] < step - 1), None)


def probe(config: ConfigDict, batch: Any, mesh: Any = None) -> Callable[[Any], dict[str, Any]] | None:
    """Returns `looked(params)`, which checks every layer's heads on one validation batch; None: not requested.

    It returns `attention_logits`, the largest score in the softmax of each layer (which grows without bound before some
    runs diverge: Wortsman et al. 2023, arXiv 2309.14322, section 3.1), and `silent_heads`, how many heads write less
    than a thousandth of the residual stream's norm.
    """
    if not (config.watch.attention_logit or config.watch.dead_heads):
        return None
    plain = fields.from_dict({"model": fields.to_dict(config)["model"]})
    function = _probe(json.dumps(fields.to_dict(plain), sort_keys=True), mesh)
    rows = {name: batch[name] for name in ("tokens", "positions", "segments") if name in batch}
    real = batch["segments"] > 0 if "segments" in batch else np.ones(batch["tokens"].shape, bool)
    ready = meshes.whole_batch(meshes.rules_of(config, mesh), {**rows, "real": real})

    def looked(params: Any) -> dict[str, Any]:
        logit_L, written = (np.asarray(x, np.float64) for x in function(params, ready))
        return {"attention_logits": logit_L.tolist(), "silent_heads": int((written < SILENT).sum())}

    return looked


def judge(config: ConfigDict, results: dict[str, Any], step: int) -> None:
    """Ends the run if a result of `probe` exceeds its limit.

    Raises:
        Diverged: with the layer, or the number of heads.
    """
    watch, logits = config.watch, results["attention_logits"]
    if watch.attention_logit and not max(logits) < watch.attention_logit:
        layer = int(np.argmax(logits))
        raise Diverged(
            f"the largest attention score of layer {layer} is {logits[layer]:.4g} at step {step} "
            f"(watch.attention_logit = {watch.attention_logit:g})"
        )
    heads = sum(of.num_heads for of in layers.heads(config.model))
    if watch.dead_heads and results["silent_heads"] > watch.dead_heads * heads:
        raise Diverged(
            f"{results['silent_heads']} of {heads} heads write nothing at step {step} "
            f"(watch.dead_heads = {watch.dead_heads:g})"
        )


@functools.lru_cache(maxsize=8)
def _probe(text: str, mesh: Any) -> Any:
    config = fields.from_dict(json.loads(text))
    graphdef, rules = steps.abstract(config).graphdef, meshes.rules_of(config, mesh)

    def looked(params: Any, batch: Any) -> tuple[Array, Array]:
        model = nnx.merge(graphdef, params)
        look = functools.partial(_layer, real_BT=batch["real"])
        with axes.following(rules):
            result = observe(model, batch["tokens"], batch.get("positions"), batch.get("segments"), look=look)[1]
        return jnp.stack([logit for logit, _ in result]), jnp.concatenate([written for _, written in result])

    return jax.jit(looked, out_shardings=None if rules is None else meshes.whole(rules))


def _layer(layer: Layer, real_BT: Array) -> tuple[Array, Array]:
    """Returns the largest score of any query and key, and each head's mean norm over the stream's, [H]."""
    batch, length, heads, _ = layer.q_BTHK.shape
    most = max(1, HELD // (batch * heads * length))
    size = max(n for n in range(1, min(most, length) + 1) if length % n == 0)

    def piece(at: Array) -> tuple[Array, Array, Array]:
        real = jnp.take(real_BT, at, axis=1)
        scores = jnp.where(real[:, None, :, None], layer.maps(at)[0], -jnp.inf)
        norms = jnp.linalg.norm(layer.written(at), axis=-1)
        stream = jnp.linalg.norm(jnp.take(layer.x_BTD, at, axis=1).astype(jnp.float32), axis=-1)
        sums = jnp.sum(jnp.where(real[..., None], norms, 0), (0, 1)), jnp.sum(jnp.where(real, stream, 0))
        return jnp.max(scores), *sums

    logits, written, streams = jax.lax.map(piece, jnp.arange(length).reshape(-1, size))
    return jnp.max(logits), written.sum(0) / jnp.maximum(streams.sum(), 1e-30)
