"""The training loop: one config in, one run directory out, and the same directory again continues it exactly."""

import dataclasses
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

import data as data_room
from configs import environment, fields, provenance, validate
from configs.errors import ConfigError, UserError
from configs.rules import branches as longer
from configs.rules import growth, tasks
from data import pipeline
from models import counting, initialise
from training.loop import schedule, trackers, validation, watch
from training.loop.budget import Budget, Spent
from training.loop.metrics import Console, MetricsLog, NoLog
from training.run_directory import branches, inherit, integrity
from training.run_directory import record as records
from training.run_directory import run as runs
from training.run_directory.checkpoint import IDENTITY, Checkpoints, identity, saved
from training.run_directory.files import begun, own, write_json
from training.run_directory.run_lock import Place, exclusive, stop_signals
from training.runtime import chips, distributed, failures, memory, partners, settings
from training.runtime.compilation import enable_cache
from training.step import mesh as meshes
from training.step import optimizer, train_step
from training.step.rng import step_keys

FOLDERS = ("checkpoints", "damaged", "eval", "tensorboard", "tokenizer", "wandb")  # that are written into


class Preempted(Exception):
    """The run was told to stop; what it had is saved. `signal` is the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


def train(config: ConfigDict, workdir: str | Path, *, quiet: bool = False) -> dict[str, Any]:
    """Trains a config into a run directory, or continues the one that is there.

    Args:
        config: as a config file gives it, or resolved.
        workdir: made if absent. A finished run is left as it is.
        quiet: no progress output.

    Returns:
        run.json's content; its `status` is done, diverged or preempted.

    Raises:
        UserError: the config is refused, the directory holds another run, or somebody else is training there; the
            disk is full or not writable, the directory vanished, or a device failed.
    """
    config = validate.resolve(config)
    workdir = Path(workdir).absolute()
    enable_cache()
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        mesh = meshes.mesh_of(config)
        with ExitStack() as held:
            # Of several processes the first one holds the directory for all.
            distributed.agreed(lambda: held.enter_context(exclusive(workdir)) if distributed.main() else None)
            return _Training(config, workdir, quiet, mesh).run()
    except OSError as error:
        raise UserError(failures.explained(error, workdir) or str(error)) from error


class _Training:
    """One call of `train`: what the loop reads and writes, in one place."""

    def __init__(self, config: ConfigDict, workdir: Path, quiet: bool, mesh: Any) -> None:
        self.main = distributed.main()  # writes the run's files
        self.workdir, self.quiet = workdir, quiet or not self.main
        self.mesh, self.rules = mesh, meshes.rules_of(config, mesh)
        self.started = time.perf_counter()
        self.compile_seconds = self.eval_seconds = 0.0
        self.before: dict[str, Any] = {}
        self.spent = Spent()
        self.config, self.place = config, Place(workdir)
        self.shorter: float | None = None  # the budget.amount of before, where it was raised

    def run(self) -> dict[str, Any]:
        """Prepares, trains, and records how it ended."""
        finished = distributed.agreed(self._ready)
        if finished is not None:
            return finished
        partners.record = self._lost
        try:
            self._start()
            with stop_signals() as caught, self.console:
                self._loop(caught)
        except watch.Diverged as error:
            self._end("diverged", str(error))
        except Preempted as error:
            self._end("preempted", str(error))
        except UserError as error:
            self._end("failed", str(error))
            raise
        except BaseException as error:
            message = self.place.failure(error)
            self._end("failed", message or failures.named(error))
            if message:
                raise UserError(message) from error
            raise
        else:
            self._end("done", None)
        return self.record.values

    def _lost(self, message: str) -> None:
        """Records that another process of this run died while this one waits; not where the end is recorded already."""
        if self.record.values["status"] == "running" and not self.place.gone():
            self.record.update(status="failed", error=message)

    def _ready(self) -> dict[str, Any] | None:
        """Prepares; returns run.json if there is nothing left to do."""
        own(self.workdir, *FOLDERS)
        finished = self._finished() if self.main else None
        if finished is None:
            self._prepare()
        return finished

    def _finished(self) -> dict[str, Any] | None:
        """Compares with what the directory holds; returns run.json if there is nothing left to do."""
        if not (self.workdir / "config.json").exists():
            return None
        if not begun(self.workdir) and records.read(self.workdir / "run.json").get("status") == "failed":
            return None  # a start that failed before its first step keeps nothing
        here = fields.flatten(runs.load_config(self.workdir))
        expected = fields.flatten(self.config)
        if expected["model.vocab_size"] is None:
            expected["model.vocab_size"] = here["model.vocab_size"]
        other = fields.differences(here, expected)
        if longer.lengthened(here, expected, other):
            self.shorter = here["budget.amount"]
        elif other:
            message = ", ".join(f"{name} is {here[name]!r} there and {expected[name]!r} here" for name in other[:5])
            raise UserError(f"{self.workdir}: holds a run of another config ({message}); choose another --workdir")
        self.before = records.read(self.workdir / "run.json")
        if parent := provenance.parent_problem(self.workdir):
            raise UserError(f"{self.workdir}: {parent}; train it in another --workdir")
        if self.before.get("status") == "done" and self.shorter is None:
            return self.before
        if "jax_settings" in self.before and saved(self.workdir):
            changed = environment.differing(self.before["jax_settings"], settings.in_force())
            if changed:
                message = "; ".join(changed)
                raise UserError(f"{self.workdir}: began under other settings of JAX: {message}; set them as they were")
        return None

    def _prepare(self) -> None:
        """Opens the data, completes and writes the config; nothing on a device yet."""
        config = self.config
        self.corpus = runs.open_data(config)
        self.tokenizer = runs.open_tokenizer(config, self.corpus)
        needed = max(self.tokenizer.vocab_size if self.tokenizer else 0, config.data.vocab_size or 0)
        if config.model.vocab_size is None:
            config.model.vocab_size = max(needed, tasks.vocabulary(config))
        if config.model.vocab_size < needed:
            raise ConfigError(f"model.vocab_size = {config.model.vocab_size}: the tokenizer has {needed} tokens")
        self._refuse_too_large()
        branching = config.init_state == "branch" and not saved(self.workdir)
        if config.init_from and not saved(self.workdir):
            inherit.check(config, self.tokenizer)
        self.share = meshes.share(self.rules)
        self.stream = pipeline.TrainStream(config, self.tokenizer, self.corpus, self.share)
        self.stages = pipeline.stages(config)
        self.by_window = [growth.at_stage(config, stage) for stage in range(len(config.model.attention.window_stages))]
        self.by_window.append(config)
        self.flops_per_token = [
            [counting.flops_per_token(own.model, stage.length)["value"] for stage in self.stages]
            for own in self.by_window
        ]
        self.budget = self._budget(config.budget.amount)
        if self.shorter is not None and saved(self.workdir):
            branches.check_longer(config, self._budget(self.shorter), self.budget, saved(self.workdir)[-1])
        self.kept = branches.kept_steps(config, self.budget, self._budget)
        self.branch = branches.leaves_at(config, self.budget, self._budget) if branching else None
        self.rate = schedule.learning_rate(config.optimizer, self.budget)
        fingerprint = data_room.fingerprint(config, self.corpus, self.tokenizer)
        if branching:
            branches.check_data(config.init_from, fingerprint["fingerprint"])
        known = self.before.get("data", {}).get("fingerprint")
        if known not in (None, fingerprint["fingerprint"]):
            raise UserError(f"{self.workdir}: was trained on other data (fingerprint {known} there)")
        self.record = records.Record(self.workdir, records.describe(config, fingerprint, self.mesh), writes=self.main)
        if self.before:
            self._keep_lengthenings()
            for name in ("started", "incidents", *(("identity",) if saved(self.workdir) else ())):
                self.record.values[name] = self.before.get(name, self.record.values[name])
        if self.main:
            write_json(self.workdir / "config.json", fields.to_dict(config))
            if self.tokenizer is not None:
                self.tokenizer.save(self.workdir / "tokenizer")
        self.record.update()

    def _keep_lengthenings(self) -> None:
        """Has run.json say from which budgets the run was lengthened; what it is differs with its budget."""
        lengthened = [*self.before.get("lengthened", [])]
        if self.shorter is not None:
            lengthened.append({"from": self.shorter, "to": self.config.budget.amount, "time": records.now()})
            parents = self.before.get("identity", {}).get("parents")
            self.before["identity"] = provenance.identity(fields.to_dict(self.config), parents)
        if lengthened:
            self.record.values["lengthened"] = lengthened

    def _budget(self, amount: float) -> Budget:
        spans = growth.lasting(self.config, self.stages)
        stages = [dataclasses.replace(self.stages[data], steps=steps) for steps, data, _ in spans]
        per_token = [self.flops_per_token[window][data] for _, data, window in spans]
        return Budget(self.config.budget.kind, amount, stages, per_token)

    def _refuse_too_large(self) -> None:
        """Raises ConfigError where this machine cannot hold what no compiler can do without."""
        device = jax.devices()[0]
        there = memory.memory() if device.platform == "cpu" else (device.memory_stats() or {}).get("bytes_limit", 0)
        needed = memory.held(self.config, device.platform, jax.device_count())
        if there and needed > there:
            raise ConfigError(
                f"{self.config.name or self.workdir.name} does not fit: its parameters, gradients and optimizer alone "
                f"need {needed / 2**20:,.1f} MiB, and this {'machine' if device.platform == 'cpu' else 'device'} has "
                f"{there / 2**20:,.1f} MiB"
            )

    def _start(self) -> None:
        """Makes or restores the training state."""
        config = self.config
        shapes = train_step.abstract(config, self.mesh)
        self.shaped: dict[int, str] = {}  # key of the program of each stage of the window
        self.console = Console(config.name or self.workdir.name, self.quiet)
        distributed.agreed(lambda: integrity.set_damaged_aside(self.workdir, self._tell) if self.main else None)
        self.stream.say = self._tell
        self.checkpoints = Checkpoints(self.workdir, config.checkpoint.keep, always=self.kept)
        self.pending: list[Any] = []  # losses since the last line of metrics, on the device until they are read
        self.best: float | None = None
        self.val_loss: float | None = None
        self.watch = watch.Watch(config)
        self.lines = 0  # of metrics.jsonl that the checkpoint knows of
        result = self.checkpoints.steps()
        if result:
            self.checkpoints.refuse_others(result[-1], shapes.params, shapes.opt_state, identity(config))
            self.params, self.opt_state, meta = self.checkpoints.restore(result[-1], shapes.params, shapes.opt_state)
            self._resume(meta)
        elif self.branch is not None:
            self._branch(self.branch, shapes)
        else:
            self.params = self._initial(shapes)
            self.opt_state = train_step.initial_opt_state(config, self.params, self.mesh)
        ready = validation.batches(config, self.tokenizer, self.corpus)
        self.validate = validation.validator(config, ready, self.mesh)
        self.watch.prepare(ready[0], self.mesh)
        given = trackers.opened(config, self.workdir, self.spent.steps) if self.main else []
        guarded = [trackers.Guarded(tracker, self.console.say) for tracker in given]
        self.log = MetricsLog(self.workdir, self.spent.steps, guarded) if self.main else NoLog()
        if self.main and self.log.lines < self.lines:
            at = f"up to step {self.spent.steps}"
            self._tell(f"metrics.jsonl has {self.log.lines} of the {self.lines} lines {at}; the others are lost")
        self.peak = (chips.peak(jax.devices()[0].device_kind) or 0.0) * (self.mesh.size if self.mesh else 1)

    def _tell(self, text: str) -> None:
        """Says a line and keeps it in run.json: what happened to the run from outside."""
        self.console.say(text)
        self.record.update(incidents=[*self.record.values["incidents"], f"{records.now()} {text}"])

    def _initial(self, shapes: train_step.Abstract) -> Any:
        if not self.config.init_from:
            with meshes.on_host(self.mesh):
                params = initialise(self.config.model, self.config.seed)[1]
            return meshes.spread(self.rules, params)
        for line in inherit.changes(self.config):
            self.console.say(line)
        self.record.update(identity=inherit.identity(self.config))
        return inherit.parameters(self.config, shapes)

    def _branch(self, at: int, shapes: train_step.Abstract) -> None:
        """Takes the state of `init_from` at a step; its clocks and metrics go on here as if this run had begun it."""
        source = self.config.init_from
        self.params, self.opt_state, meta = branches.restore(self.config, at, shapes, self.workdir)
        self._resume(meta)
        spent = {"total": self.spent.seconds + self.compile_seconds + self.eval_seconds}
        self.before = {**self.before, "wall_time": spent}
        self.record.update(branched={"from": source, "step": at, "seconds": self.spent.seconds})

    def _resume(self, meta: dict[str, Any]) -> None:
        self.spent = Spent(**meta["spent"])
        self.pending, self.best, self.val_loss = meta["pending"], meta["best_val_loss"], meta["val_loss"]
        self.compile_seconds, self.eval_seconds = meta["compile_seconds"], meta["eval_seconds"]
        self.lines = meta.get("lines", 0)
        self.watch.restore(meta.get("watch"))
        self.stream.set_state(meta["data"])
        self.console.say(f"continuing at step {self.spent.steps}")

    def _loop(self, caught: list[int]) -> None:
        """Steps until the budget is spent; everything that is not a step happens at multiples of its interval."""
        config, keys = self.config, step_keys(self.config)
        self.window = (time.perf_counter(), 0)
        self.clocked = config.budget.kind == "seconds"
        stopping = distributed.Stopping()
        while not self.budget.finished(self.spent):
            if number := stopping(caught):
                self._flush()
                self._save(self.val_loss)
                raise Preempted(number)
            began = time.perf_counter()
            batch = meshes.global_batch(self.rules, next(self.stream), self.share)
            program = self._program(batch)
            if not self._busy():
                began = time.perf_counter()  # the device waited too; else it went on with earlier steps
            rows, length = batch["tokens"].shape
            update = self.spent.steps + 1
            rate = self.rate(update, self.budget.progress(self.spent))
            self.params, self.opt_state, loss, norm = program(
                self.params, self.opt_state, batch, optimizer.rates(config.optimizer, rate), keys(update)
            )
            if self.clocked:
                loss.block_until_ready()
            self._stepped(loss, norm, rate, (rows, length), self._since(began))

    def _stepped(self, loss: Any, norm: Any, rate: float, shape: tuple[int, int], seconds: float) -> None:
        """Takes what a step of [rows, length] gave; loss and norm may still be on the device."""
        rows, length = shape
        self.pending.append(loss)
        self.watch.add(norm)
        self._spend(rows * length, seconds)
        self._between(rate, norm, length)

    def _busy(self) -> bool:
        last = self.pending[-1] if self.pending else 0.0  # a number once it was read
        return not isinstance(last, float) and not last.is_ready()

    def _program(self, batch: Any) -> Any:
        stage = growth.stage_of(self.config, self.spent.steps)
        config = self.by_window[stage]
        if stage not in self.shaped:
            self.shaped[stage] = train_step.shaping(config)
        program, seconds = train_step.compiled(config, batch, self.mesh, self.shaped[stage])
        if seconds:
            self.compile_seconds += seconds
            self._drop_window()
        return program

    def _since(self, began: float) -> float:
        """Returns the seconds since; where they count, the same in every process."""
        seconds = time.perf_counter() - began
        return distributed.shared_seconds(seconds) if self.clocked else seconds

    def _spend(self, tokens: int, seconds: float) -> None:
        spent = self.spent
        flops = tokens * self.flops_per_token[growth.stage_of(self.config, spent.steps)][self.stream.stage]
        self.spent = Spent(spent.steps + 1, spent.tokens + tokens, spent.flops + flops, spent.seconds + seconds)
        self.window = (self.window[0], self.window[1] + tokens)

    def _between(self, rate: float, norm: Any, length: int) -> None:
        """After a step: metrics, validation, checkpoint, each at its interval and at the end."""
        config, at = self.config, self.spent.steps
        last = self.budget.finished(self.spent)

        def due(every: int) -> bool:
            return last or (every > 0 and at % every == 0)

        evaluated = due(config.eval.every_steps)
        saved = due(config.checkpoint.every_steps) or at in self.kept
        if not (due(config.log.every_steps) or evaluated or saved):
            return
        self._flush()
        if evaluated:
            self._evaluate()
        if due(config.log.every_steps) or evaluated:
            self._write_metrics(rate, float(norm), length, evaluated, last)
        if saved:
            self._save(self.val_loss if evaluated else None)
        self.watch.after(at, evaluated, self.params, self.opt_state, self._meta)

    def _flush(self) -> None:
        """Reads the losses that are still on the device; the first that is not finite ends the run.

        Raises:
            Diverged: naming the step.
        """
        began = time.perf_counter()
        values = [float(loss) for loss in self.pending]
        self.spent = dataclasses.replace(self.spent, seconds=self.spent.seconds + self._since(began))
        self.watch.check(self.spent.steps, values, self.checkpoints)
        first = self.spent.steps - len(values) + 1
        for offset, value in enumerate(values):
            if not np.isfinite(value):
                raise watch.Diverged(f"the training loss became {value} at step {first + offset}")
        self.pending = values

    def _evaluate(self) -> None:
        start = time.perf_counter()
        self.val_loss = self.validate(self.params)
        self.watch.look(self.params)
        if np.isfinite(self.val_loss):
            self.best = self.val_loss if self.best is None else min(self.best, self.val_loss)
        self.eval_seconds += time.perf_counter() - start
        self.eval_window = time.perf_counter() - start

    def _write_metrics(self, rate: float, norm: float, length: int, evaluated: bool, last: bool) -> None:
        elapsed = time.perf_counter() - self.window[0] - (self.eval_window if evaluated else 0.0)
        speed = self.window[1] / max(elapsed, 1e-9)
        spent = self.spent
        line: dict[str, Any] = {
            "step": spent.steps,
            "tokens": spent.tokens,
            "flops": spent.flops,
            "stage": self.stream.stage,
            "length": length,
            "train_loss": float(np.mean(self.pending)),
            "learning_rate": rate,
            "grad_norm": norm,
            "tokens_per_second": speed,
        }
        window_stage = growth.stage_of(self.config, spent.steps - 1)
        if len(self.by_window) > 1:
            line["window"] = growth.window_of(self.config, window_stage)
        if self.peak:
            line["mfu"] = speed * self.flops_per_token[window_stage][self.stream.stage] / self.peak
        if evaluated:
            line |= {"val_loss": self.val_loss, **self.watch.metrics}
        self.log.write(line)
        self.pending = []
        self.place.check()
        self.console.show(line, self.budget.progress(spent), last)
        self.record.progress(
            step=spent.steps,
            tokens=spent.tokens,
            flops=spent.flops,
            train_loss=line["train_loss"],
            val_loss=self.val_loss,
            best_val_loss=self.best,
            wall_time=self._wall_time(),
        )
        self._drop_window()

    def _drop_window(self) -> None:
        self.window = (time.perf_counter(), 0)

    def _wall_time(self) -> dict[str, float]:
        total = self.before.get("wall_time", {}).get("total", 0.0) + time.perf_counter() - self.started
        parts = {"compile": self.compile_seconds, "train": self.spent.seconds, "eval": self.eval_seconds}
        return {**parts, "total": total}

    def _save(self, val_loss: float | None) -> None:
        self.log.sync()
        self.place.check()
        self.checkpoints.save(self.spent.steps, self.params, self.opt_state, self._meta(), val_loss)

    def _meta(self) -> dict[str, Any]:
        return {
            "spent": vars(self.spent),
            "pending": self.pending,
            "best_val_loss": self.best,
            "val_loss": self.val_loss,
            "compile_seconds": self.compile_seconds,
            "eval_seconds": self.eval_seconds,
            "rng": {"seed": self.config.seed, "step": self.spent.steps},
            "data": self.stream.get_state(),
            "lines": self.log.lines,
            "watch": self.watch.state,
            IDENTITY: identity(self.config),
        }

    def _end(self, status: str, error: str | None) -> None:
        """Waits for the checkpoint that is being written, closes, and records how the run ended.

        Of a run that failed already no second failure is told; but a run is not done whose last checkpoint is not.
        """
        if hasattr(self, "stream"):
            with suppress(OSError):  # shared memory that is gone already
                self.stream.close()  # else batches that nobody took stay in shared memory
        with self._failing_again(status):
            if hasattr(self, "checkpoints"):
                self.checkpoints.close()
        with self._failing_again(status):
            if hasattr(self, "log"):
                self.log.close(status)
        self.place.clear()
        with self._failing_again(status):
            self.place.check()
            self.record.update(
                status=status,
                error=error,
                wall_time=self._wall_time(),
                step=self.spent.steps,
                tokens=self.spent.tokens,
                flops=self.spent.flops,
            )
        partners.record = None

    @contextmanager
    def _failing_again(self, status: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if status == "failed":
                return
            message = self.place.failure(error) or failures.named(error)
            self._end("failed", message)
            raise UserError(message) from error
