"""Every source of text that is declared has a file that opens it, a case here and a line in the docs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs import fields
from configs.errors import ConfigError, UserError
from configs.rules.sources import SOURCES
from data import identity, sources, tokenizers
from tests.data.common import settings, write
from tests.data.test_shards import DOCUMENTS, HELD_OUT, ids, shard
from tests.data.test_tfds import TinyStories

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    TinyStories(data_dir=folder / "tfds", config="plain", file_format="array_record").download_and_prepare()
    texts = {f"texts/{i}.txt": one for i, one in enumerate(DOCUMENTS)}
    return write(folder, {**texts, "held/a.txt": "".join(HELD_OUT), "a.bin": shard(ids(DOCUMENTS))})


def _tfds(folder: Path) -> dict[str, Any]:
    named = {"data__tfds__name": "tiny_stories/plain", "data__tfds__data_dir": str(folder / "tfds")}
    return {**named, "data__tfds__validation_split": "dev", "data__field": "story"}


def _mixture(folder: Path) -> dict[str, Any]:
    texts = str(folder / "texts/*.txt")
    apart = {"path": texts, "weight": 1.0, "name": "b", "validation_path": str(folder / "held/*.txt")}
    # The first text's validation documents train as the second.
    return {"data__mixture": ({"path": texts, "weight": 2.0}, apart), "data__validation_in_train": 1.0}


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "stdlib": lambda folder: {},
    "files": lambda folder: {"data__path": str(folder / "texts/*.txt")},
    "tfds": _tfds,
    "mixture": _mixture,
}
# What runs of before recorded: another digest means that they cannot be resumed or compared.
FINGERPRINTS = {
    "files": "63561bec340ba2caad9e481360c7ffd9",
    "tfds": "1fd55c9a6bafce6da0960faa9fb72e95",
    "files, validation apart": "8b5b24088f67d443047c68a6322e7cca",
    "tfds, validation apart": "8ae51576b1584a70c4941e633105b35c",
    "token files": "08271dd038da6bfc2636e122b764f733",
}


def fingerprint(folder: Path, **given: Any) -> dict[str, Any]:
    config = settings(data__cache_dir=str(folder / "cache"), **given)
    corpus = sources.open_data(config.data, config.model.vocab_size)
    return identity.fingerprint(config, corpus, tokenizers.load(config.data, corpus, config.model.vocab_size))


def test_every_source_is_allowed_opened_tested_and_described() -> None:
    files = {path.stem for path in (ROOT / "data/sources").glob("*.py") if "\ndef open_corpus(" in path.read_text()}
    assert {*SOURCES} == {*fields.choices("data.source")} == files == {*CASES}
    page = (ROOT / "docs/data.md").read_text()
    for name, one in SOURCES.items():
        assert f"| `{name}` |" in page
        assert not one.field or f"data.{one.field}" in fields.types()


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_selected_by_its_field_and_says_so(name: str, folder: Path) -> None:
    config = settings(**CASES[name](folder))
    assert config.data.source == name
    if name != "stdlib":  # its files are those of this Python
        assert fingerprint(folder, **CASES[name](folder))["source"].partition(":")[0] == name


@pytest.mark.parametrize("name", [name for name, one in SOURCES.items() if one.field])
def test_a_source_needs_its_field_and_excludes_the_others(name: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=rf"data\.{SOURCES[name].field} = .*: data\.source = '{name}' needs"):
        settings(data__source=name)
    for other in {*SOURCES} - {name, "stdlib"}:
        with pytest.raises(ConfigError, match="is also set; set only one of them"):
            settings(**{**CASES[name](folder), **CASES[other](folder)})


def test_fingerprints_are_those_of_earlier_runs(folder: Path) -> None:
    held = {"data__validation_path": str(folder / "held/*.txt")}
    tokens = {"data__path": str(folder / "a.bin"), "model__vocab_size": 256}
    cases: dict[str, dict[str, Any]] = {
        "files": CASES["files"](folder),
        "tfds": _tfds(folder),
        "files, validation apart": {**CASES["files"](folder), **held},
        "tfds, validation apart": {**_tfds(folder), **held},
        "token files": tokens,
    }
    assert {name: fingerprint(folder, **one)["fingerprint"] for name, one in cases.items()} == FINGERPRINTS


def test_an_unknown_source_is_refused() -> None:
    data = settings().data
    data.source = "file"
    with pytest.raises(UserError, match=r"data\.source = 'file': is not a source of text; did you mean files\?"):
        sources.open_data(data)
