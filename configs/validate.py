"""What is allowed, and the values that unset fields resolve to. Refuses before any device work.

Every problem is one line: the field, the value, what is allowed.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from configs import attention, mesh, positions, tasks
from configs.errors import ConfigError, UserError, nearest
from configs.fields import from_dict, to_dict
from configs.positions import either, rotary_dim
from configs.tasks import uses

__all__ = ["ConfigError", "UserError", "check", "from_dict", "problems", "resolve", "rotary_dim", "to_dict", "uses"]

CHOICES: dict[str, tuple[str, ...]] = {
    "tracker": ("none", "wandb"),
    "model.mlp": ("swiglu", "gelu", "gelu_exact", "relu2", "relu"),
    "model.norm": ("rmsnorm", "layernorm"),
    "model.residual": ("serial", "parallel"),
    "model.init": ("truncated_normal", "normal"),
    "model.dtype": ("auto", "float32", "bfloat16"),
    "model.scan_layers": ("auto", "yes", "no"),
    "model.remat": ("none", "block"),
    "model.attention.kind": ("gqa", "mla"),
    "model.attention.qkv": ("split", "fused"),
    "model.attention.scale_rule": ("auto", "sqrt", "mup"),
    "model.attention.kernel": ("auto", "reference", "blocked", "xla", "cudnn", "splash", "flash"),
    "model.attention.kv_storage": ("auto", "int8", "fp8"),
    "model.position.kind": positions.KINDS,
    "model.position.temperature.kind": ("none", "log_n", "llama4", "ministral3"),
    "model.position.temperature.layers": ("auto", "all", "nope"),
    "mesh.kv_heads": mesh.KV_HEADS,
    "model.position.rope.pairing": ("half", "interleaved"),
    "model.position.rope.scaling.kind": positions.SCALINGS,
    "data.source": ("stdlib", "files", "tfds"),
    "data.split": ("hash", "first"),
    "data.packing": ("contiguous", "segments"),
    "budget.kind": ("steps", "tokens", "flops", "seconds"),
    "optimizer.schedule": ("cosine", "wsd", "constant"),
    "eval.kv_storage": ("model", "auto", "int8", "fp8"),
    "data.mqar.filler": ("blank", "random"),
    "data.retrieval.haystack": ("own", *tasks.HAYSTACKS),
    "init_state": ("parameters", "branch"),
    "data.retrieval.form": ("full", "short"),
    "eval.retrieval.task": ("auto", *tasks.SYNTHETIC),
    "eval.retrieval.haystack": ("auto", "own", *tasks.HAYSTACKS),
}

POSITIVE = (
    "model.vocab_size model.width model.num_layers model.num_heads model.head_dim model.num_kv_heads model.mlp_width "
    "model.norm_eps model.logit_soft_cap model.init_std model.attention.window model.attention.soft_cap "
    "model.attention.scale model.attention.mla.kv_rank model.attention.mla.query_rank model.attention.mla.nope_dim "
    "model.attention.mla.rope_dim model.attention.mla.value_dim model.position.max_length model.position.rope.theta "
    "model.position.xpos.base model.position.fire.hidden model.position.fire.c model.position.fire.threshold "
    "model.position.cope.rows model.position.rope.scaling.original_length model.position.rope.scaling.beta_fast "
    "model.position.rope.scaling.beta_slow model.position.rope.scaling.attention_factor "
    "model.position.rope.scaling.low_freq_factor data.length data.batch_size data.micro_batches data.mqar.pairs "
    "data.retrieval.needles data.retrieval.letters data.retrieval.answer_weight "
    "budget.amount optimizer.learning_rate optimizer.eps checkpoint.keep log.every_steps eval.batch_size "
    "watch.loss_steps eval.bootstrap eval.heads.rows "
    "eval.retrieval.depths eval.retrieval.examples eval.throughput.decode_batch_size "
    "eval.throughput.new_tokens eval.throughput.repeats"
).split()

NOT_NEGATIVE = (
    "data.workers data.prefetch data.weights.text data.retrieval.text_weight optimizer.warmup_steps "
    "optimizer.weight_decay "
    "model.position.temperature.beta optimizer.clip_norm optimizer.z_loss checkpoint.every_steps eval.every_steps "
    "watch.loss_spike watch.attention_logit "
    "eval.tokens eval.throughput.batch_size eval.throughput.length "
    "eval.memory.limit_gib eval.heads.length eval.equivalence.length eval.equivalence.batch_size "
    "eval.retrieval.extra_tokens"
).split() + [f"data.weights.{name}" for name in tasks.SYNTHETIC]

# Interval, how it reads.
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "seed": (lambda v: 0 <= v < 2**63, "0 .. 2**63 - 1"),
    **{f"mesh.{axis}": (lambda v: v >= 1 or v == -1, "1 or more, or -1") for axis in ("data", "fsdp")},
    **{f"mesh.{axis}": (lambda v: v >= 1, "1 or more") for axis in ("context", "tensor")},
    "model.dropout": (lambda v: 0 <= v < 1, "in [0, 1)"),
    "model.position.rope.fraction": (lambda v: 0 < v <= 1, "in (0, 1]"),
    "model.position.rope.scaling.factor": (lambda v: v >= 1, "1 or more"),
    "model.position.t5.buckets": (lambda v: v >= 2 and v % 2 == 0, "an even number, 2 or more"),
    "model.position.temperature.length": (lambda v: v >= 2, "2 or more"),
    "watch.dead_heads": (lambda v: 0 <= v < 1, "in [0, 1), 0 for not watched"),
    "eval.scaling_factor": (lambda v: v >= 1 or v == 0, "1 or more, or 0 for what each length needs"),
    "eval.sliding": (lambda v: 0 <= v <= 1, "in (0, 1], or 0 for none"),
    "data.train_share": (lambda v: 0 < v < 1, "in (0, 1)"),
    "data.mqar.vocab_size": (lambda v: v >= 6 and v % 2 == 0, "an even number, 6 or more"),
    "data.mqar.power": (lambda v: 0 < v <= 1, "in (0, 1]"),
    "data.retrieval.digits": (lambda v: v == 0 or 2 <= v <= 18, "0 (as published) or 2 .. 18"),
    "data.retrieval.vocab_size": (lambda v: v >= 16, "16 or more"),
    "optimizer.decay_share": (lambda v: 0 < v <= 1, "in (0, 1]"),
    "optimizer.final_share": (lambda v: 0 <= v <= 1, "in [0, 1]"),
    "optimizer.beta1": (lambda v: 0 <= v < 1, "in [0, 1)"),
    "optimizer.beta2": (lambda v: 0 <= v < 1, "in [0, 1)"),
}

STAGE_FIELDS = ("steps", "length", "batch_size", "pairs", "needles", "weights")


def problems(config: ConfigDict) -> list[str]:
    """Returns every problem of a config (resolved or not), a line each; empty when it is sound."""
    found = _values(config)
    # The combinations read values that must be sound first.
    found = found or [*_model(config), *_data(config), *_curriculum(config)]
    found = found or [*mesh.problems(config), *_watch(config), *_branches(config)]
    return found or tasks.asking_problems(config)


def check(config: ConfigDict) -> None:
    """Refuses an unsound config.

    Raises:
        ConfigError: with one line for each problem.
    """
    found = problems(config)
    if found:
        raise ConfigError(found)


def resolve(config: ConfigDict) -> ConfigDict:
    """Checks a config and returns a copy with every unset field that can be derived filled in.

    `model.vocab_size` stays unset where only the loaded tokenizer knows it; `attention.scale` stays unset for the
    usual 1/sqrt(head_dim).

    Raises:
        ConfigError: with one line for each problem.
    """
    check(config)
    config = from_dict(config.to_dict())
    model, data = config.model, config.data
    data.source = _source(data)
    if model.head_dim is None:
        model.head_dim = model.width // model.num_heads
    if model.num_kv_heads is None:
        model.num_kv_heads = model.num_heads
    if model.attention.kind == "mla":
        model.attention.mla.update(attention.latent_dims(model))
    if model.mlp_width is None:
        exact = model.width * (8 / 3 if model.mlp == "swiglu" else 4)
        model.mlp_width = 16 * math.ceil(exact / 16)
    if model.vocab_size is None:
        model.vocab_size = _known_vocabulary(config)
    if model.position.rope.scaling.original_length is None:
        model.position.rope.scaling.original_length = data.length
    if model.position.temperature.length is None:
        model.position.temperature.length = model.position.rope.scaling.original_length
    if model.position.max_length is None:
        model.position.max_length = max([data.length, *(stage["length"] for stage in data.curriculum)])
    return config


def _source(data: ConfigDict) -> str:
    return "files" if data.path else "tfds" if data.tfds.name else data.source


def _known_vocabulary(config: ConfigDict) -> int | None:
    bare = tasks.vocabulary(config)
    if not tasks.has_tokenizer(config):
        return bare
    return max(256, bare) if config.data.tokenizer == "byte" else None


def _values(config: ConfigDict) -> list[str]:
    """Each field by itself: choices, signs, ranges, finite numbers."""
    found = []
    flat = {}

    def visit(node: ConfigDict, prefix: str) -> None:
        for key in node:
            value = node[key]
            if isinstance(value, ConfigDict):
                visit(value, f"{prefix}{key}.")
            else:
                flat[f"{prefix}{key}"] = value

    visit(config, "")
    for name, value in flat.items():
        if isinstance(value, float) and not math.isfinite(value):
            found.append(f"{name} = {value}: must be a finite number")
        elif name in CHOICES and value not in CHOICES[name]:
            found.append(f"{name} = {value!r}: must be {either(CHOICES[name])}{nearest(value, CHOICES[name])}")
        elif value is None:
            continue
        elif isinstance(value, int) and value >= 2**31 and name != "seed":
            found.append(f"{name} = {value}: must be below 2**31")
        elif name in POSITIVE and not value > 0:
            found.append(f"{name} = {value}: must be above 0")
        elif name in NOT_NEGATIVE and value < 0:
            found.append(f"{name} = {value}: must be 0 or more")
        elif name in RANGES and not RANGES[name][0](value):
            found.append(f"{name} = {value}: must be {RANGES[name][1]}")
    found += _tuple(flat, "model.attention.window_pattern", int, lambda v: v >= 0, "whole numbers, 0 (none) or more")
    found += _tuple(flat, "model.position.pattern", str, lambda v: v in CHOICES["model.position.kind"],
                    either(CHOICES["model.position.kind"]))  # fmt: skip
    for name in ("short_factor", "long_factor"):
        found += _tuple(flat, f"model.position.rope.scaling.{name}", (int, float), lambda v: v > 0, "numbers above 0")
    found += _tuple(flat, "checkpoint.branches", (int, float), lambda v: 0 < v < math.inf, "numbers above 0")
    found += _tuple(flat, "eval.multiples", (int, float), lambda v: v > 0, "numbers above 0")
    scalings = CHOICES["model.position.rope.scaling.kind"]
    found += _tuple(flat, "eval.scalings", str, lambda v: v in scalings, either(scalings))
    grid = ("eval.throughput.batch_sizes", "eval.throughput.lengths")
    for name in ("eval.lengths", "eval.retrieval.needles", *grid):
        found += _tuple(flat, name, int, lambda v: v > 0, "whole numbers above 0")
    if not flat["eval.multiples"] and not flat["eval.lengths"]:
        found.append("eval.multiples = (): must hold one length at least, or eval.lengths must")
    try:
        tasks.threshold(flat["eval.retrieval.threshold"])
    except ConfigError as error:
        found += error.problems
    return found


def _tuple(flat: dict[str, Any], name: str, kind: Any, allowed: Callable[[Any], bool], words: str) -> list[str]:
    bad = [item for item in flat[name] if isinstance(item, bool) or not isinstance(item, kind) or not allowed(item)]
    return [f"{name} = {flat[name]!r}: {bad[0]!r} is not allowed; each must be {words}"] if bad else []


def _model(config: ConfigDict) -> list[str]:
    model = config.model
    found = []
    if model.head_dim is None and model.width % model.num_heads:
        found.append(
            f"model.num_heads = {model.num_heads}: must divide model.width = {model.width}, or set model.head_dim"
        )
    kv_heads = model.num_kv_heads or model.num_heads
    if model.num_heads % kv_heads:
        divisors = [g for g in range(1, model.num_heads + 1) if model.num_heads % g == 0]
        found.append(
            f"model.num_kv_heads = {kv_heads}: must divide model.num_heads = {model.num_heads}, so one of "
            f"{', '.join(map(str, divisors))}"
        )
    if model.norm_bias and model.norm == "rmsnorm":
        found.append("model.norm_bias = True: rmsnorm has no bias; set model.norm = 'layernorm'")
    return [*found, *attention.problems(config), *positions.problems(config)]


def _data(config: ConfigDict) -> list[str]:
    data, found = config.data, []
    source = _source(data)
    if data.path and data.tfds.name:
        found.append(f"data.path = {data.path!r} and data.tfds.name = {data.tfds.name!r}: set one of them")
    if source == "files" and not data.path:
        found.append("data.path = '': data.source = 'files' needs a file or a glob")
    if source == "tfds" and not data.tfds.name:
        found.append("data.tfds.name = '': data.source = 'tfds' needs a data set's name")
    if data.batch_size % data.micro_batches:
        found.append(f"data.micro_batches = {data.micro_batches}: must divide data.batch_size = {data.batch_size}")
    weights = data.weights.to_dict()
    if not any(weights.values()):
        found.append(f"data.weights: one source must be above 0, of {', '.join(weights)}")
    found += tasks.problems(config, weights, {}, "data")
    if data.weights.mqar > 0:
        found += _pairs("data.mqar.pairs", data.mqar.pairs, "data.length", data.length, data.mqar.vocab_size)
    vocabulary = config.model.vocab_size
    known = _known_vocabulary(config) if _tokens_known(config) else None
    if vocabulary is not None and known is not None and vocabulary < known:
        found.append(f"model.vocab_size = {vocabulary}: the data's tokens need {known} or more")
    return found


def _watch(config: ConfigDict) -> list[str]:
    asked = [name for name in ("attention_logit", "dead_heads") if config.watch[name]]
    return [
        f"watch.{name} = {config.watch[name]:g}: is looked at each eval.every_steps, which is 0 (only at the end)"
        for name in asked
        if not config.eval.every_steps
    ]


def _branches(config: ConfigDict) -> list[str]:
    smaller, budget = config.checkpoint.branches, config.budget
    found = []
    if config.init_state == "branch" and not config.init_from:
        found.append("init_state = 'branch': needs the run that is continued, in init_from")
    for name, asked in (("init_state", config.init_state == "branch"), ("checkpoint.branches", bool(smaller))):
        if asked and budget.kind == "seconds":
            found.append(f"{name}: budget.kind = 'seconds' does not say how many steps there are; take another")
    found += [
        f"checkpoint.branches = {tuple(smaller)!r}: {one:g} must be below budget.amount = {budget.amount:g}"
        for one in smaller
        if not one < budget.amount
    ]
    if smaller and config.optimizer.schedule != "wsd":
        found.append(
            f"checkpoint.branches: optimizer.schedule = {config.optimizer.schedule!r}: must be wsd, whose rates do not "
            "depend on the budget before the decay"
        )
    return found


def _tokens_known(config: ConfigDict) -> bool:
    stages = config.data.curriculum
    return all(isinstance(stage, Mapping) and isinstance(stage.get("weights", {}), Mapping) for stage in stages)


def _pairs(name: str, pairs: int, length_name: str, length: int, vocab_size: int) -> list[str]:
    if 4 * pairs > length + 1:
        return [f"{name} = {pairs}: {length_name} = {length} holds {(length + 1) // 4} pairs at most (4 a token row)"]
    if pairs > vocab_size // 2:
        return [f"{name} = {pairs}: data.mqar.vocab_size = {vocab_size} has {vocab_size // 2} keys"]
    return []


def _curriculum(config: ConfigDict) -> list[str]:
    found = []
    for index, stage in enumerate(config.data.curriculum):
        name = f"data.curriculum[{index}]"
        if not isinstance(stage, Mapping):
            found.append(f"{name} = {stage!r}: must be dict({', '.join(f'{field}=' for field in STAGE_FIELDS)})")
            continue
        for field in stage:
            if field not in STAGE_FIELDS:
                found.append(f"{name}.{field} = {stage[field]!r}: unknown{nearest(field, STAGE_FIELDS)}")
        found += _stage(config, name, stage)
    steps = sum(stage["steps"] for stage in config.data.curriculum) if not found else 0
    if config.budget.kind == "steps" and steps >= config.budget.amount:
        found.append(
            f"budget.amount = {config.budget.amount:g}: data.curriculum alone takes {steps} steps, and the main "
            "setting needs some too"
        )
    return found


def _stage(config: ConfigDict, name: str, stage: Mapping[str, Any]) -> list[str]:
    found = []
    for field in ("steps", "length"):
        if field not in stage:
            found.append(f"{name}.{field}: is missing; a stage needs steps and length")
    for field in ("steps", "length", "batch_size", "pairs", "needles"):
        value = stage.get(field, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            found.append(f"{name}.{field} = {value!r}: must be a whole number above 0")
    given = stage.get("weights", {})
    if not isinstance(given, Mapping):
        return [*found, f"{name}.weights = {given!r}: must be dict(text=, mqar=, ...)"]
    main = config.data.weights.to_dict()
    for source, weight in given.items():
        if source not in main:
            found.append(f"{name}.weights.{source} = {weight!r}: unknown source{nearest(source, main)}")
        elif isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
            found.append(f"{name}.weights.{source} = {weight!r}: must be 0 or more")
    if found:
        return found
    merged = {**main, **given}
    if not any(merged.values()):
        found.append(f"{name}.weights: one source must be above 0")
    if merged["mqar"] > 0:
        pairs = stage.get("pairs", config.data.mqar.pairs)
        found += _pairs(f"{name}.pairs", pairs, f"{name}.length", stage["length"], config.data.mqar.vocab_size)
    found += tasks.problems(config, merged, stage, name)
    batch = stage.get("batch_size", config.data.batch_size)
    if batch % config.data.micro_batches:
        found.append(f"{name}.batch_size = {batch}: must be divisible by data.micro_batches")
    return found
