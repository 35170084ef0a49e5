"""Training and evaluation never meet: where all rows there can be are drawn, each is on one side only."""

import pytest

from configs.rules import tasks
from data import retrieval
from data.retrieval import Draw
from data.retrieval.draws import held_out_facts
from tests.data.common import settings
from tests.data.retrieval.common import SQUAD, made, stream, tokenizer

# So few different rows that all of them come up.
TINY = {"form": "short", "letters": 1, "digits": 2, "needles": 2}


UUIDS = ("niah_single_3", "niah_multikey_3")  # do not all come up: see the second test


def told(name: str, rows) -> list:
    """What each row tells, from its tokens: the needles in any order, the segment, or the tokens to copy."""
    results = []
    for row, spans in enumerate(rows.needles.tolist()):
        needles = [tuple(rows.tokens[row, start:end].tolist()) for start, end in spans if end]
        results.append(tuple(needles) if name in ("selective_copy", "variable_tracking") else frozenset(needles))
    return results


@pytest.mark.parametrize("name", [name for name in tasks.TASKS if name not in UUIDS])
def test_no_row_is_on_both_sides(name):
    pairs = (4, 12) if name == "compositional_mqar" else (2, 10)
    config = settings(**{f"data__retrieval__{k}": v for k, v in TINY.items()}, data__mqar__pairs=pairs[0],
                      data__mqar__vocab_size=pairs[1], data__retrieval__vocab_size=16, data__length=511,
                      data__retrieval__questions=SQUAD)  # fmt: skip
    task = retrieval.make(name, config, tokenizer("byte"), stream("byte"), "noise")
    length = task.shortest() + 20
    trained, kept = set(), set()
    for seed in range(2):
        for stage in range(2):
            trained |= set(told(name, task.rows(Draw(seed, stage), 0, 250, length=length, vary=True)))
        # Another length, another depth, and as many needles as evaluation asks.
        requested = {"depth": None if task.all_depths else 0.5}
        kept |= set(told(name, task.rows(Draw(seed, held_out=True), 0, 120, length=length + 9, **requested)))
        kept |= set(told(name, task.rows(Draw(seed, held_out=True), 0, 120, length=length, vary=True)))
    assert trained and kept and not trained & kept


@pytest.mark.parametrize("name", ["niah_single_3", "niah_multikey_3", "niah_multikey_1", "niah_multiquery"])
def test_the_side_is_a_function_of_what_a_row_tells(name):
    """For rows too many to draw: every row drawn for a side is on it, by the hash of its facts read from its text."""
    task, decode = made(name, form="short"), tokenizer("byte").decode
    for held_out in (False, True):
        rows = task.rows(Draw(7, held_out=held_out), 0, 60, length=task.shortest() + 50, vary=True)
        for row, spans in enumerate(rows.needles.tolist()):
            facts = [decode(rows.tokens[row, start:end])[1:-1] for start, end in spans if end]
            assert held_out_facts(facts[::-1]) == held_out


def test_one_row_in_eight_is_held_out():
    assert 0.11 < sum(held_out_facts((f"key={n}",)) for n in range(8000)) / 8000 < 0.14
