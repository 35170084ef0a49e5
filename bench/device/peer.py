"""transformers under torch.compile on a preset: python -m bench.device.peer CASES.json OUT.json.

Needs only PyTorch and transformers, so it can run in a separate environment.
"""

import importlib.util
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any


def seconds(work: Any, steps: int, skipped: int) -> float:
    """Returns the median time of a unit of work, without the first ones."""
    results = []
    for _ in range(steps):
        began = time.perf_counter()
        work()
        results.append(time.perf_counter() - began)
    return statistics.median(results[skipped:])


def measured(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the tokens per second of training and decoding, or why there are none."""
    absent = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if absent:
        return {
            "not_run": f"{' and '.join(absent)} not installed in {sys.executable} (--torch-python=PYTHON)",
            "wrong": [],
        }
    import torch

    from bench.speed import hf_llama
    from bench.speed.cases import Case

    case = Case(**given["train"])
    took = seconds(hf_llama.training(case, compiled=True), given["steps"], given["skipped"])
    results = {"torch": torch.__version__, "device": hf_llama.DEVICE, "seconds": took,
             "tokens_per_second": case.tokens / took, "decode": [], "wrong": []}  # fmt: skip
    for one in given["decode"]:
        case = Case(**one)
        entry: dict[str, Any] = {"rows": case.batch}
        try:
            entry["tokens_per_second"] = case.tokens / seconds(hf_llama.decoding(case, compiled=False), 3, 1)
        except Exception as error:
            entry["reason"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        results["decode"].append(entry)
    return results


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measured(json.loads(Path(sys.argv[1]).read_text()))), encoding="utf-8")
