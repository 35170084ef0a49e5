"""Branches: a run of a smaller budget that takes the longer run's checkpoint is to the bit the run by itself."""

import numpy as np
import pytest

from configs.errors import ConfigError, UserError
from tests.training.test_trainer import parameters, trace
from training.loop import trainer
from training.run_directory.files import read_json

WSD = dict(optimizer__schedule="wsd", optimizer__warmup_steps=2, optimizer__decay_share=0.25, eval__every_steps=2)


@pytest.fixture(scope="module")
def trunk(make_tiny, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("trunk")
    config = make_tiny(**WSD, budget__amount=12, checkpoint__branches=(4.0, 8.0), checkpoint__keep=1)
    trainer.train(config, workdir, quiet=True)
    return workdir


@pytest.mark.parametrize("amount, leaves", [(4, 3), (8, 6)])
def test_a_branch_is_the_run_by_itself(make_tiny, trunk, tmp_path, amount, leaves) -> None:
    alone, branch = tmp_path / "alone", tmp_path / "branch"
    config = make_tiny(**WSD, budget__amount=amount)
    trainer.train(config, alone, quiet=True)
    config = make_tiny(**WSD, budget__amount=amount, init_from=str(trunk), init_state="branch")
    result = trainer.train(config, branch, quiet=True)
    assert result["status"] == "done" and result["branched"]["step"] == leaves and result["step"] == amount
    assert trace(branch) == trace(alone)
    own, theirs = parameters(branch), parameters(alone)
    assert all(np.array_equal(own[name], theirs[name]) for name in theirs)
    longer = parameters(trunk)
    assert any(not np.array_equal(own[name], longer[name]) for name in own)  # the control: its own decay counts
    assert result["flops"] == read_json(alone / "run.json")["flops"]


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(seed=1), "seed is 0 there and 1 here"),
        (dict(optimizer__learning_rate=0.5), "optimizer.learning_rate is"),
        (dict(optimizer__warmup_steps=3), "optimizer.warmup_steps is 2 there and 3 here"),
        (dict(budget__amount=3), "agree only up to step 2"),
    ],
)
def test_a_branch_of_another_run_is_refused(make_tiny, trunk, tmp_path, changes, says) -> None:
    given = WSD | dict(budget__amount=8, init_from=str(trunk), init_state="branch") | changes
    with pytest.raises(UserError, match=says):
        trainer.train(make_tiny(**given), tmp_path / "run", quiet=True)


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(init_state="branch"), "needs the run that is continued"),
        (dict(checkpoint__branches=(99.0,)), "must be below budget.amount"),
        (dict(checkpoint__branches=(4.0,), optimizer__schedule="cosine"), "must be wsd"),
        (dict(checkpoint__branches=(4.0,), budget__kind="seconds"), "does not say how many steps"),
        (dict(checkpoint__branches=(1.0,)), "shares no step"),
    ],
)
def test_branches_that_cannot_be_are_refused(make_tiny, tmp_path, changes, says) -> None:
    with pytest.raises(ConfigError, match=says):
        trainer.train(make_tiny(**(WSD | dict(budget__amount=12) | changes)), tmp_path, quiet=True)
