"""A run while it trains: what is settled before its first step, what a checkpoint holds, and what it writes to."""

import dataclasses
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jax.sharding import Mesh
from ml_collections import ConfigDict

from configs.rules import growth
from data.pipeline import Share, Stage, TrainStream, stages
from models import counting
from models.axes import Rules
from training.loop.metrics import Console, MetricsLog, NoLog
from training.loop.watch import Watch
from training.run_directory.checkpoint import IDENTITY, Checkpoints, identity
from training.run_directory.record import Record
from training.run_directory.run_lock import Place
from training.step import schedule, train_step
from training.step.budget import Budget, Spent


@dataclass(frozen=True)
class Plan:
    """What a run will do; no step changes it.

    Attributes:
        config: resolved, with the vocabulary's size.
        share: the rows of every batch that this process needs.
        corpus: None where no text is read.
        tokenizer: None where the run neither reads nor writes words.
        main: whether this process writes the run's files.
    """

    config: ConfigDict
    workdir: Path
    mesh: Mesh | None
    rules: Rules | None
    share: Share
    corpus: Any
    tokenizer: Any
    main: bool

    @functools.cached_property
    def stages(self) -> list[Stage]:
        """The stages of the data."""
        return stages(self.config)

    @functools.cached_property
    def by_window(self) -> list[ConfigDict]:
        """The config that trains in each stage of a growing window; the last is the run's own."""
        count = len(self.config.model.attention.window_stages)
        return [*(growth.at_stage(self.config, stage) for stage in range(count)), self.config]

    @functools.cached_property
    def program_keys(self) -> list[str]:
        """The key of the compiled step in each stage of the window."""
        return [train_step.shaping(config) for config in self.by_window]

    @functools.cached_property
    def flops_per_token(self) -> list[list[float]]:
        """FLOPs by stage of the window and stage of the data."""
        return [
            [counting.flops_per_token(config.model, stage.length)["value"] for stage in self.stages]
            for config in self.by_window
        ]

    def budget_of(self, amount: float) -> Budget:
        """Returns the budget of an amount over this run's stages."""
        spans = growth.lasting(self.config, self.stages)
        lasting = [dataclasses.replace(self.stages[data], steps=steps) for steps, data, _ in spans]
        per_token = [self.flops_per_token[window][data] for _, data, window in spans]
        return Budget(self.config.budget.kind, amount, lasting, per_token)

    @functools.cached_property
    def budget(self) -> Budget:
        """How long the run trains."""
        return self.budget_of(self.config.budget.amount)

    @functools.cached_property
    def rate(self) -> Callable[[int, float], float]:
        """The learning rate of an update at a progress, see `schedule.learning_rate`."""
        return schedule.learning_rate(self.config.optimizer, self.budget)

    @property
    def clocked(self) -> bool:
        """Whether the seconds of every step count, so that each is waited for."""
        return self.config.budget.kind == "seconds"


@dataclass
class State:
    """What a checkpoint holds, and what a resumed run continues from.

    Attributes:
        params, opt_state: trees of arrays; None before `start.begin` and, in a pack, between its steps.
        pending: losses since the last line of metrics, on the device until they are read.
        best_val_loss: the lowest finite one.
        val_loss: the newest.
        lines: of metrics.jsonl that the checkpoint knows of.
    """

    params: Any = None
    opt_state: Any = None
    spent: Spent = field(default_factory=Spent)
    pending: list[Any] = field(default_factory=list)
    best_val_loss: float | None = None
    val_loss: float | None = None
    compile_seconds: float = 0.0
    eval_seconds: float = 0.0
    lines: int = 0


@dataclass
class Stretch:
    """Tokens and seconds since the last line of metrics: what `tokens_per_second` is measured over."""

    began: float = field(default_factory=time.perf_counter)
    tokens: int = 0
    eval_seconds: float = 0.0

    def speed(self) -> float:
        """Returns tokens per second, evaluation left out."""
        return self.tokens / max(time.perf_counter() - self.began - self.eval_seconds, 1e-9)


@dataclass(eq=False)
class Run:
    """One run that trains in this process: its plan, its state and what it writes to.

    Attributes:
        before: run.json of the processes that trained it before; empty for a new run.
        kept: steps whose checkpoints are kept, for branches of these budgets.
        branch_at: the step of `init_from` that a branch continues; None: it is no branch, or has begun.
        started: when this process began, on the performance counter.
        closing: called with the status at the end, in order.
        checkpoints, log, watch, validate, peak: set by `start.begin`. `validate` returns the loss of parameters;
            `peak` is the devices' FLOPs a second, 0 where it is not known.
    """

    plan: Plan
    stream: TrainStream
    record: Record
    place: Place
    console: Console
    before: dict[str, Any]
    kept: dict[int, float]
    branch_at: int | None
    started: float
    state: State = field(default_factory=State)
    stretch: Stretch = field(default_factory=Stretch)
    closing: list[Callable[[str], None]] = field(default_factory=list)
    checkpoints: Checkpoints = field(init=False)
    log: MetricsLog | NoLog = field(init=False)
    watch: Watch = field(init=False)
    validate: Callable[[Any], float] = field(init=False)
    peak: float = field(init=False)

    def wall_time(self) -> dict[str, float]:
        """Returns the seconds of compiling, training and evaluating, and of all processes in total."""
        total = self.before.get("wall_time", {}).get("total", 0.0) + time.perf_counter() - self.started
        state = self.state
        parts = {"compile": state.compile_seconds, "train": state.spent.seconds, "eval": state.eval_seconds}
        return {**parts, "total": total}

    def meta(self) -> dict[str, Any]:
        """Returns what a checkpoint holds beside arrays, as JSON can say it once the losses are read."""
        state, config = self.state, self.plan.config
        return {
            "spent": vars(state.spent),
            "pending": state.pending,
            "best_val_loss": state.best_val_loss,
            "val_loss": state.val_loss,
            "compile_seconds": state.compile_seconds,
            "eval_seconds": state.eval_seconds,
            "rng": {"seed": config.seed, "step": state.spent.steps},
            "data": self.stream.get_state(),
            "lines": self.log.lines,
            "watch": self.watch.state,
            IDENTITY: identity(config),
        }

    def restore(self, params: Any, opt_state: Any, meta: dict[str, Any]) -> None:
        """Takes a checkpoint's arrays and its `meta`, of this version or an earlier one."""
        self.state = State(
            params,
            opt_state,
            spent=Spent(**meta["spent"]),
            pending=meta["pending"],
            best_val_loss=meta["best_val_loss"],
            val_loss=meta["val_loss"],
            compile_seconds=meta["compile_seconds"],
            eval_seconds=meta["eval_seconds"],
            lines=meta.get("lines", 0),
        )
        self.watch.restore(meta.get("watch"))
        self.stream.set_state(meta["data"])
        self.console.say(f"continuing at step {self.state.spent.steps}")
