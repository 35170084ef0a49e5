"""The columns of the table: what must hold of every switch, each as one error and one tolerance."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from configs.errors import ConfigError
from eval.equivalence.rows import distance, named
from eval.equivalence.setting import acting
from models import initial, positions
from models.declared import positions as positions_declared
from models.decoding import decode
from models.pattern import plans
from tests.switches import cases, oracle, written
from training.step.loss import loss_sum

FAR = 100_000  # the position at which bfloat16 knows multiples of 512 alone
FAR_BASE = 8192.0  # of xPos, whose reach is 32 bases


@dataclasses.dataclass(frozen=True)
class Cell:
    """One error, or the reason why there is none."""

    error: float | None = None
    tolerance: float = 0.0
    reason: str | None = None

    @property
    def holds(self) -> bool:
        """Whether the error is within its tolerance, or there is nothing to hold; a NaN never is."""
        return self.reason is not None or (self.error is not None and self.error <= self.tolerance)


class Subject:
    """A case's model, its parameters twice (float32, and float64 for the oracle), and tokens."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.model = cases.config_of(name, attention__kernel="reference")
        self.graphdef, params = initial.initialise(self.model, 0)
        self.params = acting(params)
        self.exact = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(self.params))
        self.tokens, self.targets = self.drawn(cases.LENGTH)
        self.wanted = self.of(self.tokens)
        self._found: dict[tuple[str, int], Any] = {}

    def drawn(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns tokens and targets, int32 [B, length]."""
        shape = (2, cases.BATCH, length)
        tokens, targets = np.random.default_rng(1).integers(0, self.model.vocab_size, shape, dtype=np.int32)
        return tokens, targets

    def of(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the oracle's logits [B, T, V]."""
        return np.stack([oracle.logits(self.model, self.exact, row) for row in tokens])

    def found(self, kernel: str, length: int) -> tuple[Any, Any]:
        """Returns the model's logits and gradients under a core, over `drawn(length)`.

        Raises:
            ConfigError: the core cannot do it.
        """
        if (kernel, length) not in self._found:
            graphdef = initial.abstract(cases.config_of(self.name, attention__kernel=kernel))[0]
            tokens, targets = map(jnp.asarray, self.drawn(length))

            def loss(params: Any) -> Any:
                logits = nnx.merge(graphdef, params)(tokens)
                weights = jnp.ones(targets.shape) / targets.size
                return loss_sum(logits, targets, weights)[0], logits

            gradients, logits = jax.jit(jax.grad(loss, has_aux=True))(self.params)
            self._found[kernel, length] = logits, nnx.to_pure_dict(gradients)
        return self._found[kernel, length]


def forward(subject: Subject) -> Cell:
    """The logits against the formulas in float64."""
    return _apart(subject.found("reference", cases.LENGTH)[0], subject.wanted, 2e-5)


def backward(subject: Subject) -> Cell:
    """The gradient of the loss along a random direction of each parameter, against the oracle's finite differences."""
    gradients, params = named(subject.found("reference", cases.LENGTH)[1]), named(subject.exact)
    rng, step = np.random.default_rng(2), 1e-5
    ours, theirs = {}, {}
    for name, leaf in params.items():
        direction = rng.standard_normal(leaf.shape)
        ahead, behind = (_loss_moved(subject, name, sign * step * direction) for sign in (1, -1))
        theirs[name] = np.array((ahead - behind) / (2 * step))
        ours[name] = np.sum(np.asarray(gradients[name], np.float64) * direction)
    return Cell(distance(ours, theirs)[1], 2e-3)


def _loss_moved(subject: Subject, name: str, by: np.ndarray) -> float:
    """Returns the oracle's loss with one parameter moved."""

    def move(path: Any, leaf: np.ndarray) -> np.ndarray:
        return leaf + by if ".".join(str(part.key) for part in path) == name else leaf

    moved = jax.tree_util.tree_map_with_path(move, subject.exact)
    return oracle.loss(subject.model, moved, subject.tokens, subject.targets)


def decoded(subject: Subject) -> Cell:
    """Prefill and one-token steps through the KV cache against the formulas over the tokens so far.

    Where a scaling changes with the length, those are other frequencies at each step.
    """
    prompt = cases.ORIGINAL - 2
    cache = nnx.merge(subject.graphdef, subject.params).cache(cases.BATCH, cases.LENGTH)
    logits, cache = decode.prefill(subject.graphdef, subject.params, cache, subject.tokens[:, :prompt])
    results = [logits]
    for at in range(prompt, cases.LENGTH):
        logits, cache = decode.step(subject.graphdef, subject.params, cache, subject.tokens[:, at])
        results.append(logits)
    lengths = range(prompt, cases.LENGTH + 1)
    expected = [subject.of(subject.tokens[:, :length])[:, -1] for length in lengths]
    return _apart(np.stack(results, 1), np.stack(expected, 1), 2e-5)


def packed(subject: Subject) -> Cell:
    """Two documents and padding in one row, against the formulas over each document by itself."""
    cut, end = 9, cases.LENGTH - 2
    at = np.array([[*range(cut), *range(end - cut), 0, 0]], np.int32)
    segments = np.array([[1] * cut + [2] * (end - cut) + [0, 0]], np.int32)
    model = nnx.merge(subject.graphdef, subject.params)
    result = jax.jit(lambda *given: model(*given))(subject.tokens, at, segments)
    expected = np.concatenate([subject.of(subject.tokens[:, :cut]), subject.of(subject.tokens[:, cut:end])], axis=1)
    return _apart(result[:, :end], expected, 2e-5)


def blocked(subject: Subject) -> Cell:
    """The blocked core against the reference in logits and gradients, over more than one block."""
    try:
        ours, theirs = (subject.found(kernel, cases.LONG) for kernel in ("blocked", "reference"))
    except ConfigError as error:
        return Cell(reason=str(error).removeprefix("model.attention.kernel = 'blocked': "))
    errors = distance({"logits": ours[0]}, {"logits": theirs[0]})[1], distance(named(ours[1]), named(theirs[1]))[1]
    return Cell(max(errors), 1e-4)


def far(subject: Subject) -> Cell:
    """What positions do around 100,000 where the model computes in bfloat16, against float64.

    The allowance is the rounding of the result to bfloat16 and that of a float32 angle of 100,000.
    """
    changes: dict[str, Any] = {"position__xpos__base": FAR_BASE} if "xpos" in _kinds(subject.model) else {}
    model = cases.config_of(subject.name, dtype="bfloat16", **changes)
    built = nnx.merge(initial.abstract(model)[0], subject.params)
    cells = []
    for name, (layer, kind) in _schemes(model).items():
        scheme, of_layer = built.schemes[name].layer(0), oracle.with_heads(model, layer)
        cells.append(_turned_far(of_layer, kind, scheme) if "rotate" in scheme.places else None)
        cells.append(_biased_far(of_layer, kind, scheme, subject, name) if "bias" in scheme.places else None)
        cells.append(_embedded_far(of_layer, kind, scheme) if kind == "sinusoidal" else None)
    if model.position.temperature.kind != "none":
        cells.append(_warmed_far(model))
    made = [cell for cell in cells if cell is not None]
    if made:
        return max(made, key=lambda cell: (cell.error or 0.0) / cell.tolerance)
    return Cell(reason=NO_ANGLE[_kinds(model)[0]])


NO_ANGLE = {
    "none": "no positions",
    "learned": "positions are row numbers of a table: whole numbers, never rounded",
    "cope": "reads no positions: it counts the keys between",
}
PLACES = np.array([FAR - 1003, FAR - 258, FAR - 3, FAR - 2, FAR - 1, FAR])


def _kinds(model: ConfigDict) -> list[str]:
    return [plan.position for plan in plans(model)]


def _schemes(model: ConfigDict) -> dict[str, tuple[int, str]]:
    """Returns the first layer of each scheme, and its kind."""
    return {plan.scheme: (layer, plan.position) for layer, plan in reversed([*enumerate(plans(model))])}


def _turned_far(model: ConfigDict, kind: str, scheme: positions.Scheme) -> Cell:
    dims = written.width_of_turn(model)
    x = jnp.asarray(np.random.default_rng(3).standard_normal((1, len(PLACES), 2, dims)), jnp.bfloat16)
    given, at, lengths = np.asarray(x[0], np.float64), jnp.asarray(PLACES)[None], jnp.full((1, len(PLACES)), FAR + 1)
    errors = []
    for keys in (False, True):
        result = np.asarray(scheme.rotate(x, at, lengths, keys=keys)[0], np.float64)
        expected = written.turned(model, kind, given, PLACES, FAR + 1, keys=keys)
        errors.append(distance({"x": result}, {"x": expected})[1])
    return Cell(max(errors), 2**-6)


def _biased_far(model: ConfigDict, kind: str, scheme: positions.Scheme, subject: Subject, name: str) -> Cell:
    function, at = scheme.bias(), jnp.asarray(PLACES)[None]
    assert function is not None
    own = subject.exact["schemes"].get(name, {}) if "schemes" in subject.exact else {}
    own = {name: leaf[0] for name, leaf in own.items()} if positions_declared.KINDS[kind].layered else own
    result = np.asarray(function(at, at)[0], np.float64)
    seen = PLACES[:, None] >= PLACES[None, :]
    expected = written.bias(model, kind, own, PLACES, PLACES)
    return _apart(np.where(seen, result, 0), np.where(seen, expected, 0), 2e-5)


def _embedded_far(model: ConfigDict, kind: str, scheme: positions.Scheme) -> Cell:
    zeros = jnp.zeros((1, len(PLACES), model.width), jnp.bfloat16)
    result = scheme.embed(zeros, jnp.asarray(PLACES)[None])[0]
    return _apart(result, written.embedded(model, kind, {}, PLACES), 2**-6)


def _warmed_far(model: ConfigDict) -> Cell:
    heat = positions.temperature_of(model)
    assert heat is not None
    ones = jnp.ones((1, len(PLACES), 1, 1), jnp.bfloat16)
    result = heat(ones, jnp.asarray(PLACES)[None])[0, :, 0, 0]
    return _apart(result, written.temperature(model, "none", PLACES), 2**-8)


def _apart(found: Any, expected: np.ndarray, tolerance: float) -> Cell:
    return Cell(distance({"x": found}, {"x": expected})[1], tolerance)


# heading -> function of a subject
COLUMNS: dict[str, Callable[[Subject], Cell]] = {
    "forward": forward,
    "backward": backward,
    "decode = forward": decoded,
    "packed = separate": packed,
    "blocked = reference": blocked,
    "bf16 at 100,000": far,
}
