"""TFDS data sets: our own, written as ArrayRecord, and others, found by name; TensorFlow is never imported.

Code of stock builders may import TensorFlow, so a data set is always opened from its prepared files
(`tfds.builder_from_directory`, then `as_data_source`, which is what `tfds.data_source` does once it has a builder).
"""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import tensorflow_datasets as tfds

from configs.errors import UserError
from data.documents import Document

CHUNK = 256  # records read at once


class Texts(Sequence[str]):
    """The texts of one split, with random access; decoded from the UTF-8 bytes that TFDS returns."""

    def __init__(self, records: Any, field: str, where: str) -> None:
        self._records = records
        self._field = field
        self._where = where

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            places = range(len(self))[index]
            records = self._read(places) if places else []
            return [self._decode(place, record) for place, record in zip(places, records, strict=True)]
        place = range(len(self))[index]
        return self._decode(place, self._read([place])[0])

    def _read(self, places: Sequence[int]) -> list[dict[str, bytes]]:
        """Reads records; ArrayRecord has a hash of every chunk of records.

        Raises:
            UserError: a record is damaged; it is named.
        """
        try:
            return self._records.__getitems__(places) if len(places) > 1 else [self._records[places[0]]]
        except (RuntimeError, ValueError) as error:  # from the reader, or from decoding the record
            if len(places) > 1:
                for place in places:
                    self._read([place])
            message = " ".join(str(error).split())[:200]
            raise UserError(f"{self._where}, record {places[0]}: is damaged ({message})") from error

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), CHUNK):
            yield from self[start : start + CHUNK]

    def _decode(self, place: int, record: dict[str, bytes]) -> str:
        try:
            return record[self._field].decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self._where}, record {place}: is not valid UTF-8 at byte offset {error.start} ({error.reason})"
            ) from error


class _LocalInfo(tfds.core.DatasetInfo):
    """Looks only on this disk; TFDS's own class leaves an empty temporary folder behind each time."""

    def initialize_from_bucket(self) -> None:
        """Does nothing."""


class AblaxText(tfds.core.GeneratorBasedBuilder):
    """Named texts in the given order."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, *, splits: dict[str, Callable[[], Iterable[Document]]], **settings: Any) -> None:
        self._splits = splits
        super().__init__(**settings)

    def _info(self) -> tfds.core.DatasetInfo:
        features = {"name": tfds.features.Text(), "text": tfds.features.Text()}
        features = tfds.features.FeaturesDict(features)
        return _LocalInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterable[tuple[int, dict[str, str]]]]:
        return {name: self._generate_examples(generate()) for name, generate in self._splits.items()}

    def _generate_examples(self, texts: Iterable[Document]) -> Iterator[tuple[int, dict[str, str]]]:
        for index, document in enumerate(texts):
            yield index, {"name": document.name, "text": document.text}


def write(folder: Path, splits: dict[str, Callable[[], Iterable[Document]]]) -> None:
    """Writes documents as an ArrayRecord data set under `folder`."""
    tfds.disable_progress_bar()
    builder = AblaxText(splits=splits, data_dir=folder, file_format="array_record")
    with contextlib.redirect_stdout(io.StringIO()):  # TFDS announces downloads, although there are none
        builder.download_and_prepare()


def read_prepared(folder: Path, names: Sequence[str] = ("train", "validation")) -> list[Texts]:
    """Opens the texts of the splits that `write` wrote, by default train and validation."""
    builder = tfds.builder_from_directory(folder / AblaxText.name / str(AblaxText.VERSION))
    return [Texts(builder.as_data_source(name), "text", name) for name in names]


@dataclass(frozen=True)
class Found:
    """A prepared TFDS data set. `label` is `name[/config]:version`."""

    label: str
    builder: Any
    field: str

    def texts(self, split: str) -> Texts:
        """Opens one split, which may be a part such as `train[:90%]`.

        Raises:
            UserError: no such split, or files without random access.
        """
        self._info(split)
        try:
            records = self.builder.as_data_source(split)
        except (NotImplementedError, ValueError) as error:
            raise UserError(
                f"data.tfds.name = {self.label!r}: its files are {self.builder.info.file_format.value}; prepare it "
                "with file_format='array_record'"
            ) from error
        return Texts(records, self.field, f"{self.label}, split {split}")

    def file_hashes(self, splits: Iterable[str]) -> list[list[Any]]:
        """Returns [file name, sha256] of every record file of the splits.

        Raises:
            UserError: a file is missing or cannot be read.
        """
        paths = {Path(path) for split in splits for path in self._info(split).filepaths}
        hashes = []
        for path in sorted(paths):
            try:
                with path.open("rb") as file:
                    hashes.append([path.name, hashlib.file_digest(file, "sha256").hexdigest()])
            except OSError as error:
                raise UserError(f"{self.label}: {path.name} cannot be read ({error.strerror})") from error
        return hashes

    def shared_records(self, one: str, other: str) -> int:
        """Returns how many records two splits have in common: same indices of the same files.

        Raises:
            UserError: no such split.
        """
        left, right = self._spans(one), self._spans(other)
        return sum(
            max(0, min(stop, end) - max(start, begin))
            for file, start, stop in left
            for other_file, begin, end in right
            if file == other_file
        )

    def _spans(self, split: str) -> list[tuple[str, int, int]]:
        """The records of a split: (file, first, end)."""
        results = []
        for part in self._info(split).file_instructions:
            stop = part.examples_in_shard if part.take == -1 else part.skip + part.take
            results.append((os.path.realpath(part.filename), part.skip, stop))
        return results

    def _info(self, split: str) -> Any:
        try:
            return self.builder.info.splits[split]
        except (KeyError, ValueError) as error:
            known = ", ".join(self.builder.info.splits)
            raise UserError(f"data.tfds: {self.label} has no split {split!r}; it has {known}") from error


def find(name: str, data_dir: str, field: str) -> Found:
    """Finds a prepared data set named `name[/config][:version]`; without a version, the newest.

    Raises:
        UserError: it is missing (the message lists what exists), damaged, or has no text feature `field`.
    """
    base = Path(data_dir or tfds.core.constants.get_default_data_dir()).expanduser()
    prepared = sorted(base.glob("*/*/dataset_info.json")) + sorted(base.glob("*/*/*/dataset_info.json"))
    by_label = {}
    for path in prepared:
        *names, version = path.parent.relative_to(base).parts
        if tfds.core.Version.is_valid(version):
            by_label[f"{'/'.join(names)}:{version}"] = path.parent
    matching = [label for label in by_label if name in (label, label.rsplit(":", 1)[0])]
    if not matching:
        there = ", ".join(by_label) or "no prepared data set"
        raise UserError(f"data.tfds.name = {name!r}: not found in {os.fspath(base)}, which has {there}")
    label = max(matching, key=lambda result: tfds.core.Version(result.rsplit(":", 1)[1]))
    _only_own_features(by_label[label] / "features.json", label)
    try:
        builder = tfds.builder_from_directory(by_label[label])
    except Exception as error:  # damaged files raise any exception
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"data.tfds.name = {name!r}: {label} cannot be opened ({message})") from error
    features = dict(builder.info.features.items())
    if field not in features:
        raise UserError(f"data.field = {field!r}: {label} has the features {', '.join(features)}")
    feature = features[field]
    if not isinstance(feature, tfds.features.Text):
        raise UserError(f"data.field = {field!r}: of {label} is {type(feature).__name__}, not text")
    return Found(label, builder, field)


def _only_own_features(path: Path, label: str) -> None:
    """Refuses a data set whose files name foreign code: TFDS would import, and so execute, any module they name.

    Raises:
        UserError: a feature's class is not part of TFDS.
    """
    try:
        left = [json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError) as error:
        raise UserError(f"data.tfds.name: {label} cannot be opened: {path} ({error})") from error
    while left:
        node = left.pop()
        if isinstance(node, dict):
            name = node.get("pythonClassName", node.get("type") if "content" in node else None)
            if isinstance(name, str) and not name.startswith("tensorflow_datasets."):
                raise UserError(
                    f"data.tfds.name: {label}: {path} names the class {name}, which is not part of TFDS; code from a "
                    "data set is not run"
                )
            left += node.values()
        elif isinstance(node, list):
            left += node
