"""A peer's process: takes jobs as JSON lines, times its own work, and answers as JSON lines. Needs only Python.

    {"case": {...}}      prepare it, warm it up         -> {"warm_up": seconds}
    {"seconds": 1.5}     work for about this long       -> {"seconds": [one number for each unit of work]}

It waits silently between jobs, so that peers can be measured in turn on the same cores.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.speed.cases import Case

Work = Callable[[], None]  # one step, or one generation; returns when it is done
WARM_UP = 3


def cores(count: int) -> None:
    """Pins this process to this many cores; to be called before a library starts its threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    os.environ["OMP_NUM_THREADS"] = str(count)


def serve(prepare: Callable[[Case], Work], about: dict[str, str]) -> None:
    """Answers jobs until the input ends; the first line describes the process (versions, threads)."""
    answer = opened()
    answer(about)
    work: Work | None = None
    for line in sys.stdin:
        job = json.loads(line)
        if "case" in job:
            work = None
            gc.collect()
            began = time.perf_counter()
            work = prepare(Case(**job["case"]))
            for _ in range(WARM_UP):
                work()
            answer({"warm_up": time.perf_counter() - began})
        elif work is not None:
            answer({"seconds": timed(work, job["seconds"])})


def opened() -> Callable[[dict[str, Any]], None]:
    """Returns a function that writes an answer; all other output goes to standard error from then on."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(values: dict[str, Any]) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    return answer


def timed(work: Work, seconds: float) -> list[float]:
    """Returns the time of each unit of work, until their sum reaches `seconds`."""
    results: list[float] = []
    while sum(results) < seconds:
        began = time.perf_counter()
        work()
        results.append(time.perf_counter() - began)
    return results
