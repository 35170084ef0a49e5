"""Writes parameters that no training here made, or that were changed since, as a run directory."""

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

    The run stands at step 0 with status done: config.json, run.json, a checkpoint of the parameters alone, the
    tokenizer. Its `init_from` names the directory itself, so that training with its config.json in another workdir
    starts from its parameters. The directory appears whole, or not at all.

    Args:
        workdir: must not exist, or be empty.
        config: resolved, `model.vocab_size` set; it is not changed.
        params: {dotted path: array}, or a tree with those paths, of every parameter; written as float32.
        tokenizer_from: a `tokenizer` folder of a run, a tokenizer.json, or a folder with one; None: no tokenizer.
        origin: where it comes from and what was done; goes to run.json as `origin`.
        data: run.json's `data`, where the parameters were trained here.
        parents: the runs they come from (`provenance.parents_of`), the nearest first.

    Returns:
        workdir, absolute.

    Raises:
        UserError: something is in workdir, the tokenizer is none or has more tokens than the model, or a parameter
            is missing, not asked for, or of another shape.
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
    """Refuses to write where something is.

    Raises:
        UserError: `folder` is a file, or a directory that is not empty.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder}: exists already, and nothing is overwritten; choose another directory")


def _tokenizer(path: Path) -> Any:
    if (path / tokenizers.DESCRIPTION).is_file():
        return tokenizers.restore(path)
    return tokenizers.from_file(path / tokenizers.HUGGING_FACE if path.is_dir() else path)


def _fit(config: ConfigDict, tokenizer: Any, workdir: Path) -> None:
    """Checks the tokenizer against the model and has the config's data read with it, in place."""
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
    """Gives a folder beside `folder` that takes its name at the end, or is gone after an error."""
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
