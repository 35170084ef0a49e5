"""The switches' table: no switch and no cell is missing, and each column turns red on a fault."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import fields
from configs.errors import UserError
from models.positions import alibi, rope, temperature
from tests.switches import __main__ as command
from tests.switches import columns, table, written
from tests.switches.cases import CASES, LENGTH, LONG, config_of
from tests.switches.columns import COLUMNS, Subject

PAGE = Path("docs/switches.md")
NOTE = "python -m tests.switches makes docs/switches.md anew"


@pytest.fixture(scope="module")
def subject() -> Subject:
    """ALiBi, RoPE and neither by layer, windows, sinks, cap, QK-norm, temperature, fused, and dynamic frequencies."""
    return Subject("many at once")


def test_a_row_holds(subject: Subject) -> None:
    for name, column in COLUMNS.items():
        result = column(subject)
        assert result.holds and result.error is not None and 0 < result.error <= result.tolerance, name


def test_one_formula_wrong_turns_the_columns_red(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle with ALiBi's slopes a tenth too steep disagrees wherever it is asked."""
    right = written.slope
    monkeypatch.setattr(written, "slope", lambda head, heads: 1.1 * right(head, heads))
    monkeypatch.setattr(subject, "wanted", subject.of(subject.tokens))
    for name in ("forward", "backward", "decode = forward", "packed = separate"):
        assert not COLUMNS[name](subject).holds, name


def test_a_core_that_differs_is_red(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    right = subject.found("blocked", LONG)
    wrong = jax.tree.map(lambda leaf: 1.001 * leaf, right)
    monkeypatch.setitem(subject._found, ("blocked", LONG), (right[0], wrong[1]))
    assert not columns.blocked(subject).holds


def bfloat16(x: Any) -> jax.Array:
    return jnp.asarray(x).astype(jnp.bfloat16).astype(jnp.float32)


def test_angles_in_bfloat16_are_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 1."""
    right = rope.Rope.cos_sin
    assert columns.far(Subject("RoPE, half")).holds
    monkeypatch.setattr(rope.Rope, "cos_sin", lambda self, at, *rest: right(self, bfloat16(at), *rest))
    result = columns.far(Subject("RoPE, half"))
    assert not result.holds and result.error is not None and result.error > 0.3


def test_biases_and_temperatures_of_bfloat16_positions_are_red(monkeypatch: pytest.MonkeyPatch) -> None:
    right = alibi.Alibi.bias

    def wrong(self: Any) -> Any:
        return lambda q, kv: right(self)(bfloat16(q), bfloat16(kv))

    assert columns.far(Subject("ALiBi")).holds
    monkeypatch.setattr(alibi.Alibi, "bias", wrong)
    assert not columns.far(Subject("ALiBi")).holds
    subject = Subject("temperature ministral3")
    assert columns.far(subject).holds
    factor = temperature.Temperature.factor
    monkeypatch.setattr(temperature.Temperature, "factor", lambda self, at: factor(self, at // 2))
    assert not columns.far(subject).holds


def test_nan_never_holds() -> None:
    assert not columns.Cell(float("nan"), 1.0).holds and not columns.Cell(2.0, 1.0).holds
    assert columns.Cell(0.5, 1.0).holds and columns.Cell(reason="no positions").holds
    assert table.cell(columns.Cell(2.0, 1.0)) == "**FAILS** 2e+00, allowed 1e+00"


def test_every_switch_has_a_row() -> None:
    models = [config_of(name) for name in CASES]

    def tried(field: str) -> set[Any]:
        return {fields.flatten(model)[field] for model in models}

    for field in (
        "position.kind",
        "position.rope.pairing",
        "position.rope.scaling.kind",
        "position.temperature.kind",
        "attention.kind",
        "attention.qkv",
    ):
        assert tried(field) == set(fields.choices(f"model.{field}")), field
    for field in ("attention.qk_norm", "attention.sinks", "attention.qkv_bias", "position.rope.scaling.truncate"):
        assert tried(field) == {False, True}, field
    for field in ("attention.soft_cap", "attention.window", "attention.scale", "attention.mla.query_rank"):
        assert None in tried(field) and len(tried(field)) > 1, field
    for field in ("position.pattern", "attention.window_pattern", "num_kv_heads", "attention.scale_rule"):
        assert len(tried(field)) > 1, field


def test_no_two_scalings_are_the_same_at_so_few_tokens() -> None:
    """A row whose switch did nothing would show nothing."""
    models = {name: config_of(name) for name in CASES if "scaling" in name or name.startswith(("RoPE", "p-RoPE"))}
    results = {
        (
            model.position.kind, model.position.rope.pairing, model.position.rope.fraction,
            *((tuple(w.round(6)), round(factor, 6)) for w, factor in (
                written.frequencies(model, model.position.kind, length) for length in (6, LENGTH)
            )),
        )
        for model in models.values()
    }  # fmt: skip
    assert len(results) == len(models)


def test_the_page_has_every_cell_and_none_fails() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    head, rule, *rows = ([part.strip() for part in line.strip("|").split("|")] for line in lines)
    assert head == ["switch", *COLUMNS] and set(rule) == {"---"}, NOTE
    assert [row[0] for row in rows] == list(CASES), NOTE
    for name, *cells in rows:
        assert len(cells) == len(COLUMNS) and all(cells), name
        for cell in cells:
            reason = cell.removeprefix("does not apply: ")
            assert (reason != cell and len(reason) > 5) or 0 <= float(cell) < 0.02, (name, cell)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_row_holds(name: str) -> None:
    cells = table.row(name)
    assert all(cell.holds for cell in cells.values()), table.words(cells)


def test_the_command_refuses_an_unknown_row() -> None:
    with pytest.raises(UserError, match=r"--only: 'xpso' is no switch of the table"):
        command.main(["--only=xpso"])


def test_the_formulas_are_those_of_the_papers() -> None:
    """Numbers worked out by hand, for the oracle must be right by itself."""
    model = config_of("RoPE, half", head_dim=4, position__rope__theta=1e4)
    x = np.array([[[1.0, 2.0, 3.0, 4.0]]])
    np.testing.assert_allclose(
        written.turned(model, "rope", x, np.array([1]), 2)[0, 0], [-1.98411, 1.95990, 2.46238, 4.01980], atol=1e-5
    )
    assert [written.bucket(d, 32, 128) for d in (15, 16, 20, 21, 32, 64, 112, 113, 128)] == [
        15, 16, 17, 18, 21, 26, 30, 31, 31,
    ]  # fmt: skip
    slopes = [written.slope(head, 6) for head in range(6)]
    np.testing.assert_allclose(slopes, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125])
    yarn = config_of(
        "scaling yarn",
        position__rope__scaling__original_length=2048,
        position__rope__scaling__beta_fast=32.0,
        position__rope__scaling__beta_slow=1.0,
    )
    result, factor = written.frequencies(yarn, "rope", 10)
    np.testing.assert_allclose(result, [1, 0.1, 0.00625, 0.00025])
    assert factor == pytest.approx(0.1 * np.log(4) + 1)
