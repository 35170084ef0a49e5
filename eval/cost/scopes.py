"""From the name of an instruction to its part of the model: `jax.named_scope` as XLA keeps it.

XLA gives an instruction the path of scopes it was traced in, such as
`jit(step)/transpose(jvp(attention))/attention_blocked/value_mixing/dot_general`. The innermost known scope determines
the part; `transpose(` marks the backward pass, including what a rematerialized block recomputes there. A path without a
known scope is unnamed.
"""

import re
from typing import NamedTuple

from configs.rules.kernels import KERNELS

# part -> (label, its scopes)
PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "qkv_projection": (
        "QKV projection",
        ("qkv_projection", "query_projection", "kv_projection", "kv_up_projection", "absorbed_query", "absorbed_value"),
    ),
    "positions": ("rotation by position", ("rotation",)),
    "attention_scores": ("attention scores, softmax", ("attention_scores", "query_key")),
    "value_mixing": ("value mixing", ("value_mixing",)),
    "attention_other": (
        "attention, undivided",
        (
            "attention",
            *(f"attention_{kernel}" for kernel in KERNELS),
        ),
    ),
    "output_projection": ("output projection", ("out_projection",)),
    "mlp": ("MLP", ("mlp",)),
    "embedding_logits": ("embedding, logits, loss", ("embed", "logits", "loss")),
    "kv_read": ("KV read", ("kv_read",)),
    "kv_write": ("KV write", ("kv_write", "kv_cache", "kv_places")),
    "norm": ("norms", ("norm",)),
    "optimizer": ("optimizer", ("optimizer",)),
    "rest": ("the rest", ("residual", "layer_slices", "micro_batches", "sampling")),
    "unnamed": ("unnamed", ()),
}
# The three groups that an arm can be bound by; the other parts are listed one by one.
GROUPS: dict[str, tuple[str, ...]] = {
    "projection": ("qkv_projection", "output_projection"),
    "attention": ("positions", "attention_scores", "value_mixing", "attention_other"),
    "KV reads and writes": ("kv_read", "kv_write"),
    "the MLP": ("mlp",),
    "embedding, logits and loss": ("embedding_logits",),
    "norms": ("norm",),
    "the optimizer": ("optimizer",),
    "the rest": ("rest", "unnamed"),
}
DIRECTIONS = ("forward", "backward", "update")
# Arguments of the programs, whose copies belong to the part that keeps them.
ARGUMENTS = {"params": "rest", "opt_state": "optimizer", "cache": "kv_write", "batch": "embedding_logits"}
# One query against a cache: both matmuls read it whole and do little per number, so they count as reading it.
READS_CACHE = ("query_key", "value_mixing")

_PART_OF = {scope: part for part, (_, scopes) in PARTS.items() for scope in scopes}


class Owner(NamedTuple):
    """The owner of an instruction's time."""

    part: str  # of PARTS
    direction: str  # of DIRECTIONS


UNNAMED = Owner("unnamed", "forward")


def owner(op_name: str, *, decoding: bool = False) -> Owner | None:
    """Returns the owner of an instruction with this `op_name`; None if it names no scope.

    Args:
        op_name: XLA's; of several joined by ";", the first known one counts.
        decoding: the program attends from single queries to a cache, so that the matmuls count as reading the cache.
    """
    if re.search(r"while/(?:body/add|cond/lt)$", op_name):
        return Owner("rest", "forward")  # a loop's counter
    for path in op_name.split(";"):
        argument = ARGUMENTS.get(re.split(r"[\[.]", path, maxsplit=1)[0])
        if argument is not None and "/" not in path:
            return Owner(argument, "update" if argument == "optimizer" else "forward")
        for place in reversed(path.split("/")):
            scope = re.sub(r"^(?:\w+\()*|\)*$", "", place)
            if place.startswith("jit(") or scope not in _PART_OF:
                continue
            part = "kv_read" if decoding and scope in READS_CACHE else _PART_OF[scope]
            if part == "optimizer":
                return Owner(part, "update")
            return Owner(part, "backward" if "transpose(" in path else "forward")
    return None
