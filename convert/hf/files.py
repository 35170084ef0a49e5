"""Checkpoint folders on disk: config.json and safetensors, single or sharded. A pickle is never opened."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from configs.errors import UserError
from training.run_directory.files import read_json

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
GENERATION = "generation_config.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.bin.index.json")
DTYPES = ("F32", "BF16", "F16")


class Weights:
    """The tensors of a folder, read one at a time.

    Raises:
        UserError: no safetensors, a shard is missing or broken, or the index names a missing file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = self._files()
        self._open: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name in sorted(self.files):
            self.shapes[name] = self._slice(name)

    def _files(self) -> dict[str, str]:
        """Returns {tensor: file}."""
        if (self.folder / WEIGHTS).is_file():
            return dict.fromkeys(self._file(WEIGHTS).keys(), WEIGHTS)
        path = self.folder / INDEX
        if not path.is_file():
            raise self._nothing()
        index = read_json(path)
        files = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(files, dict) or not all(isinstance(item, str) for item in files.values()):
            raise UserError(f"{path}: must have a weight_map from tensor to file")
        for file in sorted(set(files.values())):
            if Path(file).name != file or not file.endswith(".safetensors"):
                raise UserError(f"{path}: {file!r} is not the name of a safetensors file beside it")
            if not (self.folder / file).is_file():
                raise UserError(f"{path}: the shard {file} is missing")
        return files

    def _nothing(self) -> UserError:
        pickles = sorted({path.name for pattern in PICKLES for path in self.folder.glob(pattern)})
        if not pickles:
            return UserError(f"{self.folder}: has no {WEIGHTS} or {INDEX}")
        return UserError(
            f"{self.folder}: has {pickles[0]} but no safetensors; it is a pickle, which can execute code when "
            "opened, so it is not opened: save the model as safetensors"
        )

    def _file(self, name: str) -> Any:
        path = self.folder / name
        try:
            path.open("rb").close()  # safe_open reports an unreadable file as missing
            return safe_open(path, framework="np")
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path}: is not a safetensors file ({error})") from error

    def _handle(self, name: str) -> Any:
        file = self.files[name]
        if file not in self._open:
            self._open[file] = self._file(file)
        return self._open[file]

    def _slice(self, name: str) -> tuple[int, ...]:
        try:
            part = self._handle(name).get_slice(name)
        except SafetensorError:
            raise UserError(
                f"{self.folder / self.files[name]}: has no tensor {name}, although the index names it"
            ) from None
        return tuple(part.get_shape())

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor as float32; the conversion from bfloat16 and float16 is exact.

        Raises:
            UserError: it has another type, or values that are not finite.
        """
        kind = self._handle(name).get_slice(name).get_dtype()
        if kind not in DTYPES:
            raise UserError(
                f"{self.folder / self.files[name]}: {name} is {kind}; must be {', '.join(DTYPES)} (quantised weights "
                "are not supported)"
            )
        value = np.asarray(self._handle(name).get_tensor(name)).astype(np.float32)
        finite = np.isfinite(value)
        if not finite.all():
            at = ", ".join(map(str, np.argwhere(~finite)[0]))
            raise UserError(
                f"{self.folder / self.files[name]}: {name}[{at}] is {value[~finite][0]}, and {(~finite).sum()} of its "
                f"{value.size} numbers are not finite"
            )
        return value


def read_config(folder: Path) -> Mapping[str, Any]:
    """Returns config.json of a checkpoint folder.

    Raises:
        UserError: it is missing, or has no object.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such directory")
    return _object(folder / CONFIG)


def read_optional(path: Path) -> Mapping[str, Any]:
    """Returns a JSON object; an empty one if there is no such file.

    Raises:
        UserError: it has no object.
    """
    return _object(path) if path.is_file() else {}


def _object(path: Path) -> Mapping[str, Any]:
    values = read_json(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: must be a JSON object")
    return values


def write_weights(folder: Path, tensors: Iterator[tuple[str, np.ndarray]]) -> None:
    """Writes model.safetensors, float32, with the metadata that transformers expects."""
    whole = {name: np.ascontiguousarray(value, np.float32) for name, value in tensors}
    save_file(whole, folder / WEIGHTS, metadata={"format": "pt"})
