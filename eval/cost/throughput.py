"""Tokens per second of a training step, forward, prefill and decode, and their share of the device's peak rates."""

import itertools
from typing import Any

import jax
import numpy as np
import psutil
from ml_collections import ConfigDict

from configs.errors import UserError
from eval.cost import peaks, programs, ready
from eval.cost.timing import compile_timed, device, measure, summary
from eval.progress import Quiet
from models import counting
from models.decoding import decode
from training.run_directory.record import compute_dtype
from training.run_directory.run import Run
from training.step import train_step as steps


def evaluate(run: Run, progress: Quiet) -> dict[str, Any]:
    """Returns eval/throughput.json's content.

    Each figure is the median of `repeats` measurements after warm-up, `spread` its quartiles; compilation is excluded,
    and the clock stops after `block_until_ready`. `decode` is greedy generation of `new_tokens` from a cache with a
    prompt of `length` tokens; the prompt's own time is `prefill`. `kernel` is the attention kernel in the program that
    ran, or several.

    `mfu` of train and forward: FLOPs by formula over the time and the device's own measured matmul rate (`peak`).
    `bandwidth_share` of decode: the bytes that a step must read, over the time and a measured copy's rate. `grid` has
    all programs over `eval.throughput.batch_sizes` x `lengths`; a cell that does not fit has a `reason` instead.
    """
    dtype = compute_dtype(run.config)
    progress.say("throughput: the device's peaks")
    best = peaks.peaks(dtype)
    parts = {}
    for name in ready.PROGRAMS:
        progress.say(f"throughput: {name}")
        parts[name] = timed(run, name, best)
    grid = [cell(run, best, *place) for place in progress.track("throughput: grid", places(run.config))]
    return {
        "device": device(),
        "dtype": dtype,
        "peak": best,
        "attention_kernel": parts["train"]["kernel"],
        **parts,
        "grid": grid,
        "settings": {"shape": programs.shape(run.config).settings},
    }


def timed(run: Run, name: str, best: dict[str, Any] | None = None, *, room: float | None = None) -> dict[str, Any]:
    """Returns the times of one program of `ready.PROGRAMS` at the shapes of config.eval.throughput.

    Args:
        run: provides the parameters.
        name: the program's.
        best: from `peaks.peaks`, to compare with.
        room: bytes that the program may take; None: no limit.

    Raises:
        UserError: the compiled program would take more; nothing has run then.
    """
    program = ready.PROGRAMS[name](run)
    compiled, compile_seconds = compile_timed(program.lowered)
    needed = programs.analysis(compiled)
    if room is not None and needed is not None and needed["peak"] > room:
        raise UserError(f"takes {needed['peak']:,} bytes as compiled, and {int(room):,} are free")
    repeats = run.config.eval.throughput.repeats
    seconds = measure(lambda state: program.call(compiled, state), program.start(), repeats=repeats)
    result = summary(seconds, program.tokens, compile_seconds, **program.shape)
    return result | ({} if best is None else utilisation(run.config, name, result, best))


def utilisation(config: ConfigDict, name: str, results: dict[str, Any], best: dict[str, Any]) -> dict[str, Any]:
    """Returns a program's share of the device's peaks.

    MFU counts FLOPs as `counting.flops_per_token` does. Prefill has none: it computes logits, and the last layer, only
    for last tokens.
    """
    if name in ("train", "forward"):
        counted = counting.flops_per_token(config.model, results["length"])
        flops = counted["value" if name == "train" else "forward"]
        rate = flops * results["tokens_per_second"]
        published = best["published"] if best["dtype"] == "bfloat16" else None
        return {"mfu": rate / best["flops"], "mfu_published": rate / published["flops"] if published else None}
    if name != "decode":
        return {}
    nbytes = step_bytes(config, results["batch_size"], results["length"] + results["new_tokens"])
    rate = nbytes * results["new_tokens"] / results["seconds"]
    return {"bytes_per_step": nbytes, "bandwidth": rate, "bandwidth_share": rate / best["bandwidth"]}


def step_bytes(config: ConfigDict, rows: int, capacity: int) -> int:
    """Returns the bytes that one decoding step must read: the parameters it multiplies by, and the cache's slots.

    Of an embedding table that is not also the output matrix, only rows are read; they are left out.
    """
    abstract = steps.abstract(config)
    narrowed = jax.eval_shape(lambda params: decode.narrowed(params, abstract.graphdef), abstract.params)
    read = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(narrowed))
    if not config.model.tie_embeddings:
        read -= 4 * config.model.vocab_size * config.model.width
    element = programs.element_bytes(config)
    return read + sum(counting.kv_cache_bytes(config.model, element, batch=rows, capacity=capacity).values())


def places(config: ConfigDict) -> list[tuple[str, int, int]]:
    """Returns the grid's cells: (program, batch size, length); empty if no grid is set."""
    expected = config.eval.throughput
    if not expected.batch_sizes and not expected.lengths:
        return []
    lengths = expected.lengths or (expected.length or config.data.length,)
    results = []
    for name, length in itertools.product(ready.PROGRAMS, lengths):
        own = expected.decode_batch_size if name == "decode" else expected.batch_size or config.data.batch_size
        results += [(name, rows, length) for rows in expected.batch_sizes or (own,)]
    return results


def cell(run: Run, best: dict[str, Any], name: str, rows: int, length: int) -> dict[str, Any]:
    """Returns one cell of the grid: its times, or the reason for having none."""
    shaped = ready.at(run, batch_size=rows, decode_batch_size=rows, length=length)
    place = {"program": name, "batch_size": rows, "length": length}
    try:
        return {**place, **timed(shaped, name, best, room=free())}
    except UserError as error:
        return {**place, "reason": str(error)}


def free() -> float:
    """Returns the free bytes: on the device if it counts them, else in this machine."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return float(stats["bytes_limit"] - stats["bytes_in_use"])
    return float(psutil.virtual_memory().available) if jax.default_backend() == "cpu" else float(np.inf)
