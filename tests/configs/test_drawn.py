"""Whole configs as Hypothesis draws them: the sound are accepted, the spoiled refused by the field's name."""

import pytest
from hypothesis import given, settings

from configs import fields, validate
from configs.errors import ConfigError
from tests.drawing import TOGETHER, Changes, alone, changes, config_of, spoiled


@settings(max_examples=100)
@given(changes())
def test_valid_by_construction_is_valid(drawn: Changes) -> None:
    """So what the drawn tests of models run is what users may run; and resolving twice changes nothing."""
    config = validate.resolve(config_of(drawn))
    assert fields.to_dict(validate.resolve(config)) == fields.to_dict(config)
    kept = fields.flatten(config)
    assert all(kept[name] == value for name, value in drawn.items() if value is not None)


def refusal(given: Changes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        validate.resolve(config_of(given))
    return caught.value


@settings(max_examples=300)
@given(spoiled())
def test_one_fault_in_a_whole_config_is_refused_by_name(drawn: tuple[Changes, str]) -> None:
    given, name = drawn
    if name in fields.types() and given == {**given, name: fields.flatten(config_of({}))[name]}:
        return
    message = str(refusal(given)).splitlines()
    assert any(name in line for line in message), message


@pytest.mark.parametrize(("given", "name"), TOGETHER, ids=[f"{i} {name}" for i, (_, name) in enumerate(TOGETHER)])
def test_fields_that_do_not_go_together_are_refused_by_name(given: Changes, name: str) -> None:
    assert any(name in line for line in str(refusal(given)).splitlines())


def test_every_rule_of_a_single_field_refuses_by_its_name() -> None:
    """No field but free text and switches is without a value that is refused, beside wrong types."""
    corrupted = alone()
    for name, value in corrupted:
        first, *others = str(refusal({name: value})).splitlines()
        assert first.startswith(f"{name} = ") and not others, (name, value, first)
