"""The cache: whole entries or none, written once, in a folder nobody else can write to."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from configs.errors import UserError
from data import cache
from tests.data.common import words, write

ROOT = Path(__file__).parents[2]


def start(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


SLOW = """
import sys, time
from pathlib import Path
from data import cache
folder, log = Path(sys.argv[1]), Path(sys.argv[2])
def build(work):
    with log.open("a") as file:
        file.write("built\\n")
    (work / "part").write_text("half")
    print("half", flush=True)
    time.sleep(float(sys.argv[3]))
    (work / "part").write_text("whole")
cache.entry(folder, build)
print((folder / "part").read_text())
"""


def build(work: Path) -> None:
    (work / "part").write_text("whole")


def test_two_processes_build_once(tmp_path):
    folder, log = tmp_path / "entry", tmp_path / "log"
    processes = [start(SLOW, folder, log, 0.5) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert all(out.splitlines()[-1] == "whole" for out, _ in outputs)
    assert log.read_text() == "built\n"


def test_a_killed_build_leaves_no_entry_and_the_next_cleans_up(tmp_path):
    folder = tmp_path / "entry"
    process = start(SLOW, folder, tmp_path / "log", 60)
    assert process.stdout is not None and process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert not folder.exists()
    assert list(tmp_path.glob(".entry.*/part")), "the killed one's half"
    cache.entry(folder, build)
    assert (folder / "part").read_text() == "whole"
    assert not list(tmp_path.glob(".entry.*"))


def test_a_failing_build_leaves_nothing(tmp_path):
    def fail(work):
        build(work)
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        cache.entry(tmp_path / "entry", fail)
    assert not (tmp_path / "entry").exists() and not list(tmp_path.glob(".entry.*"))


def test_a_full_disk_is_told(tmp_path):
    def fail(work):
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"cannot write the cache entry .*: No space left on device"):
        cache.entry(tmp_path / "entry", fail)


@pytest.mark.parametrize("harm", [lambda f: (f / "part").write_text("who"), lambda f: (f / "part").unlink(),
                                  lambda f: (f / cache.MARKER).write_text("{")])  # fmt: skip
def test_a_damaged_entry_is_built_again(tmp_path, harm):
    folder = cache.entry(tmp_path / "entry", build)
    harm(folder)
    cache.entry(folder, build)
    assert (folder / "part").read_text() == "whole"


def test_a_whole_entry_is_not_built_again(tmp_path):
    folder = cache.entry(tmp_path / "entry", build)
    cache.entry(folder, lambda work: pytest.fail("built again"))


def test_where_it_lies(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLAX_CACHE", str(tmp_path / "env"))
    assert cache.root(str(tmp_path / "given")) == tmp_path / "given"
    assert cache.root() == tmp_path / "env"
    monkeypatch.delenv("ABLAX_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.root() == tmp_path / "xdg/ablax"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_nobody_else_can_write_to_it(tmp_path):
    folder = cache.private_folder(str(tmp_path / "cache"), "corpora")
    assert folder.stat().st_mode & 0o777 == 0o700
    os.chmod(folder, 0o770)
    with pytest.raises(UserError, match="is writable by others"):
        cache.private_folder(str(tmp_path / "cache"), "corpora")


def test_a_cache_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be created .* set data\.cache_dir or ABLAX_CACHE"):
        cache.private_folder(str(tmp_path / "file"), "corpora")


PREPARE = """
import sys
from tests.data.common import open_texts, settings
from data import pipeline, tokenizers
corpus = open_texts(sys.argv[1], sys.argv[2])
config = settings(data__path=sys.argv[1], data__cache_dir=sys.argv[2])
stream = pipeline.TrainStream(config, tokenizers.load(config.data, corpus), corpus)
next(stream)
list(pipeline.validation(config, tokenizers.Bytes(), corpus, length=9, batch_size=3))
print(corpus.key, len(corpus.train), len(corpus.validation), "tensorflow" in sys.modules)
"""


def test_two_processes_prepare_one_corpus_without_tensorflow(tmp_path):
    """The whole way from files to batches, at once and twice; both end by themselves with batches still prefetched."""
    write(tmp_path / "in", {f"{i}.txt": words(i, 50) for i in range(40)})
    processes = [start(PREPARE, tmp_path / "in/*.txt", tmp_path / "cache") for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    (one, _), (two, _) = outputs
    assert one == two and one.split()[-1] == "False"
    assert [err for _, err in outputs] == ["", ""]
    assert not list((tmp_path / "cache").rglob(".files-*"))
    assert len([path for path in (tmp_path / "cache/corpora").iterdir() if path.is_dir()]) == 1
