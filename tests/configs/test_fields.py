import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import base, cli, fields, validate
from configs.errors import ConfigError, nearest

KINDS = fields.types()


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 10**6))
def test_every_field_is_set_from_text_and_survives_json(name: str, number: int) -> None:
    text = {int: str(number), float: str(number / 7), bool: str(number % 2 == 1), str: f"t{number}"}
    kind = KINDS[name]
    item = f"({number},)" if kind is tuple else text[kind]
    overrides, rest = cli.split_overrides([f"--config.{name}={item}", "--workdir=x"])
    config = base.get_config()
    cli.apply(config, overrides)
    again = fields.from_dict(json.loads(json.dumps(fields.to_dict(config))))
    assert rest == ["--workdir=x"]
    assert fields.flatten(again) == fields.flatten(config)
    assert fields.flatten(again)[name] == overrides[name]


@given(st.sampled_from(sorted(KINDS)), st.randoms(use_true_random=False))
def test_a_slip_of_two_letters_is_answered_with_the_field(name: str, random) -> None:
    parents, _, last = name.rpartition(".")
    # Names a letter from one another are left out.
    if len(last) < 4 or last.startswith(("beta", "niah_")) or last in ("nope_dim", "rope_dim"):
        return
    at = random.randrange(len(last) - 1)
    slip = last[:at] + last[at + 1] + last[at] + last[at + 2 :]
    wrong = f"{parents}.{slip}" if parents else slip
    if wrong in KINDS:
        return
    with pytest.raises(ConfigError, match=f"unknown field {wrong}.*did you mean {name}\\?"):
        cli.split_overrides([f"--config.{wrong}=1"])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.model.num_heads=four", "model.num_heads = 'four': must be a whole number"),
        ("--config.model.num_heads=4.5", "must be a whole number"),
        ("--config.log.tensorboard=maybe", "must be true or false"),
        ("--config.eval.multiples=1;2", "must be a list"),
        ("--config.model=3", "it is a group of fields: .*num_heads"),
        ("--config.optimizer.learning_rate", "needs a value"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_by_name(argument: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cli.split_overrides([argument])


def test_a_config_file_outside_the_checkout_is_read(tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from configs import lm\ndef get_config(heads='2'):\n    c = lm.get_config()\n"
        "    c.model.num_heads = int(heads)\n    return c\n"
    )
    assert cli.load(path).model.num_heads == 2
    assert cli.load(f"{path}:8").model.num_heads == 8
    assert cli.load(path, {"model.num_heads": 1}).model.num_heads == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config():\n    c = base.get_config()\n    return c\n", "line 2: NameError"),
        ("def get_config(:\n", "line 1: SyntaxError"),
        ("x = 1\n", r"has no get_config\(\)"),
        ("def get_sweep():\n    return {}\n", "it is a sweep"),
        ("def get_config():\n    return 3\n", "gave int"),
        (
            "from configs import base\ndef get_config():\n    c = base.get_config()\n    c.model.num_haeds = 3\n"
            "    return c\n",
            "mine.py: unknown field model.num_haeds.*did you mean model.num_heads",
        ),
        (
            "from configs import base\ndef get_config():\n    c = base.get_config()\n    c.model.num_heads = 'x'\n"
            "    return c\n",
            "line 4: TypeError",
        ),
    ],
)
def test_a_broken_config_file_is_answered_with_file_and_line(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(validate.UserError, match=message):
        cli.load(path)


def test_a_missing_config_file_is_answered_with_the_nearest() -> None:
    with pytest.raises(validate.UserError, match=r"did you mean configs/tiny\.py"):
        cli.load("configs/tinny.py")


def test_a_run_directory_is_a_config_too(tmp_path) -> None:
    written = validate.resolve(cli.load("configs/tiny.py", {"model.num_heads": 2}))
    (tmp_path / "config.json").write_text(json.dumps(fields.to_dict(written)))
    for path in (tmp_path, tmp_path / "config.json"):
        assert fields.flatten(cli.load(path)) == fields.flatten(written)
    assert cli.load(tmp_path, {"seed": 3}).seed == 3
    assert cli.load("config.json", near=tmp_path).model.num_heads == 2
    (tmp_path / "config.json").write_text('{"seeds": 1}')
    with pytest.raises(ConfigError, match=r"config\.json: unknown field seeds .*did you mean seed\?"):
        cli.load(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(validate.UserError, match=r"config\.json: is not valid JSON"):
        cli.load(tmp_path)


def test_nearest_prefers_the_same_last_name() -> None:
    assert "data.length" in nearest("data.lenght", ["eval.throughput.length", "data.length"])


def test_letters_that_changed_places_tell_one_number_from_another() -> None:
    assert nearest("data.weights.niah_single1_", KINDS) == "; did you mean data.weights.niah_single_1?"
    assert nearest("model.attention.mla.onpe_dim", KINDS) == "; did you mean model.attention.mla.nope_dim?"
