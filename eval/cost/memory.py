"""Memory: by formula, as compiled, and as measured if the device counts it, side by side."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from eval.cost import fitting, programs, ready
from eval.cost.hlo import Module
from eval.progress import Quiet
from models import counting, kernels, pattern
from models.positions import places_of
from training.run_directory.run import Run
from training.step import train_step as steps
from training.step.loss import block_of
from training.step.optimizers import state_bytes

FLOAT32 = 4  # bytes; parameters, gradients and optimizer state are float32 whatever the compute dtype
COUNTED = "peak_bytes_in_use"
# Arrays as wide as the hidden layer that XLA keeps of each layer's MLP for its backward pass, counted on the CPU by
# compiling two widths: the input projections' outputs, the output projection's input, and for SwiGLU silu and its
# derivative.
MLP_KEPT = {"swiglu": 5, "gelu": 3, "relu": 2}
# Arguments of the compiled programs, by prefix of their names.
ARGUMENTS = {"parameters": "params", "optimizer": "opt_state", "kv_cache": "cache.entries"}

WHY = {
    "parameters": "the same float32 arrays",
    "gradients": "part of the temporaries, which XLA reports only in total",
    "optimizer": "the same arrays, counters included",
    "activations": "temporaries minus one set of gradients. XLA recomputes some of the residuals and "
    "keeps some twice (transposed, split into layers), and it needs work space, which dominates with few tokens",
    "logits": "among the activations; float32, kept for the backward pass at least once",
    "kv_cache": "the same arrays, including scales; positions and segments of slots are not counted",
    "train_step": "parameters, optimizer and temporaries; batch and counters are small",
}


def evaluate(run: Run, progress: Quiet) -> dict[str, Any]:
    """Returns eval/memory.json's content; all sizes in bytes.

    `formula` needs no compiler. `compiled` is XLA's own account of the three programs (peak: arguments, outputs and
    temporaries alive at once, donated buffers counted once). `measured` is the device's count, None if it has none:
    then no step is run. `side_by_side` has one row per part, with an explanation of the difference. `fits` exists if
    `eval.memory.limit_gib` is set: the largest batch and length, found by compiling.
    """
    shape = programs.shape(run.config)
    compiled, parts = {}, {}
    for name, lower in programs.LOWERED.items():
        progress.say(f"memory: compiling {name.replace('_', ' ')}")
        program = lower(run.config).compile()
        compiled[name] = programs.analysis(program)
        parts[name] = arguments(program.as_text())
    by_formula, counted = formula(run), measured(run)
    results = {
        "formula": by_formula,
        "compiled": compiled,
        "measured": counted,
        "side_by_side": side_by_side(by_formula, compiled, parts, counted),
        "settings": {"shape": shape.settings},
    }
    limit = run.config.eval.memory.limit_gib * fitting.GIB
    if limit:
        results["fits"] = {"limit": int(limit), **fitting.largest_fits(run.config, limit, progress)}
    return results


def formula(run: Run) -> dict[str, int]:
    """Returns the bytes that are known without a compiler."""
    config = run.config
    model, shape = config.model, programs.shape(config)
    parameters = FLOAT32 * counting.parameters(model)["total"]
    element = programs.element_bytes(config)
    kept = counting.kv_cache_bytes(model, element, batch=shape.decode_batch_size, capacity=shape.capacity)
    optimizer = optimizer_bytes(run)
    training = programs.training_config(config)
    activations = activation_bytes(training)
    rows = training.data.batch_size // training.data.micro_batches
    return {
        "parameters": parameters,
        "gradients": parameters,
        "optimizer": optimizer,
        "activations": activations,
        "logits": FLOAT32 * rows * _with_logits(training) * model.vocab_size,
        "train_step": 2 * parameters + optimizer + activations,
        "kv_cache": sum(kept.values()),
        "kv_cache_scales": kept["scales"],
        "kv_bytes_per_token": counting.kv_bytes_per_token(model, element),
    }


def _with_logits(config: ConfigDict) -> int:
    """Returns how many tokens of each row have logits at once."""
    rows = config.data.batch_size // config.data.micro_batches
    return block_of(config.model, rows, config.data.length) or config.data.length


def optimizer_bytes(run: Run) -> int:
    """Returns the size of the optimizer state, including counters."""
    return state_bytes(run.config.model, run.config.optimizer)


def activation_bytes(config: ConfigDict) -> int:
    """Returns the bytes that a (micro-)batch's forward pass keeps for the backward pass.

    They are summed from the shapes that differentiation traces: the difference between two rows and one, for each row.
    Known differences in compiled programs (on the CPU) are corrected: of arrays as wide as the MLP's hidden layer there
    are at most `MLP_KEPT` per layer, because XLA recomputes the others from these; the blocked kernel keeps keys and
    values a second time, as its matmuls read them, and scores of short sequences (`Kernel.kept`); and the logits have
    their gradient beside them.
    """
    model, length = config.model, config.data.length
    rows = config.data.batch_size // config.data.micro_batches
    each = _row_bytes(config) + FLOAT32 * _with_logits(config) * model.vocab_size
    if model.remat != "none":
        return rows * each
    element = programs.element_bytes(config)
    name = kernels.kernel_for(model, length=length, platform=jax.default_backend(), packed=False)
    if name in kernels.KERNELS and model.attention.kind == "gqa":
        kernel, plans = kernels.KERNELS[name], pattern.plans(model)
        copied = sum(plans[layer].heads.num_kv_heads * plans[layer].heads.head_dim for layer in pattern.owners(model))
        each += 2 * length * copied * element * kernel.copies
        kept = [kernel.kept(length, plan.window, "bias" in places_of(plan.position)) for plan in plans]
        each += FLOAT32 * sum(plan.heads.num_heads * count for plan, count in zip(plans, kept, strict=True))
    if model.mlp in MLP_KEPT:
        wider = config.copy_and_resolve_references()
        wider.model.mlp_width += 16
        hidden = (_row_bytes(wider) - _row_bytes(config)) // 16  # bytes per row for each hidden unit
        each -= model.mlp_width * max(0, hidden - MLP_KEPT[model.mlp] * model.num_layers * length * element)
    return rows * each


def _row_bytes(config: ConfigDict) -> int:
    """Returns the bytes that differentiation keeps of one row."""
    return _kept(config, 2) - _kept(config, 1)


def _kept(config: ConfigDict, rows: int) -> int:
    """Returns the bytes of everything that differentiation keeps of `rows` rows, including parameters and constants."""
    abstract = steps.abstract(config)
    dropout = config.model.dropout > 0
    tokens = jax.ShapeDtypeStruct((rows, config.data.length), jnp.int32)
    weights = jax.ShapeDtypeStruct(tokens.shape, jnp.float32)

    def kept(params: Any, tokens: Any, weights: Any) -> Any:
        def loss(params: Any) -> Any:
            model = nnx.merge(abstract.graphdef, params)
            batch = {"tokens": tokens, "targets": tokens, "weights": weights}
            return steps.batch_loss(config, model, batch, jax.random.key(0) if dropout else None)[0]

        return jax.vjp(loss, params)[1]

    return _bytes(jax.eval_shape(kept, abstract.params, tokens, weights))


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def arguments(text: str) -> dict[str, int]:
    """Returns the bytes of a compiled program's arguments by part (`ARGUMENTS`), read from its entry computation."""
    entry = Module(text).entry
    taken = [one for one in entry.instructions.values() if one.opcode == "parameter"]
    return {
        part: sum(one.nbytes for one in taken if one.op_name.startswith(beginning))
        for part, beginning in ARGUMENTS.items()
    }


def side_by_side(
    by_formula: dict[str, int],
    compiled: dict[str, dict[str, int] | None],
    parts: dict[str, dict[str, int]],
    counted: dict[str, int] | None,
) -> list[dict[str, Any]]:
    """Returns one row per part: by formula, as compiled, as measured (None if unknown), their difference, and why."""
    step = compiled["train_step"]
    as_compiled = {
        "parameters": parts["train_step"]["parameters"],
        "optimizer": parts["train_step"]["optimizer"],
        "kv_cache": parts["decode"]["kv_cache"],
        "activations": None if step is None else max(0, step["temp"] - by_formula["gradients"]),
        "train_step": None if step is None else step["peak"],
    }
    rows = []
    for part, why in WHY.items():
        given, other = by_formula[part], as_compiled.get(part)
        rows.append(
            {
                "part": part,
                "formula": given,
                "compiled": other,
                "measured": None if counted is None else counted.get(part),
                "difference": None if other is None else other - given,
                "why": why,
            }
        )
    return rows


def measured(run: Run) -> dict[str, int] | None:
    """Returns the device's own counts in bytes, None if it has none (a CPU).

    One training step is run at the requested shapes. The device's peak covers everything this process did: `train_step`
    exists if the step raised it, and includes the run's own copy of the parameters.
    """
    before = jax.devices()[0].memory_stats()
    if not before:
        return None
    program = ready.train(run)
    compiled = program.lowered.compile()
    jax.block_until_ready(program.call(compiled, program.start()))
    after = jax.devices()[0].memory_stats() or {}
    results = {name: int(after[name]) for name in ("bytes_in_use", COUNTED, "bytes_limit") if name in after}
    if after.get(COUNTED, 0) > before.get(COUNTED, 0):
        results["train_step"] = int(after[COUNTED])
    return results
