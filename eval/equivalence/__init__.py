"""Equivalence: every kernel and layout a config could use against the reference, on this device.

To be run before a sweep. An attention layer of each kind in the config runs under every kernel; the whole model runs
split and fused, scanned and unrolled, with and without rematerialization, packed, padded and through its cache. Outputs
and gradients that must be equal are compared with stated tolerances.
"""

import time
from collections.abc import Iterator
from typing import Any

import jax
from ml_collections import ConfigDict
from rich.table import Table
from rich.text import Text

from eval.equivalence import cores, decoding, layouts
from eval.equivalence.rows import TOLERANCES, Row
from eval.equivalence.setting import Setting, settings
from eval.progress import Quiet
from training.run_directory.run import Run

GROUPS = (cores.rows, layouts.rows, decoding.rows)


def evaluate(run: Run, progress: Quiet) -> dict[str, Any]:
    """Returns eval/equivalence.json's content, for a run's parameters."""
    return check(run.config, progress, run.params)


def check(config: ConfigDict, progress: Quiet, params: Any = None) -> dict[str, Any]:
    """Runs all comparisons, and shows the table.

    Args:
        config: a resolved config; `eval.equivalence` sets the shapes.
        progress: for messages.
        params: of its model; None: its initial ones.

    Returns:
        `rows`, each with its largest absolute and relative error, its tolerance, whether that is `exceeded`, or the
            `reason` if there is nothing to compare; and `passed`, whether none is exceeded.

    Raises:
        UserError: shapes too small for the comparison.
    """
    start = time.perf_counter()
    tried = settings(config, params)
    results: list[Row] = []
    for setting in tried:
        for row in progress.track(f"equivalence, {setting.dtype}", _rows(setting)):
            results.append(row)
    first = tried[0]
    result = {
        "passed": not any(row.exceeded for row in results),
        "device": {"kind": jax.devices()[0].device_kind, "platform": jax.default_backend()},
        "tolerances": TOLERANCES,
        "rows": [row.entry for row in results],
        "settings": {"length": first.length, "batch_size": first.batch, "changed": first.changed},
    }
    progress.show(table(results, first, time.perf_counter() - start))
    progress.say(summary(results))
    return result


def _rows(setting: Setting) -> Iterator[Row]:
    for group in GROUPS:
        yield from group(setting)


def table(rows: list[Row], setting: Setting, seconds: float) -> Table:
    """Returns the rows as a table."""
    made = ", ".join(f"{name} = {value}" for name, value in setting.changed.items())
    caption = f"batch {setting.batch}, length {setting.length}, {seconds:.0f} s" + (
        f"; tried with {made}" if made else ""
    )
    result = Table(title="Equivalence", caption=caption)
    for name in ("what", "against", "where", "dtype", "part"):
        result.add_column(name, overflow="fold")
    for name in ("largest error", "relative", "allowed"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("", overflow="fold")
    for row in rows:
        result.add_row(*(Text(cell, style="red" if row.exceeded else "") for cell in cells(row)))
    return result


def cells(row: Row) -> list[str]:
    """Returns a row's cells as text."""
    named = [row.what, row.against, row.where, row.dtype, row.part]
    if row.reason is not None:
        return [*named, "", "", "", f"{'FAILED' if row.fails else 'not compared'}: {row.reason}"]
    verdict = f"EXCEEDED, {row.worst}" if row.exceeded else "ok"
    errors = [f"{value:.1e}" for value in (row.absolute, row.relative, row.tolerance) if value is not None]
    return [*named, *errors, verdict + (f" ({row.note})" if row.note else "")]


def summary(rows: list[Row]) -> str:
    """Returns the result in one line."""
    failed, compared = sum(row.fails for row in rows), [row for row in rows if row.reason is None]
    bad, made, absent = sum(row.exceeded for row in compared), len(compared), len(rows) - len(compared) - failed
    verdict = f"{bad} of {made} comparisons exceed their tolerance" if bad else f"all {made} comparisons pass"
    verdict += f"; {failed} failed to run" if failed else ""
    return f"equivalence: {verdict}; {absent} do not apply"
