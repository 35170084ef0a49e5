"""The schema itself: what a declaration refuses, everything that derives from one, and the printed table."""

import subprocess
import sys

import pytest

from configs import base, cli, fields, validate
from configs.errors import ConfigError, UserError
from configs.fields import listing
from configs.schema import ARGUMENT, NONE, above, choice, each, field, group, interval, rule, unset
from training.loop import pack_compat


@pytest.mark.parametrize(
    ("allowed", "good", "bad", "words"),
    [
        (above(0), (1, 0.5), (0, -1), "x = {}: must be above 0"),
        (interval("[0, 1)"), (0, 0.5), (-0.1, 1), r"x = {}: must be in [0, 1)"),
        (interval("(0, 1]"), (1e-9, 1), (0, 1.1), "x = {}: must be in (0, 1]"),
        (choice("cat", "dog"), ("cat",), ("dgo",), "x = {}: must be cat or dog; did you mean dog?"),
        (rule("even", lambda v: v % 2 == 0), (2,), (3,), "x = {}: must be even"),
        (each(("a", "b")), ((), ("a", "b", "a")), (("a", "c"),), "x = {}: 'c' is not allowed; each must be a or b"),
        (each("whole", int), ((1, 2),), ((True,), (1.0,)), "x = {}: "),
    ],
)
def test_what_is_allowed_accepts_and_refuses(allowed, good, bad, words: str) -> None:
    assert [allowed.problem("x", value) for value in good] == [None] * len(good)
    for value in bad:
        assert str(allowed.problem("x", value)).startswith(words.format(repr(value)))


@pytest.mark.parametrize(
    "declare",
    [
        lambda: field(0, ""),
        lambda: field(0, "below its own range", above(0)),
        lambda: field({}, "of no type"),
        lambda: field(1, "of an unknown part", program="sometimes"),
        lambda: field(1, "with a word too many", resumes=True),
        lambda: interval("0 to 1"),
        lambda: base.SCHEMA.adding("seed.of", field(0, "inside a field")),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(declare) -> None:
    with pytest.raises((TypeError, ValueError)):
        declare()


def test_a_group_declares_for_fields_that_declare_nothing() -> None:
    made = group(a=field(1, "a"), b=field(2, "b", program=ARGUMENT), inner=group(c=field(3, "c"))).of(program=NONE)
    assert made["a"].program == made["inner"]["c"].program == NONE
    assert made["b"].program == ARGUMENT
    assert field(1, "alone").static and not field(1, "alone").resume


def test_everything_derives_from_one_declaration(monkeypatch, tmp_path) -> None:
    name = "optimizer.trust"
    size = unset(int, "rows; unset: twice data.length", above(0), resolve=lambda config: 2 * config.data.length)
    monkeypatch.setattr(base, "SCHEMA", base.SCHEMA.adding(name, size))
    # Text, types, unset values, suggestions, ranges, resolution, JSON.
    assert cli.split_overrides([f"--config.{name}=7"])[0] == {name: 7}
    with pytest.raises(ConfigError, match=r"did you mean optimizer\.trust\?"):
        cli.split_overrides(["--config.optimizer.turst=7"])
    config = base.get_config()
    assert config.optimizer.trust is None and validate.resolve(config).optimizer.trust == 2 * config.data.length
    config.optimizer.trust = 0
    with pytest.raises(ConfigError, match=r"optimizer\.trust = 0: must be above 0"):
        validate.check(config)
    config.optimizer.trust = 5
    assert fields.flatten(fields.from_dict(fields.to_dict(config)))[name] == 5
    assert "twice data.length" in listing.table("optimizer")
    # Undeclared, it is static, fixed in a resumed run, and equal in a pack.
    other = fields.from_dict(fields.to_dict(config))
    other.optimizer.trust = 6
    flat, changed = fields.flatten(config), fields.flatten(other)
    assert fields.differences(flat, changed) == [name]
    assert fields.program_values(config) != fields.program_values(other)
    assert pack_compat.key(config) != pack_compat.key(other)
    free = field(1, "the same", resume=True, program=ARGUMENT, pack=True)
    monkeypatch.setattr(base, "SCHEMA", base.SCHEMA.adding(name, free))
    assert fields.differences(flat, changed) == []
    assert fields.program_values(config) == fields.program_values(other)
    assert pack_compat.key(config) == pack_compat.key(other)


def test_what_a_resumed_run_may_change_and_what_runs_of_a_pack_may_differ_in() -> None:
    may = {name for name in base.SCHEMA if fields.resumable(name)}
    groups = ("mesh.", "log.", "watch.", "eval.", "checkpoint.")
    alone = {"name", "tracker", "data.cache_dir", "data.workers", "data.prefetch"}
    assert may == alone | {name for name in base.SCHEMA if name.startswith(groups)}
    packed = {name for name, declared in base.SCHEMA.items() if declared.pack}
    numbers = ("learning_rate", "muon.learning_rate", "weight_decay")
    assert packed == {"name", "seed", *(f"optimizer.{name}" for name in numbers)}


def test_the_table_has_a_row_for_every_field_and_names_what_is_unknown() -> None:
    lines = listing.table().splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["field", *base.SCHEMA]
    rows = listing.table("model.mlp")
    assert rows.splitlines()[1].split()[:2] == ["model.mlp", '"swiglu"'] and "model.mlp_width" not in rows
    assert "8/3 width" in listing.table("model.mlp_")
    with pytest.raises(UserError, match=r"no field begins with 'model\.atention'; did you mean model\.attention\?"):
        listing.matching("model.atention")


def test_the_command_prints_the_table_and_refuses_an_unknown_prefix_in_a_line() -> None:
    def run(*argv: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "configs.fields", *argv]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    good, bad = run("optimizer"), run("optimiser")
    assert good.returncode == 0 and "peak" in good.stdout and "above 0" in good.stdout
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "error: no field begins with 'optimiser'; did you mean optimizer?\n"


def test_reading_a_config_imports_no_jax() -> None:
    code = (
        "import sys; from configs import cli, validate; validate.resolve(cli.load('configs/lm.py'));"
        "sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
