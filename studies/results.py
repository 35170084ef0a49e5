"""A study's committed results: a tidy table (results.csv) and what it is of (results.json); nothing else is read.

results.csv has a row a number: arm, seed, measure, length (tokens; 0: the training length), scaling, value, and of
shares the answers right and asked, counted as far as they are independent. results.json has the sweeps that were run,
the versions, CPU hours, looks and, by arm and seed, the loss by document of the validation text (nats, summed).
"""

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import UserError
from report.files import write
from report.statistics.sequential import levels
from report.statistics.text_noise import Pieces
from studies.spec import TRAINED, Cell

TABLE, ABOUT = "results.csv", "results.json"
MOST = 300_000  # bytes of a study's results
ROOT = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """One number of one run."""

    arm: str
    seed: int
    measure: str
    length: int = 0
    scaling: str = TRAINED
    value: float = math.nan
    correct: float = math.nan
    examples: float = math.nan


@dataclass(frozen=True)
class Results:
    """What a study measured; `about` is results.json."""

    rows: tuple[Row, ...]
    about: dict[str, Any]
    text: dict[tuple[str, int], Pieces] = field(default_factory=dict)  # (arm, seed) -> loss by document

    def values(self, cell: Cell) -> dict[int, float]:
        """Returns {seed: value} of a cell; empty where it was not measured."""
        return {row.seed: row.value for row in self._of(cell)}

    def shares(self, cell: Cell) -> dict[int, tuple[float, float]]:
        """Returns {seed: (right, asked)} of a cell that is a share."""
        return {row.seed: (row.correct, row.examples) for row in self._of(cell)}

    def cells(self, condition: tuple[str, int]) -> list[Cell]:
        """Returns every cell that was measured in a condition, in order of the table."""
        found = [Cell(row.arm, row.measure, row.length, row.scaling) for row in self.rows]
        return list(dict.fromkeys(cell for cell in found if cell.condition == condition))

    @property
    def looks(self) -> int:
        """How often the study was looked at."""
        return max((one["looks"] for one in self.about.get("sweeps", {}).values()), default=1)

    @property
    def level(self) -> float:
        """The level at which tests and intervals are made: what the last look may spend."""
        return levels(self.looks)[-1]

    def study(self, arm: str) -> str:
        """Returns the study of the sweep that an arm belongs to; empty where it is not recorded."""
        return str(self.about.get("arms", {}).get(arm, ""))

    def number(self, arm: str, measure: str) -> float:
        """Returns the mean over seeds of a number that is not compared, such as parameters; nan for none."""
        found = [row.value for row in self.rows if (row.arm, row.measure) == (arm, measure)]
        return float(np.mean(found)) if found else math.nan

    def _of(self, cell: Cell) -> list[Row]:
        key = (cell.arm, cell.measure, cell.length, cell.scaling)
        return [row for row in self.rows if (row.arm, row.measure, row.length, row.scaling) == key]


def read(name: str, root: Path = ROOT) -> Results | None:
    """Returns a study's committed results; None where it has none.

    Raises:
        UserError: they cannot be read.
    """
    table, about = root / name / TABLE, root / name / ABOUT
    if not table.is_file() and not about.is_file():
        return None
    try:
        found = json.loads(about.read_text(encoding="utf-8"))
        rows = tuple(_row(one) for one in csv.DictReader(io.StringIO(table.read_text(encoding="utf-8"))))
        tokens = {arm: np.array(one, dtype=float) for arm, one in found["text"]["tokens"].items()}
        text = {
            (arm, int(seed)): Pieces(np.array(one, dtype=float), tokens[arm])
            for arm, by_seed in found["text"]["loss"].items()
            for seed, one in by_seed.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{table.parent}: results cannot be read: {type(error).__name__}: {error}") from error
    return Results(rows, found, text)


def _row(raw: dict[str, str]) -> Row:
    numbers = {key: float(raw[key]) if raw[key] else math.nan for key in ("value", "correct", "examples")}
    return Row(raw["arm"], int(raw["seed"]), raw["measure"], int(raw["length"]), raw["scaling"], **numbers)


def save(results: Results, name: str, root: Path = ROOT) -> list[Path]:
    """Writes a study's results; returns the files.

    Raises:
        UserError: they have more than MOST bytes.
    """
    table, about = _table(results.rows), json.dumps(results.about | {"text": _text(results.text)}, indent=1) + "\n"
    about = _flat(about)
    size = len(table.encode()) + len(about.encode())
    if size > MOST:
        raise UserError(f"{root / name}: results of {size} bytes; {MOST} at most are kept")
    (root / name).mkdir(parents=True, exist_ok=True)
    write(root / name / TABLE, table)
    write(root / name / ABOUT, about)
    return [root / name / TABLE, root / name / ABOUT]


def _table(rows: Iterable[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [one.name for one in fields(Row)]
    writer.writerow(names)
    writer.writerows([[_cell(asdict(row)[name]) for name in names] for row in rows])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.8g}" if math.isfinite(value) else ""
    return value


def _text(text: dict[tuple[str, int], Pieces]) -> dict[str, Any]:
    loss: dict[str, dict[str, list[float]]] = {}
    tokens: dict[str, list[int]] = {}
    for (arm, seed), pieces in text.items():
        loss.setdefault(arm, {})[str(seed)] = [round(float(one), 3) for one in pieces.loss]
        tokens[arm] = [round(float(one)) for one in pieces.tokens]
    return {"tokens": tokens, "loss": loss}


def _flat(text: str) -> str:
    """Returns indented JSON with each list of numbers on one line."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        bare = line.strip()
        if inside:
            lines[-1] += bare if bare.startswith("]") or lines[-1].endswith("[") else f" {bare}"
            inside = not bare.startswith("]")
        else:
            lines.append(line)
            inside = bare.endswith("[")
    return "\n".join(lines) + "\n"
