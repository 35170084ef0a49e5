"""Tokens a second of a training step, prefill and decode; compilation apart, medians with quartiles."""

from typing import Any

from eval import programs, ready
from eval.progress import Silent
from eval.timing import compile_timed, device, measure, summary
from training.record import compute_dtype
from training.run import Run


def evaluate(run: Run, progress: Silent) -> dict[str, Any]:
    """Returns eval/throughput.json's content.

    Each figure is the median of `repeats` measurements after warm-up, `spread` its quartiles; the device is waited for
    before the clock stops. `decode` is greedy generation of `new_tokens` from a cache that holds a prompt of `length`
    tokens; the prompt's own time is `prefill`. `kernel` is the attention core in the program that ran, or several.
    """
    parts = {}
    for name in ready.PROGRAMS:
        progress.say(f"throughput: {name}")
        parts[name] = timed(run, name)
    return {
        "device": device(),
        "dtype": compute_dtype(run.config),
        "attention_kernel": parts["train"]["kernel"],
        **parts,
        "settings": {"shape": programs.shape(run.config).settings},
    }


def timed(run: Run, name: str) -> dict[str, Any]:
    """Returns the times of one program of `ready.PROGRAMS` at the shapes of config.eval.throughput."""
    program = ready.PROGRAMS[name](run)
    compiled, compile_seconds = compile_timed(program.lowered)
    repeats = run.config.eval.throughput.repeats
    seconds = measure(lambda state: program.call(compiled, state), program.start(), repeats=repeats)
    return summary(seconds, program.tokens, compile_seconds, **program.shape)
