"""Several runs in one program: runs of equal shapes that differ in seed, learning rate or weight decay.

The step of one run is mapped (`jax.vmap`) over a pack of them, each with its own parameters, batch, key, learning rate
and weight decay. Everything else belongs to each run as if it trained alone: data, metrics, evaluation, checkpoints,
run.json. A run that diverges is no longer updated, and the others continue; runs that stopped at different steps wait
for the one that is furthest behind.
"""

import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict

from configs import fields, validate
from configs.errors import UserError
from training.loop import after_step, ending, pack_compat, prepare, start
from training.loop.state import Run, Stretch
from training.run_directory.run_lock import exclusive, stop_signals
from training.runtime.compilation import enable_cache
from training.step import optimizer, train_step
from training.step.rng import root_key


def train(
    configs: Sequence[ConfigDict], workdirs: Sequence[str | Path], *, quiet: bool = False
) -> list[dict[str, Any]]:
    """Trains configs into run directories, in one program, or continues existing ones.

    Args:
        configs: of compatible runs (`pack_compat.key`), unresolved or resolved.
        workdirs: one for each; created if absent. A finished run is skipped.
        quiet: no progress output.

    Returns:
        Each run.json's content; `status` is done, diverged, preempted or failed.

    Raises:
        UserError: the configs are incompatible or refused, a directory has another run, or another process trains
            there.
    """
    configs = [validate.resolve(config) for config in configs]
    keys = {pack_compat.key(config) for config in configs}
    if len(keys) != 1 or None in keys:
        raise UserError("runs of one program may differ only in seed, learning rate and weight decay (0 or not)")
    enable_cache()
    with ExitStack() as held:
        ready = []
        for config, given in zip(configs, workdirs, strict=True):
            workdir = Path(given).absolute()
            workdir.mkdir(parents=True, exist_ok=True)
            held.enter_context(exclusive(workdir))
            ready.append((config, workdir))
        prepared = [prepare.ready(config, workdir, quiet=quiet) for config, workdir in ready]
        together([run for run in prepared if isinstance(run, Run)])
        return [run.record.values if isinstance(run, Run) else run for run in prepared]


@dataclass(frozen=True)
class _Part:
    """A run's number of those that a step returned for all of them, read when it is asked for."""

    values: Array
    index: int

    def __float__(self) -> float:
        return float(np.asarray(self.values)[self.index])


@dataclass
class Pack:
    """Runs that take their steps together.

    Attributes:
        members: by their place in the state.
        live: those of them that still train.
        state: (parameters, optimizer state) of all, with a leading axis of runs.
        keys: each one's root key.
    """

    members: list[Run]
    live: list[Run]
    state: Any
    keys: list[Array]


def together(runs: Sequence[Run]) -> None:
    """Trains prepared runs to their ends; each one's run.json says how it ended."""
    live = list(runs)
    for run in runs:
        _attempt(live, run, functools.partial(start.begin, run))
    if not live:
        return
    pack = _packed(live)
    try:
        with stop_signals() as caught:
            loop(pack, caught)
    except Exception as error:
        for run in pack.live:
            ending.end_by(run, error)
        raise


def _packed(runs: list[Run]) -> Pack:
    """Moves the state of runs that have begun into a pack."""
    state = _stacked([(run.state.params, run.state.opt_state) for run in runs])
    names = [run.plan.workdir.parent.name + "/" + run.plan.workdir.name for run in runs]
    for run in runs:
        run.state.params = run.state.opt_state = None
        run.record.update(packed_with=[name for name in names if not str(run.plan.workdir).endswith(name)])
        run.stretch = Stretch()
    return Pack(runs, list(runs), state, [root_key(run.plan.config.seed) for run in runs])


def _attempt(live: list[Run], run: Run, act: Callable[[], Any]) -> None:
    """Does something for one run; where that ends the run, the others continue."""
    try:
        act()
    except Exception as error:
        live.remove(run)
        ending.end_by(run, error)


@contextmanager
def _own_state(pack: Pack, run: Run) -> Iterator[None]:
    """Gives a run its slice of the pack's state, for what reads or saves it between steps."""
    run.state.params, run.state.opt_state = _sliced(pack.state, pack.members.index(run))
    try:
        yield
    finally:
        run.state.params = run.state.opt_state = None


def _done(pack: Pack, run: Run) -> None:
    pack.live.remove(run)
    with suppress(UserError):  # run.json says that it failed while it ended
        ending.end(run, "done", None)


def loop(pack: Pack, caught: list[int]) -> None:
    """Steps until every run's budget is spent, or a signal stops them."""
    for run in [run for run in pack.live if run.plan.budget.finished(run.state.spent)]:
        _done(pack, run)
    while pack.live:
        if caught:
            for run in list(pack.live):
                _attempt(pack.live, run, functools.partial(_stop, pack, run, caught[0]))
            return
        at = min(run.state.spent.steps for run in pack.live)
        step(pack, [run for run in pack.live if run.state.spent.steps == at])


def _stop(pack: Pack, run: Run, number: int) -> None:
    with _own_state(pack, run):
        ending.stop(run, number)


def step(pack: Pack, moving: list[Run]) -> None:
    """Takes one step of the runs that are furthest behind; the others' slices stay as they are."""
    update, size = moving[0].state.spent.steps + 1, len(pack.members)
    places = {pack.members.index(run): run for run in moving}
    batches = {at: next(run.stream) for at, run in places.items()}
    rates = {at: run.plan.rate(update, run.plan.budget.progress(run.state.spent)) for at, run in places.items()}
    # A run that does not move is given what another one is, and what comes of it is thrown away.
    some = next(iter(places))
    filled = [at if at in places else some for at in range(size)]
    first = batches[some]
    batch = {name: np.stack([batches[at][name] for at in filled]) for name in first}
    program = _program(pack, moving, batch)
    began = time.perf_counter()
    optimizers = [pack.members[at].plan.config.optimizer for at in filled]
    pack.state, losses, norms = program(
        pack.state,
        batch,
        np.stack([optimizer.rates(own, rates[at]) for own, at in zip(optimizers, filled, strict=True)]),
        np.asarray([own.weight_decay for own in optimizers], np.float32),
        jnp.stack([jax.random.fold_in(pack.keys[at], update) for at in filled]),
        np.asarray([at in places for at in range(size)]),
    )
    seconds = (time.perf_counter() - began) / len(moving)
    for at, run in places.items():
        given = (_Part(losses, at), _Part(norms, at), rates[at], first["tokens"].shape, seconds)
        _attempt(pack.live, run, functools.partial(_stepped, pack, run, *given))
        if run in pack.live and run.plan.budget.finished(run.state.spent):
            _done(pack, run)


def _stepped(pack: Pack, run: Run, loss: Any, norm: Any, rate: float, shape: tuple[int, int], seconds: float) -> None:
    after_step.count(run, loss, norm, shape, seconds)
    now = after_step.due(run)
    if any(now):
        with _own_state(pack, run):
            after_step.follow_up(run, now, rate, norm, shape[1])


def _program(pack: Pack, moving: list[Run], stacked: dict[str, np.ndarray]) -> Any:
    """Returns the compiled step of a pack, for a stacked batch."""
    shapes = tuple((name, x.shape, str(x.dtype)) for name, x in sorted(stacked.items()))
    began, config, size = time.perf_counter(), moving[0].plan.config, len(pack.members)
    key = (_text(config), (size, shapes))
    if key in _COMPILED:
        return _COMPILED[key]
    decays = jax.ShapeDtypeStruct((size,), jnp.float32)
    rates = jax.ShapeDtypeStruct((size, *optimizer.rates_shape(config.optimizer)), jnp.float32)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), size))
    flags = jax.ShapeDtypeStruct((size,), jnp.bool_)
    _COMPILED[key] = jitted(config).lower(pack.state, stacked, rates, decays, keys, flags).compile()
    for run in moving:
        run.state.compile_seconds += (time.perf_counter() - began) / len(moving)
        run.stretch = Stretch()
    return _COMPILED[key]


_COMPILED: dict[tuple[str, Any], Any] = {}


def _text(config: ConfigDict) -> str:
    """Returns the static fields of a pack's program as JSON; of numbers that are arguments, whether they are 0."""
    return json.dumps(fields.program_values(config, packed=True), sort_keys=True)


def jitted(config: ConfigDict) -> Any:
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
