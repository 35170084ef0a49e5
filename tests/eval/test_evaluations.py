"""The registry of evaluations: everything that reads it agrees with what the evaluations are."""

import subprocess
import sys

from configs.evaluations import EVALUATIONS
from eval import run as command


def test_every_evaluation_loads() -> None:
    for name, evaluation in EVALUATIONS.items():
        assert name == evaluation.name and callable(evaluation.load())
    assert set(command.DEFAULT) < set(EVALUATIONS)


def test_the_registry_is_read_without_jax() -> None:
    code = "import sys; from configs import evaluations; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
