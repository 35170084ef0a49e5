"""Writes a run directory from parameters that were not trained here, or were changed since."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs import fields, provenance
from configs.errors import UserError
from data import tokenizers
from training.run_directory import record
from training.run_directory.checkpoint import Checkpoints, flat, unflat
from training.run_directory.files import write_json
from training.step import train_step


def write_run(
    workdir: str | Path,
    config: ConfigDict,
    params: Any,
    *,
    tokenizer_from: str | Path | None = None,
    origin: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
    parents: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Writes a run directory that evaluation restores and that `train.py --config=WORKDIR/config.json` continues.

    The run is at step 0 with status done: config.json, run.json, a checkpoint of only the parameters, the tokenizer.
    Its `init_from` names the directory itself, so that training with its config.json in another workdir starts from its
    parameters. The directory appears complete, or not at all.

    Args:
        workdir: must not exist, or be empty.
        config: resolved, with `model.vocab_size`; it is not changed.
        params: {dotted path: array}, or a tree with those paths, of all parameters; written as float32.
        tokenizer_from: a `tokenizer` folder of a run, a tokenizer.json, or a folder with one; None: no tokenizer.
        origin: the source and what was done; recorded in run.json as `origin`.
        data: run.json's `data`, if the parameters were trained here.
        parents: the runs they come from (`provenance.parents_of`), nearest first.

    Returns:
        workdir, absolute.

    Raises:
        UserError: workdir is not empty, the tokenizer is invalid or has more tokens than the model, or a parameter is
            missing, unexpected, or has another shape.
    """
    workdir = Path(workdir).absolute()
    refuse_existing(workdir)
    config = fields.from_dict(fields.to_dict(config))
    config.init_from = str(workdir)
    tokenizer = None if tokenizer_from is None else _tokenizer(Path(tokenizer_from))
    if tokenizer is not None:
        _fit(config, tokenizer, workdir)
    whole = _checked(params, train_step.abstract(config).params)
    known = dict(data) if isinstance(data, Mapping) else {"fingerprint": None}
    values = record.describe(config, known) | {"status": "done", "origin": dict(origin)}
    values["identity"] = provenance.identity(fields.to_dict(config), list(parents))
    with whole_folder(workdir) as folder:
        checkpoints = Checkpoints(folder)
        checkpoints.save_params(0, whole, {"origin": dict(origin)})
        checkpoints.close()
        if tokenizer is not None:
            tokenizer.save(folder / "tokenizer")
        write_json(folder / "run.json", values)
        write_json(folder / "config.json", fields.to_dict(config))
    return workdir


def refuse_existing(folder: Path) -> None:
    """Refuses to write to an existing folder with content.

    Raises:
        UserError: `folder` is a file, or a directory that is not empty.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder}: already exists, and nothing is overwritten; use another directory")


def _tokenizer(path: Path) -> Any:
    if (path / tokenizers.DESCRIPTION).is_file():
        return tokenizers.restore(path)
    return tokenizers.from_file(path / tokenizers.HUGGING_FACE if path.is_dir() else path)


def _fit(config: ConfigDict, tokenizer: Any, workdir: Path) -> None:
    """Checks the tokenizer against the model and sets it in the config's data, in place."""
    if tokenizer.vocab_size > config.model.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model model.vocab_size = {config.model.vocab_size}"
        )
    kind = tokenizer.describe()["kind"]
    config.data.tokenizer = str(workdir / "tokenizer") if kind == "file" else kind


def _checked(params: Any, expected: Any) -> Any:
    """Returns the parameters as float32 in the tree `expected`."""
    given, shapes = flat(params), {name: tuple(x.shape) for name, x in flat(expected).items()}
    for name in sorted(given.keys() | shapes.keys()):
        shape = tuple(np.shape(given[name])) if name in given else "nothing"
        if shape != shapes.get(name, "nothing"):
            raise UserError(f"parameter {name}: is {shape}, the config's model has {shapes.get(name, 'nothing')}")
    return unflat({name: np.asarray(x, np.float32) for name, x in given.items()}, expected)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder that is renamed to `folder` at the end, or removed after an error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".tmp"))
    try:
        os.chmod(work, 0o755)
        yield work
        refuse_existing(folder)
        os.replace(work, folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
