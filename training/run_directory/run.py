"""Opening a run directory: its config, its model, its tokenizer, its data."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from configs import fields, provenance, validate
from configs.errors import ConfigError, UserError
from configs.rules import tasks
from data import sources, tokenizers
from training.run_directory.checkpoint import Checkpoints, newest
from training.run_directory.files import read_json
from training.step import mesh as meshes
from training.step import train_step as steps

# Entries of run.json's `data` that identify a text: files, documents with their names, the split.
TEXT = {"sha256": "sha256", "documents_sha256": "documents and their split", "split": "split"}


@dataclass(frozen=True)
class Run:
    """A trained model from its run directory.

    Attributes:
        config: resolved, every field.
        graphdef: the NNX graph; `nnx.merge(graphdef, params)` is the model.
        params: float32 parameters of `step`.
        tokenizer: the run's own, or None if it read no text.
        mesh: devices that evaluate it together, with the parameters on each of them; None: one device.
    """

    workdir: Path
    config: ConfigDict
    graphdef: Any
    params: Any
    tokenizer: Any
    step: int
    mesh: Mesh | None = None

    def with_model(self, model: ConfigDict) -> "Run":
        """Returns the run with another model config for the same parameters (such as another RoPE scaling)."""
        config = fields.from_dict(fields.to_dict(self.config))
        config.model = model
        return dataclasses.replace(self, config=config, graphdef=steps.abstract(config).graphdef)


def load_config(workdir: str | Path) -> ConfigDict:
    """Returns a run directory's resolved config.

    The file may have been edited by hand, or come from elsewhere: it is checked like a new config.

    Raises:
        UserError: it is not a run directory. ConfigError: its config.json does not fit this version's schema, or has an
            invalid value; each line has the file, field and value.
    """
    path = Path(workdir) / "config.json"
    if not path.exists():
        runs = sorted(Path(workdir).glob("runs/*/seed*/config.json")) if (Path(workdir) / "sweep.json").exists() else []
        hint = f"; it is a sweep; use one of its runs, such as {runs[0].parent}" if runs else ""
        raise UserError(f"{workdir}: is not a run directory (no config.json){hint}")
    values = read_json(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: must be a JSON object")
    config = fields.from_dict(values, source=str(path))
    try:
        return validate.resolve(config)
    except ConfigError as error:
        raise ConfigError(f"{path}: {problem}" for problem in error.problems) from error


def load(workdir: str | Path, step: int | None = None) -> Run:
    """Restores a run directory: the newest checkpoint, or the one of `step`.

    Raises:
        UserError: no run directory, no (such) checkpoint, or a config that does not fit the schema or is not the one
            that the run was trained with.
    """
    workdir = Path(workdir)
    config = load_config(workdir)
    if line := provenance.changed(workdir):
        raise UserError(f"{workdir}: {line}")
    step = newest(workdir, step)
    shapes = steps.abstract(config)
    checkpoints = Checkpoints(workdir, read_only=True)
    try:
        params = checkpoints.restore_params(step, shapes.params)
    finally:
        checkpoints.close()
    return Run(workdir, config, shapes.graphdef, params, load_tokenizer(workdir), step)


def over_context(run: Run, devices: int) -> Run:
    """Returns the run on a mesh that divides the tokens of long rows over devices.

    Raises:
        ConfigError: there are too few devices.
    """
    if devices == 1:
        return run
    config = fields.from_dict(fields.to_dict(run.config))
    config.mesh.update({"data": 1, "fsdp": 1, "tensor": 1, "context": devices})
    mesh = meshes.mesh_of(config)
    rules = meshes.rules_of(config, mesh)
    assert rules is not None
    return dataclasses.replace(run, mesh=mesh, params=jax.device_put(run.params, meshes.whole(rules)))


def load_tokenizer(workdir: str | Path) -> Any:
    """Returns a run's own tokenizer, or None if it read no text.

    Raises:
        UserError: its tokenizer folder has none.
    """
    folder = Path(workdir) / "tokenizer"
    return tokenizers.restore(folder) if folder.exists() else None


def open_data(config: ConfigDict) -> Any:
    """Returns the corpus that a config reads, prepared if necessary, or None if it reads no text."""
    return sources.open_data(config.data, config.model.vocab_size) if tasks.reads_text(config) else None


def open_text(run: Run) -> Any:
    """Returns the corpus for evaluating a run, or None if it reads no text.

    Raises:
        UserError: it is not the text that the run was trained on, or the run's tokenizer is missing.
    """
    corpus = open_data(run.config)
    if corpus is None:
        return None
    if run.tokenizer is None and corpus.holds_text:
        raise UserError(f"{run.workdir / 'tokenizer'}: is missing, and the run's text cannot be read without it")
    path = run.workdir / "run.json"
    values = read_json(path) if path.exists() else {}
    trained = values.get("data") if isinstance(values, dict) else None
    for name, short in TEXT.items():
        known = trained.get(name) if isinstance(trained, dict) else None
        now = corpus.fingerprint.get(name)
        if None not in (known, now) and known != now:
            shown = (str(known)[:12], str(now)[:12]) if name != "split" else (known, now)
            raise UserError(
                f"{run.workdir}: was trained on other data; the data named in its config.json has changed since "
                f"({short} {shown[0]} in run.json, {shown[1]} now)"
            )
    return corpus


def open_tokenizer(config: ConfigDict, corpus: Any) -> Any:
    """Returns the tokenizer that a config names, or None if the run neither reads nor writes words."""
    return tokenizers.load(config.data, corpus, config.model.vocab_size) if tasks.has_tokenizer(config) else None


def vocabulary(config: ConfigDict) -> int:
    """Returns the vocabulary of a resolved config; if only the tokenizer knows it, the data is opened."""
    if config.model.vocab_size is not None:
        return config.model.vocab_size
    tokenizer = open_tokenizer(config, open_data(config))
    return max(0 if tokenizer is None else tokenizer.vocab_size, config.data.vocab_size or 0, tasks.vocabulary(config))
