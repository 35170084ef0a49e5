"""The table as text: a row for each switch, a column for each thing that must hold, no cell empty."""

from collections.abc import Mapping

from tests.switches.columns import COLUMNS, Cell, Subject

Row = Mapping[str, Cell]

HEAD = """# Every switch, and what was shown of it

Each row is a model that is small but has the switch on; each cell is the largest error found, as a share of the largest
number it was compared with. `python -m tests.switches` makes this page anew (on the CPU, in float32).

- **forward**: logits against the same formulas written again in NumPy, in float64 (`tests/switches/oracle.py` and
  `written.py`, which share nothing with the model); allowed {forward}.
- **backward**: the loss's gradient along a random direction of each parameter, against finite differences of those
  formulas; allowed {backward}.
- **decode = forward**: prefill, then token by token through the KV cache, against the formulas over the tokens so far,
  also where a scaling changes with the length; allowed {decode}.
- **packed = separate**: two documents and padding in a row, against the formulas over each document; allowed {packed}.
- **blocked = reference**: logits and all gradients of the two cores against one another, over 72 tokens (more than one
  block); allowed {blocked}.
- **bf16 at 100,000**: where the model computes in bfloat16, what positions do around position 100,000, against float64.
  Turns and embeddings are allowed 1.6e-02, which holds the rounding of the result (3.9e-03) and that of a float32
  angle (up to 4e-03 at 100,000); biases, which stay float32, 2.0e-05; temperatures 3.9e-03. Angles in bfloat16 would be
  off by about 1.

"""


def row(name: str) -> dict[str, Cell]:
    """Returns a switch's cells by column."""
    subject = Subject(name)
    return {column: function(subject) for column, function in COLUMNS.items()}


def words(cells: Row) -> str:
    """Returns a row in a line."""
    return ", ".join(f"{column} {cell(result)}" for column, result in cells.items())


def cell(found: Cell) -> str:
    """Returns a cell's text."""
    if found.reason is not None:
        return f"does not apply: {found.reason}"
    return f"{found.error:.0e}" if found.holds else f"**FAILS** {found.error:.0e}, allowed {found.tolerance:.0e}"


def markdown(rows: Mapping[str, Row]) -> str:
    """Returns the page."""
    plain = next(iter(rows.values()))
    allowed = {name.split()[0]: f"{result.tolerance:.1e}" for name, result in plain.items()}
    lines = [f"| switch | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for name, cells in rows.items():
        lines.append(f"| {name} | {' | '.join(cell(cells[column]) for column in COLUMNS)} |")
    return HEAD.format(**allowed) + "\n".join(lines) + "\n"
