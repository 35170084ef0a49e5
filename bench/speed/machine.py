"""The machine's limit for each case: its FLOPs at the rate of a large matmul, its bytes at the rate of reading.

A step cannot take less than its matmuls at the measured rate; a generated token not less than that, or than reading
every parameter and the keys and values so far. The rate of reading is the better of a copy's and that of a vector
times a matrix, over as many bytes as the parameters have, so that both fit the same caches.
`python -m bench.speed.machine --threads=2` prints JSON. It is a process of its own, so that peers wait while it
measures.
"""

import argparse
import json
from dataclasses import replace
from typing import Any

from bench.speed.cases import CASES, Case
from bench.speed.serving import cores

LEAST = 1 << 22  # bytes that are read: above what an inner cache holds


def work(case: Case) -> dict[str, float]:
    """Returns the `flops` of a training step.

    Of a generation: `flops` of the prompt, `new_flops` and `new_bytes` of the tokens after it, and `read_bytes`, which
    are those of the parameters.
    """
    from bench.speed.ours import config_of
    from models import counting

    model = config_of(case).model
    flops = counting.flops_per_token(model, case.length)
    if case.kind == "train":
        return {"flops": float(flops["value"]) * case.tokens}
    element = 2 if case.dtype == "bfloat16" else 4
    read = float(counting.parameters(model)["total"] * element)
    cached = counting.kv_bytes_per_token(model, element) * (case.length + (case.new + 1) / 2) * case.batch
    forward = float(flops["forward"]) * case.batch
    return {
        "flops": forward * case.length,
        "new_flops": forward * case.new,
        "new_bytes": (read + cached) * case.new,
        "read_bytes": read,
    }


def reading(nbytes: int) -> float:
    """Returns the bytes/s at which an array of that size is read: by a vector-matrix product or a copy."""
    import jax.numpy as jnp

    from eval.cost import peaks

    width = 1024
    matrix = jnp.ones((nbytes // (4 * width), width), jnp.float32)
    seconds = peaks.fastest(jnp.matmul, jnp.ones((1, len(matrix))), matrix)
    return max(matrix.nbytes / seconds, peaks.peaks("float32", copied=nbytes)["bandwidth"])


def limit(case: Case, dtype: str) -> dict[str, Any]:
    """Returns a case's lower bound in `seconds`, and the rates behind it: FLOP/s, bytes/s if it reads."""
    from eval.cost import peaks

    needed, rate = work(case), peaks.peaks(dtype)["flops"]
    if case.kind == "train":
        return {**needed, "seconds": needed["flops"] / rate, "rate": rate}
    bandwidth = reading(max(LEAST, int(needed["read_bytes"])))
    new = max(needed["new_flops"] / rate, needed["new_bytes"] / bandwidth)
    return {**needed, "seconds": needed["flops"] / rate + new, "rate": rate, "bandwidth": bandwidth}


def main() -> None:
    """Prints {case: its limit}."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    cores(given.threads)
    cases = [replace(case, dtype=given.dtype) for case in CASES]
    print(json.dumps({case.name: limit(case, given.dtype) for case in cases}))


if __name__ == "__main__":
    main()
