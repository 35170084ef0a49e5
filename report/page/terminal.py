"""The table of arms for a terminal: at most WIDTH columns."""

from report.page.formats import DASH, shortened
from report.page.table import Table

WIDTH = 100
KEYS = ("arm", "loss", "difference", "retrieval", "seeds")  # columns shown in a terminal, in this order
APART = 2


def lines(table: Table, width: int = WIDTH) -> list[str]:
    """Returns the table's main columns as lines of at most `width` characters; names are shortened to fit.

    For retrieval it shows the training length, the first one measured.
    """
    places = [next((at for at, one in enumerate(table.columns) if one.key.split(" ")[0] == key), None) for key in KEYS]
    kept = [place for place in places if place is not None]
    rows = [[table.columns[place].heading for place in kept]]
    for _, cells in table.rows:
        shown = [cells[place] for place in kept]
        rows.append([shown[0].text, *(f"{cell.text} {cell.sub}".strip() or DASH for cell in shown[1:])])
    widths = [max(len(row[at]) for row in rows) for at in range(len(kept))]
    for at in (0, *range(len(kept) - 1, 0, -1)):
        over = sum(widths) + APART * (len(kept) - 1) - width
        widths[at] = max(min(widths[at], 12), widths[at] - max(0, over))
    return [
        "  ".join(shortened(text, size).ljust(size) for text, size in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
