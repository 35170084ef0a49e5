"""What is allowed of attention's switches together."""

import pytest

from configs import validate
from configs.errors import ConfigError
from tests.configs.test_validate import made


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            {"model__attention__scale": 0.3, "model__attention__scale_rule": "mup"},
            ["model.attention.scale = 0.3", "scale_rule = 'mup'"],
        ),
        ({"model__attention__scale": 0.3, "model__attention__scale_rule": "sqrt"}, ["scale_rule = 'sqrt'"]),
        ({"model__attention__scale_rule": "mpu"}, ["scale_rule = 'mpu'", "auto, sqrt or mup", "did you mean mup"]),
    ],
)
def test_refused_naming_field_and_value(overrides: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        validate.check(made(**overrides))
    assert "\n" not in str(caught.value), "one problem, one line"
    for word in words:
        assert word in str(caught.value)
