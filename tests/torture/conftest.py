"""A run that was stopped in the middle, copied for every fault, and the run that nothing happened to."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.training.conftest import make_tiny, text
from training.loop import after_step, trainer

__all__ = ["make_tiny", "text"]


@pytest.fixture(scope="session")
def whole(make_tiny, tmp_path_factory) -> Path:
    """A run of 12 steps with checkpoints at 4, 8 and 12."""
    workdir = tmp_path_factory.mktemp("whole")
    assert trainer.train(make_tiny(), workdir, quiet=True)["status"] == "done"
    return workdir


@pytest.fixture(scope="session")
def _half(make_tiny, tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("half") / "run"
    original = after_step.spend

    def spend(run, tokens: int, seconds: float) -> None:
        original(run, tokens, seconds)
        if run.state.spent.steps == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(after_step, "spend", spend)
        assert trainer.train(make_tiny(), workdir, quiet=True)["status"] == "preempted"
    return workdir


@pytest.fixture
def half(_half, tmp_path) -> Path:
    """The same run, stopped after step 8, with checkpoints at 4 and 8; a copy of the test's own."""
    shutil.copytree(_half, tmp_path / "run")
    return tmp_path / "run"
