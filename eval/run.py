"""python -m eval.run: evaluates a run directory and writes DIR/eval/NAME.json, one file per evaluation."""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m eval.run")

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from configs import cli, provenance
from configs.errors import UserError, nearest
from configs.evaluations import EVALUATIONS, RESULTS
from configs.validate import check, to_dict
from eval import options
from eval.options import DEFAULT
from eval.progress import Quiet, Reporter
from training.run_directory import files
from training.run_directory import run as runs
from training.runtime import compilation

SCHEMA = 1


def evaluate(
    workdir: str | Path,
    evals: Sequence[str] = DEFAULT,
    settings: Mapping[str, Any] | None = None,
    progress: Quiet | None = None,
    context: int = 1,
) -> dict[str, dict[str, Any]]:
    """Runs evaluations on a run's newest checkpoint and writes each to WORKDIR/eval/NAME.json when it ends.

    Args:
      workdir: a run directory.
      evals: names of EVALUATIONS.
      settings: changes of config.eval, dotted: {"retrieval.task": "mqar"}.
      progress: for messages; None: none.
      context: devices over which the tokens of each row are divided; only for the loss.

    Returns:
      {name: the written content}.

    Raises:
      UserError: an unknown name or setting, or no run there.
    """
    for name in evals:
        if name not in EVALUATIONS:
            allowed = f"must be of {', '.join(EVALUATIONS)}{nearest(name, EVALUATIONS)}"
            raise UserError(f"--evals: {name!r} is not an evaluation; {allowed}")
    divided = [name for name, evaluation in EVALUATIONS.items() if evaluation.divided]
    if context != 1 and not {*evals} <= {*divided}:
        raise UserError(
            f"--config.mesh.context={context}: only {', '.join(divided)} can be evaluated over devices; set "
            f"--evals={','.join(divided)}"
        )
    progress = Quiet() if progress is None else progress
    changes = {f"eval.{name}": value for name, value in (settings or {}).items()}
    config = runs.load_config(workdir)
    cli.apply(config, changes)
    check(config)  # before any device work
    run = _served(dataclasses.replace(runs.load(workdir), config=config))
    run = runs.over_context(run, context)
    written = {}
    for name in dict.fromkeys(evals):
        written[name] = _one(run, name, progress)
    return written


def _served(run: runs.Run) -> runs.Run:
    """Returns the run with the KV storage to be measured."""
    if run.config.eval.kv_storage in ("model", run.config.model.attention.kv_storage):
        return run
    model = run.config.model.copy_and_resolve_references()
    model.attention.kv_storage = run.config.eval.kv_storage
    return run.with_model(model)


def _one(run: runs.Run, name: str, progress: Quiet) -> dict[str, Any]:
    start = time.perf_counter()
    result = EVALUATIONS[name].load()(run, progress)
    return record(run, name, result, time.perf_counter() - start, progress)


def record(run: runs.Run, name: str, results: dict[str, Any], seconds: float, progress: Quiet) -> dict[str, Any]:
    """Writes an evaluation's results to WORKDIR/eval/NAME.json after the common fields; returns the content.

    `records` among them, a table of single measurements, goes to WORKDIR/eval/NAME.parquet. Both record what they were
    made from (configs/provenance.py), the table in its metadata under `of`.

    Raises:
        UserError: the run directory is gone, or a file cannot be written: the disk is full or read-only, or a folder
            has its name.
    """
    if not Path(run.workdir).is_dir():
        raise UserError(f"{run.workdir}: vanished while it was evaluated (removed, moved or unmounted); restore it")
    files.own(Path(run.workdir), "eval")
    path = Path(run.workdir) / "eval" / f"{name}.json"
    records = results.pop("records", None)
    settings = {**to_dict(run.config)["eval"], **results.pop("settings", {})}
    of = provenance.of_result(Path(run.workdir), name, to_dict(run.config), results, run.step)
    shared = {"schema": SCHEMA, "eval": name, "step": run.step, "of": of, "settings": settings}
    result = {**shared, **results, "seconds": seconds}
    try:
        if records:
            import pyarrow.parquet

            with files.replacing(path.with_suffix(".parquet")) as temporary:
                table = pyarrow.Table.from_pylist(records)
                metadata = {**(table.schema.metadata or {}), b"of": json.dumps(of).encode()}
                pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), temporary)
        files.write_json(path, result)
    except OSError as error:
        raise UserError(f"{error.filename2 or path}: cannot be written: {error.strerror or error}") from error
    measured = RESULTS[name].line(result)
    progress.say(f"{name}: {path} ({seconds:.1f} s){f': {measured}' if measured else ''}")
    return result


def eval_settings(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns changes of config.eval, without the prefix `eval.`.

    Raises:
      UserError: one of them changes something else.
    """
    for name in overrides:
        if not name.startswith("eval."):
            raise UserError(f"--config.{name}: the run is trained; only --config.eval.* can be changed at evaluation")
    return {name.removeprefix("eval."): value for name, value in overrides.items()}


def main(argv: Sequence[str]) -> int:
    """The command."""
    overrides, rest = cli.split_overrides(argv)
    args = options.run(__doc__ or "").parse_args(rest)
    context = overrides.pop("mesh.context", 1)
    settings = eval_settings(overrides)
    names = [name.strip() for name in args.evals.split(",") if name.strip()]
    if not names:
        raise UserError(f"--evals: is empty; must be of {', '.join(EVALUATIONS)}")
    compilation.enable_cache()
    value = evaluate(args.workdir, names, settings, Reporter(), context)
    return 0 if all(result.get("passed", True) for result in value.values()) else 1


if __name__ == "__main__":
    cli.main(main)
