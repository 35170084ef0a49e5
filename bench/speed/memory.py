"""Whether training's memory is linear in length: the compiled peak at 8,192 tokens against that at 4,096."""

import dataclasses
import json
import sys

from bench.speed.cases import CASES
from bench.speed.ours import config_of
from eval.cost.programs import analysis
from training.step import train_step

LENGTHS = (4096, 8192)


def measure() -> dict[str, float]:
    """Returns the compiled peak in bytes at each length (batch 1, width 256), and their ratio."""
    peaks = {}
    for length in LENGTHS:
        case = dataclasses.replace(CASES[0], batch=1, length=length)
        result = analysis(train_step.lower(config_of(case)).compile())
        if result is None:
            raise RuntimeError("this platform does not report a program's memory")
        peaks[str(length)] = float(result["peak"])
    return {**peaks, "ratio": peaks[str(LENGTHS[1])] / peaks[str(LENGTHS[0])]}


if __name__ == "__main__":
    json.dump(measure(), sys.stdout)
