"""Several runs in one program: seeds, learning rates and weight decays of one shape take their steps together.

The step of one run is mapped (`jax.vmap`) over a pack of them, each with its own parameters, batch, key, learning rate
and weight decay. All the rest is each run's own, as if it trained alone: data, metrics, evaluation, checkpoints,
run.json. A run that diverges is no longer updated, the others go on; runs that stopped at different steps wait for the
one that is furthest behind.
"""

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict

from configs import fields, validate
from configs.errors import UserError
from training.loop import pack_compat
from training.loop.trainer import Preempted, _Training
from training.loop.watch import Diverged
from training.run_directory.run_lock import exclusive, stop_signals
from training.runtime import failures
from training.runtime.compilation import enable_cache
from training.step import optimizer, train_step
from training.step.rng import root_key


def train(
    configs: Sequence[ConfigDict], workdirs: Sequence[str | Path], *, quiet: bool = False
) -> list[dict[str, Any]]:
    """Trains configs into run directories, in one program, or continues those that are there.

    Args:
        configs: of runs that are alike (`alike.key`), as config files give them, or resolved.
        workdirs: one for each; made if absent. A finished run is left as it is.
        quiet: no progress output.

    Returns:
        Each run.json's content; `status` is done, diverged, preempted or failed.

    Raises:
        UserError: the configs are not alike or refused, a directory holds another run, or somebody else trains there.
    """
    configs = [validate.resolve(config) for config in configs]
    keys = {pack_compat.key(config) for config in configs}
    if len(keys) != 1 or None in keys:
        raise UserError("runs of one program may differ in seed, learning rate and weight decay alone (0 or not)")
    enable_cache()
    with ExitStack() as held:
        members = []
        for config, given in zip(configs, workdirs, strict=True):
            workdir = Path(given).absolute()
            workdir.mkdir(parents=True, exist_ok=True)
            held.enter_context(exclusive(workdir))
            members.append(_Member(config, workdir, quiet, None))
        return _Pack(members).run()


@dataclasses.dataclass(frozen=True)
class _Part:
    """A run's number of those that a step gave for all of them, read when it is asked for."""

    values: Array
    index: int

    def __float__(self) -> float:
        return float(np.asarray(self.values)[self.index])


class _Member(_Training):
    """One run of a pack: its parameters and optimizer state are a slice of the pack's."""

    slices: Callable[[], tuple[Any, Any]] | None = None
    _params: Any = None
    _opt_state: Any = None

    @property
    def params(self) -> Any:
        """The run's own parameters."""
        return self._params if self.slices is None else self.slices()[0]

    @params.setter
    def params(self, value: Any) -> None:
        self._params = value

    @property
    def opt_state(self) -> Any:
        """The run's own optimizer state."""
        return self._opt_state if self.slices is None else self.slices()[1]

    @opt_state.setter
    def opt_state(self, value: Any) -> None:
        self._opt_state = value

    def begin(self) -> None:
        """Makes or restores the run's state."""
        self._start()
        self.key = root_key(self.config.seed)
        self.window, self.clocked = (time.perf_counter(), 0), False

    def stop(self, number: int) -> None:
        """Saves the run.

        Raises:
            Preempted: always.
        """
        self._flush()
        self._save(self.val_loss)
        raise Preempted(number)

    def over(self, error: BaseException) -> None:
        """Records how the run ended, but for its success."""
        if isinstance(error, Diverged | Preempted):
            self._end("diverged" if isinstance(error, Diverged) else "preempted", str(error))
            return
        message = self.place.failure(error) or failures.named(error)
        self._end("failed", message)
        self.record.values |= {"status": "failed", "error": message}  # nothing is written where the directory has gone


class _Pack:
    """One call of `train`: the runs, and their state as one tree with a leading axis of runs."""

    def __init__(self, members: Sequence[_Member]) -> None:
        self.members, self.live = list(members), list[_Member]()

    def run(self) -> list[dict[str, Any]]:
        """Prepares, trains, and records how each run ended."""
        finished = {}
        for member in self.members:
            if (done := member._ready()) is not None:
                finished[member.workdir] = done
            else:
                self.live.append(member)
        for member in list(self.live):
            self._try(member, member.begin)
        if self.live:
            self._together()
        return [finished.get(member.workdir) or member.record.values for member in self.members]

    def _together(self) -> None:
        self.places = {member.workdir: index for index, member in enumerate(self.live)}
        self.size = len(self.live)
        self.state = _stacked([(member._params, member._opt_state) for member in self.live])
        for member in self.live:
            member.slices = functools.partial(self._slice, self.places[member.workdir])
            member._params = member._opt_state = None
            members = [other.workdir.parent.name + "/" + other.workdir.name for other in self.live]
            member.record.update(packed_with=[name for name in members if not str(member.workdir).endswith(name)])
        try:
            with stop_signals() as caught:
                self._loop(caught)
        except Exception as error:
            for member in self.live:
                member.over(error)
            raise

    def _slice(self, index: int) -> Any:
        return _sliced(self.state, index)

    def _try(self, member: _Member, act: Callable[[], Any]) -> None:
        """Does something for one run; where that ends the run, the others go on."""
        try:
            act()
        except Exception as error:
            self.live.remove(member)
            member.over(error)

    def _loop(self, caught: list[int]) -> None:
        for member in [member for member in self.live if member.budget.finished(member.spent)]:
            self._done(member)
        while self.live:
            if caught:
                for member in list(self.live):
                    self._try(member, functools.partial(member.stop, caught[0]))
                return
            at = min(member.spent.steps for member in self.live)
            self._step([member for member in self.live if member.spent.steps == at])

    def _step(self, moving: list[_Member]) -> None:
        """Takes one step of the runs that are furthest behind; the others' slices stay as they are."""
        update = moving[0].spent.steps + 1
        taken = {self.places[member.workdir]: (member, next(member.stream)) for member in moving}
        rates = {at: member.rate(update, member.budget.progress(member.spent)) for at, (member, _) in taken.items()}
        # A run that does not move is given what another one is, and what comes of it is thrown away.
        some = next(iter(taken))
        filled = [at if at in taken else some for at in range(self.size)]
        first = taken[some][1]
        batch = {name: np.stack([taken[at][1][name] for at in filled]) for name in first}
        program = self._program(moving, batch)
        began = time.perf_counter()
        self.state, losses, norms = program(
            self.state,
            batch,
            np.stack([optimizer.rates(taken[at][0].config.optimizer, rates[at]) for at in filled]),
            np.asarray([taken[at][0].config.optimizer.weight_decay for at in filled], np.float32),
            jnp.stack([jax.random.fold_in(taken[at][0].key, update) for at in filled]),
            np.asarray([at in taken for at in range(self.size)]),
        )
        seconds = (time.perf_counter() - began) / len(moving)
        for at, (member, _) in taken.items():
            given = (_Part(losses, at), _Part(norms, at), rates[at], first["tokens"].shape, seconds)
            self._try(member, functools.partial(member._stepped, *given))
            if member in self.live and member.budget.finished(member.spent):
                self._done(member)

    def _program(self, moving: list[_Member], stacked: dict[str, np.ndarray]) -> Any:
        shapes = tuple((name, x.shape, str(x.dtype)) for name, x in sorted(stacked.items()))
        start = time.perf_counter()
        text, names = _text(moving[0].config), (self.size, shapes)
        if (text, names) in _COMPILED:
            return _COMPILED[text, names]
        decays = jax.ShapeDtypeStruct((self.size,), jnp.float32)
        shape = optimizer.rates_shape(moving[0].config.optimizer)
        rates = jax.ShapeDtypeStruct((self.size, *shape), jnp.float32)
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), self.size))
        flags = jax.ShapeDtypeStruct((self.size,), jnp.bool_)
        lowered = step(moving[0].config).lower(self.state, stacked, rates, decays, keys, flags)
        _COMPILED[text, names] = lowered.compile()
        for member in moving:
            member.compile_seconds += (time.perf_counter() - start) / len(moving)
            member._drop_window()
        return _COMPILED[text, names]

    def _done(self, member: _Member) -> None:
        self.live.remove(member)
        member._end("done", None)


_COMPILED: dict[tuple[str, Any], Any] = {}


def _text(config: ConfigDict) -> str:
    """Returns the static fields of a pack's program as JSON; of numbers that are its arguments, whether they are 0."""
    return json.dumps(fields.program_values(config, packed=True), sort_keys=True)


def step(config: ConfigDict) -> Any:
    """Returns the jitted step of a pack of runs of one config.

    It takes ((params, opt_state), batch, rates, decays, keys, active), each with one more leading axis for the runs,
    and returns ((params, opt_state), losses, norms); the first argument is donated.
    """
    return _jitted(_text(config))


@functools.lru_cache(maxsize=8)
def _jitted(text: str) -> Any:
    config = fields.program_config(json.loads(text))

    def one(state: Any, batch: Any, rate: Array, decay: Array, key: Array, active: Array) -> Any:
        params, opt_state, loss, norm = train_step.step_function(config, weight_decay=decay)(*state, batch, rate, key)
        kept = jax.tree.map(lambda new, old: jnp.where(active, new, old), (params, opt_state), state)
        return kept, loss, norm

    return jax.jit(jax.vmap(one), donate_argnums=0)


@jax.jit
def _stacked(states: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


@jax.jit
def _sliced(state: Any, index: int) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), state)
