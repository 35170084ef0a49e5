"""The parts of `bench.device`, each run in its own process: python -m bench.device.parts NAME OUT.json [tiny].

A part returns a dictionary. `wrong` has one line for each problem; `not_run` says why there is nothing to measure.
`tiny` is for a CPU: the same programs at sizes that take seconds.
"""

import dataclasses
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
PRESETS = ("gpt2_124m", "llama_350m")
STEPS = 30
SKIPPED = 5  # untimed first steps
BATCHES = (1, 8, 64)  # rows of prefill and decode
PACKS = (1, 8, 32)
MFU = 0.5  # target of a preset on an accelerator
MEMORY = 0.15  # relative tolerance of measured memory against the compiled peak
PACK_LOSS = 1e-3  # relative tolerance of a run's loss in a pack
TINY = {
    "model.width": 64, "model.num_layers": 2, "model.num_heads": 4, "model.mlp_width": 192, "model.vocab_size": 512,
    "data.length": 32, "data.batch_size": 4, "data.micro_batches": 1, "eval.throughput.length": 16,
    "eval.throughput.new_tokens": 8, "eval.throughput.repeats": 2, "model.dtype": "float32",
}  # fmt: skip
DECODING = {"eval.throughput.length": 512, "eval.throughput.new_tokens": 64, "eval.throughput.repeats": 3}
# For equivalence: schemes, one per layer, with all the different ways to act in attention.
KINDS = "rope xpos alibi t5 fire cope".split()
SMALL = {"model.width": 256, "model.num_heads": 4, "model.num_kv_heads": 2, "model.vocab_size": 512,
         "model.mlp_width": 256, "data.batch_size": 2, "data.micro_batches": 1}  # fmt: skip


def preset(name: str, tiny: bool, **changes: Any) -> Any:
    """Returns a preset, resolved, with one micro-batch per step; on a CPU at a size that takes seconds."""
    from configs import cli, validate

    config = cli.load(CHECKOUT / f"configs/{name}.py", {})
    own = TINY if tiny else {**DECODING, "data.batch_size": config.data.batch_size // config.data.micro_batches,
                             "data.micro_batches": 1}  # fmt: skip
    cli.apply(config, {**own, **{name.replace("__", "."): value for name, value in changes.items()}})
    return validate.resolve(config)


def case(name: str, tiny: bool, kind: str = "train", rows: int = 0) -> Any:
    """Returns a preset as a peer's case; decoding is that of `decode` below."""
    from bench.speed.cases import Case

    config = preset(name, tiny)
    model, decoded = config.model, config.eval.throughput
    return Case(
        name=name, kind=kind, width=model.width, layers=model.num_layers, heads=model.num_heads,
        kv_heads=model.num_kv_heads, mlp=model.mlp_width, vocab=model.vocab_size,
        batch=rows or config.data.batch_size, length=config.data.length if kind == "train" else decoded.length,
        new=0 if kind == "train" else decoded.new_tokens, dtype="float32" if tiny else "bfloat16",
        family="gpt2" if model.position.kind == "learned" else "llama",
    )  # fmt: skip


def device(tiny: bool) -> dict[str, Any]:
    """The device, the versions, and its measured peak rates."""
    import importlib.metadata

    import jax

    from eval.cost import peaks, timing

    versions = {}
    for name in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    platform = jax.default_backend()
    result = peaks.peaks("float32" if platform == "cpu" else "bfloat16", copied=2**26 if platform == "cpu" else 2**28)
    return {"device": timing.device(), "devices": jax.device_count(), "python": sys.version.split()[0],
            "versions": versions, "peak": result, "wrong": []}  # fmt: skip


def equivalence(tiny: bool) -> dict[str, Any]:
    """Every attention kernel in float32 and bfloat16 against the reference; on accelerators layouts and decoding."""
    from eval import equivalence as check
    from eval.equivalence.rows import Row
    from eval.equivalence.setting import settings

    kinds, length = (("rope", "alibi"), 32) if tiny else (tuple(KINDS), 512)
    base = {**SMALL, **({"model.width": 32, "model.num_heads": 2, "model.num_kv_heads": 1} if tiny else {}),
            "data.length": length, "eval.equivalence.length": length, "model.dtype": "bfloat16"}  # fmt: skip
    tried: dict[str, dict[str, Any]] = {
        "schemes": {"model.num_layers": len(kinds), "model.position.pattern": kinds},
    }  # fmt: skip
    if not tiny:
        tried["windows, packed"] = {"model.num_layers": 2, "model.attention.window_pattern": (0, length // 4),
                                    "data.packing": "segments"}  # fmt: skip
        tried["soft cap"] = {"model.num_layers": 1, "model.attention.soft_cap": 30.0}
        tried["sinks"] = {"model.num_layers": 1, "model.attention.sinks": True}
    rows: list[dict[str, Any]] = []
    wrong = []
    for group in check.GROUPS[:1] if tiny else check.GROUPS:  # kernels first
        for name, changes in tried.items():
            config = preset("llama_350m", tiny=False, **{**base, **changes})
            for setting in settings(config):
                row: Row
                for row in group(setting):
                    rows.append({"config": name, **row.entry})
                    if row.exceeded:
                        wrong.append(f"equivalence, {name}: {' | '.join(check.cells(row))}")
                    _save({"rows": rows, "wrong": wrong})
    compared = sum(row.get("reason") is None for row in rows)
    if not compared:
        wrong.append("equivalence: nothing was compared")
    return {"rows": rows, "compared": compared, "wrong": wrong}


_OUT: list[Path] = []  # the path of this process's part


def _save(results: dict[str, Any]) -> None:
    """Saves a part's results so far, in case its time runs out."""
    for out in _OUT:
        work = out.with_suffix(".part")
        work.write_text(json.dumps(results), encoding="utf-8")
        work.replace(out)


def train(name: str, tiny: bool) -> dict[str, Any]:
    """Trains a preset on one batch for thirty steps: time, MFU, whether the loss falls, and memory."""
    import jax
    import numpy as np

    from eval.cost import peaks, programs
    from eval.cost.timing import compile_timed
    from models import counting, initialise
    from training.step import optimizer
    from training.step import train_step as steps

    config = preset(name, tiny)
    rows, length = config.data.batch_size, config.data.length
    tokens = np.random.default_rng(0).integers(0, config.model.vocab_size, (rows, length + 1), dtype=np.int32)
    batch = {"tokens": tokens[:, :-1].copy(), "targets": tokens[:, 1:].copy(),
             "weights": np.ones((rows, length), np.float32)}  # fmt: skip
    lowered = steps.lower(config, batch)
    kernel = programs.kernels_in(lowered)
    compiled, compile_seconds = compile_timed(lowered)
    params = initialise(config.model, config.seed)[1]
    state = (params, steps.initial_opt_state(config, params))
    del params  # the step donates it
    before = _counted()
    rate, key = optimizer.rates(config.optimizer, config.optimizer.learning_rate), jax.random.key(0)
    seconds, losses = [], []
    for _ in range(STEPS):
        began = time.perf_counter()
        *state, loss, _ = compiled(*state, batch, rate, key)
        losses.append(float(loss))  # waits for the step
        seconds.append(time.perf_counter() - began)
    after = _counted()
    peak = (programs.analysis(compiled) or {}).get("peak")
    dtype = "float32" if tiny else "bfloat16"
    best = peaks.peaks(dtype, **({"copied": 2**26} if tiny else {}))
    took = statistics.median(seconds[SKIPPED:])
    speed = rows * length / took
    flops = counting.flops_per_token(config.model, length)["value"]
    published = (best["published"] or {}).get("flops") if not tiny else None
    results = {
        "rows": rows, "length": length, "steps": STEPS, "kernel": kernel, "compile_seconds": compile_seconds,
        "seconds": took, "tokens_per_second": speed, "flops_per_token": flops,
        "mfu": speed * flops / published if published else None, "mfu_measured_peak": speed * flops / best["flops"],
        "losses": losses,
        "memory": {"compiled": peak, "measured": after if after and after > (before or 0) else None, "before": before},
    }  # fmt: skip
    return {**results, "wrong": _wrong_in_training(name, results)}


def _counted() -> int | None:
    """Returns the peak bytes of the device so far; None if it does not count them."""
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def _wrong_in_training(name: str, results: dict[str, Any]) -> list[str]:
    """Returns the problems in the results of `train`."""
    wrong = []
    losses = results["losses"]
    if not all(abs(loss) < float("inf") for loss in losses):  # false for nan too
        first = next(step for step, loss in enumerate(losses, 1) if not abs(loss) < float("inf"))
        wrong.append(f"{name}: the loss is not finite at step {first}")
    elif losses[-1] >= losses[0]:
        wrong.append(f"{name}: the loss of one batch, trained {len(losses)} times, does not fall: "
                     f"{losses[0]:.4f} to {losses[-1]:.4f}")  # fmt: skip
    if results["mfu"] is not None and results["mfu"] < MFU:
        wrong.append(f"{name}: {100 * results['mfu']:.0f}% MFU, target {100 * MFU:.0f}%")
    measured, compiled = results["memory"]["measured"], results["memory"]["compiled"]
    if measured and compiled and abs(measured / compiled - 1) > MEMORY:
        wrong.append(f"{name}: {measured / 2**30:.2f} GiB measured, {compiled / 2**30:.2f} compiled: "
                     f"{100 * (measured / compiled - 1):+.0f}%")  # fmt: skip
    return wrong


def decode(name: str, tiny: bool) -> dict[str, Any]:
    """Prefill and decode of a preset at several numbers of rows; if one fails, the others still run."""
    from eval.cost import ready, throughput

    run = _run(preset(name, tiny))
    results: list[dict[str, Any]] = []
    wrong = []
    for rows in BATCHES:
        for program in ("prefill", "decode"):
            shaped = ready.at(run, batch_size=rows, decode_batch_size=rows)
            entry: dict[str, Any] = {"program": program, "rows": rows}
            try:
                entry |= throughput.timed(shaped, program, room=throughput.free())
            except Exception as error:
                entry["reason"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                wrong.append(f"{name}: {program} at batch {rows}: {entry['reason']}")
            results.append(entry)
            _save({"programs": results, "wrong": wrong})
    return {"programs": results, "wrong": wrong}


def profile(name: str, tiny: bool) -> dict[str, Any]:
    """The time of a training step, prefill and decode by part of the model."""
    from eval.cost import profile as profiles
    from eval.progress import Quiet

    result = profiles.evaluate(_run(preset(name, tiny)), Quiet())
    silent = [program for program, entry in result["programs"].items() if not entry["busy_seconds"]]
    return {**result, "wrong": [f"{name}: the trace of {program} shows no instruction" for program in silent]}


def packs(tiny: bool) -> dict[str, Any]:
    """Packs of tiny runs in one program: steps per second, and whether a run's loss is the same in all of them."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from configs import cli, validate
    from models import initialise
    from training.loop import packed
    from training.step import optimizer
    from training.step import train_step as steps

    small = {"model.width": 16, "model.num_layers": 1, "data.length": 16, "data.batch_size": 2} if tiny else {}
    config = validate.resolve(cli.load(CHECKOUT / "configs/tiny.py", {**small, "model.vocab_size": 256}))
    rows, length = config.data.batch_size, config.data.length
    results: list[dict[str, Any]] = []
    wrong = []
    for size in PACKS:
        made = [initialise(config.model, seed)[1] for seed in range(size)]
        alone = [(params, steps.initial_opt_state(config, params)) for params in made]
        state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
        tokens = np.stack([np.random.default_rng(seed).integers(0, 256, (rows, length + 1), dtype=np.int32)
                           for seed in range(size)])  # fmt: skip
        batch = {"tokens": tokens[..., :-1].copy(), "targets": tokens[..., 1:].copy(),
                 "weights": np.ones((size, rows, length), np.float32)}  # fmt: skip
        rates = np.stack([optimizer.rates(config.optimizer, 1e-3)] * size)
        decays = np.full(size, config.optimizer.weight_decay, np.float32)
        keys, active = jax.random.split(jax.random.key(0), size), np.ones(size, bool)
        program, seconds = packed.jitted(config), []
        for _ in range(STEPS):
            began = time.perf_counter()
            state, losses, _ = program(state, batch, rates, decays, keys, active)
            first = float(losses[0])
            seconds.append(time.perf_counter() - began)
        took = statistics.median(seconds[SKIPPED:])
        results.append({"runs": size, "seconds": took, "steps_per_second": size / took, "first_loss": first})
        if abs(first / results[0]["first_loss"] - 1) > PACK_LOSS:
            wrong.append(f"packs: a run's loss after {STEPS} steps is {first:.5f} in a pack of {size} and "
                         f"{results[0]['first_loss']:.5f} alone")  # fmt: skip
    return {"packs": results, "wrong": wrong}


def _run(config: Any) -> Any:
    from models import initialise
    from training.run_directory.run import Run

    return Run(Path(), config, *initialise(config.model, config.seed), None, 0)


PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "device": device,
    "equivalence": equivalence,
    **{f"train {name}": functools.partial(train, name) for name in PRESETS},
    **{f"decode {name}": functools.partial(decode, name) for name in PRESETS},
    "packs": packs,
    **{f"profile {name}": functools.partial(profile, name) for name in PRESETS},
}


def peer_cases(name: str, tiny: bool) -> dict[str, Any]:
    """Returns the cases for PyTorch on a preset: thirty training steps, and decoding at each number of rows."""
    decoding = [dataclasses.asdict(case(name, tiny, "decode", rows)) for rows in BATCHES]
    return {"train": dataclasses.asdict(case(name, tiny)), "decode": decoding, "steps": STEPS, "skipped": SKIPPED}


def main(name: str, out: Path, tiny: bool) -> None:
    """Runs a part and writes its results."""
    from training.runtime import compilation

    compilation.enable_cache()
    _OUT.append(out)
    _save(PARTS[name](tiny))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), "tiny" in sys.argv[3:])
