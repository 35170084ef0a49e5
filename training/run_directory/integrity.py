"""Checksums of checkpoints: a damaged checkpoint is never loaded; an older intact one is.

Every checkpoint has an item `checksums`: the sha256 of each file of the other items. Orbax finishes items in the order
of their registration, all under the checkpoint's temporary name; this one is the last, so that no checkpoint has its
final name without its checksums.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from configs.documents import ordinary
from configs.errors import UserError

ITEM = "checksums"
FILE = "sha256.json"
ASIDE = "damaged"  # folder of a run directory for damaged checkpoints
METADATA = "_CHECKPOINT_METADATA"  # Orbax's own; lists the saved items


class Checksums(ocp.CheckpointHandler):
    """Writes the item: nothing while the others are written, then the checksums of all of them."""

    def __init__(self, workdir: Path) -> None:
        """Records the identity of the run directory; if it does not exist yet, at the first checkpoint."""
        self.begun_in = _identity(workdir) if workdir.exists() else None

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        """Writes nothing yet."""
        self.begun_in = self.begun_in or _identity(_workdir(directory))

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        """Returns nothing: `problem` reads the file."""

    def finalize(self, directory: Any) -> None:
        """Hashes the files of the other items, which are finished.

        Raises:
            FileNotFoundError: the run directory vanished meanwhile; its replacement would have half a checkpoint.
        """
        here = Path(directory)
        if _identity(_workdir(directory)) != self.begun_in:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(_workdir(directory)))
        items = [path for path in here.parent.iterdir() if path.is_dir() and path.name != here.name]
        sums = {str(file.relative_to(here.parent)): _digest(file) for item in items for file in _files(item)}
        (here / FILE).write_text(json.dumps(sums, indent=1, sort_keys=True), encoding="utf-8")


@ocp.args.register_with_handler(Checksums, for_save=True, for_restore=True)
class ChecksumsArgs(ocp.args.CheckpointArgs):
    """Requests the item."""


def _workdir(directory: Any) -> Path:
    return Path(directory).parents[2]  # WORKDIR/checkpoints/STEP/checksums


def _identity(workdir: Path) -> tuple[int, int]:
    result = workdir.stat()
    return result.st_dev, result.st_ino


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def problem(checkpoint: Path, items: Sequence[str] = ()) -> str:
    """Returns what is wrong with a checkpoint, with the file; empty if it is intact.

    Args:
        checkpoint: its folder.
        items: the items to check, such as `params`; all if empty.
    """
    path = checkpoint / ITEM / FILE
    try:
        message = ordinary(checkpoint / METADATA).read_text(encoding="utf-8")
        json.loads(message)
        if ITEM not in message and not path.parent.exists():
            return ""  # of a version without checksums
        sums = json.loads(ordinary(path).read_text(encoding="utf-8"))
        expected = {name: digest for name, digest in sums.items() if not items or name.split("/")[0] in items}
        missing = [
            item for item in items or ("params", "meta") if not any(name.startswith(f"{item}/") for name in sums)
        ]
    except (OSError, ValueError, AttributeError) as error:
        return f"its checksums cannot be read ({error})"
    if missing:
        return f"it has no {missing[0]}"
    for name, digest in sorted(expected.items()):
        wrong = _wrong(checkpoint, name, digest)
        if wrong:
            return f"{name} {wrong}"
    return ""


def _wrong(checkpoint: Path, name: str, digest: Any) -> str:
    path = checkpoint / name
    try:
        if checkpoint.resolve() not in path.resolve().parents or path.is_symlink():
            return "is outside the checkpoint"
        return "" if _digest(path) == digest else "is not what was written (its sha256 differs)"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def check(checkpoint: Path, items: Sequence[str] = ()) -> None:
    """Refuses a damaged checkpoint, before any of it is loaded.

    Raises:
        UserError: with the file, and the intact checkpoints.
    """
    wrong = problem(checkpoint, items)
    if wrong:
        others = [path for path in checkpoint.parent.iterdir() if path.name.isdigit() and path.name != checkpoint.name]
        whole = sorted(int(path.name) for path in others if not problem(path, items))
        message = f"intact checkpoints are of step {', '.join(map(str, whole))}" if whole else "no other is intact"
        raise UserError(f"{checkpoint}: is damaged: {wrong}; it is not loaded; {message}")


def set_damaged_aside(workdir: Path, say: Callable[[str], None]) -> None:
    """Moves damaged checkpoints to WORKDIR/damaged until the newest remaining one is intact; reports each by `say`.

    The caller trains in the directory: training then continues from the newest intact checkpoint, or from the start.
    """
    folder = workdir / "checkpoints"
    steps = sorted((int(path.name) for path in folder.glob("*") if path.name.isdigit()), reverse=True)
    for step in steps:
        wrong = problem(folder / str(step))
        if not wrong:
            return
        aside = workdir / ASIDE / str(step)
        aside.parent.mkdir(exist_ok=True)
        number = 1
        while aside.exists():
            number += 1
            aside = aside.with_name(f"{step}-{number}")
        (folder / str(step)).rename(aside)
        say(f"the checkpoint of step {step} is damaged: {wrong}; it is not loaded, and moved to {aside}")
    if steps:
        say("no intact checkpoint is left: training starts again")
