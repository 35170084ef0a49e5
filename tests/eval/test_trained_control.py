"""The local baseline of a model that really retrieves: at chance for every task, where the model itself is not."""

import dataclasses
from pathlib import Path

import pytest

from configs import cli, passkey, validate
from configs.rules import tasks
from eval.progress import Quiet
from eval.quality import retrieval
from train import main as train
from training.run_directory import run as runs

LENGTH = 63  # tokens that configs/passkey.py trains at
FAR = (4, 8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """Bare pairs and pass keys, learned within two minutes of a core."""
    folder: Path = tmp_path_factory.mktemp("passkey")
    train([f"--config={passkey.__file__}", f"--workdir={folder}", "--config.checkpoint.every_steps=0",
           "--config.eval.every_steps=0", "--config.log.tensorboard=False"])  # fmt: skip
    return runs.load(folder)


def asked(run: runs.Run, name: str, *scalings: str) -> dict:
    """Returns eval/retrieval.json's content of one task."""
    config = run.config.copy_and_resolve_references()
    cli.apply(config, {
        "eval.multiples": (1, *FAR), "eval.scalings": scalings, "eval.retrieval.task": name,
        "eval.retrieval.generate": False, "eval.retrieval.depths": 3, "eval.retrieval.examples": 32,
    })  # fmt: skip
    return retrieval.evaluate(dataclasses.replace(run, config=validate.resolve(config)), Quiet())


@pytest.mark.slow
@pytest.mark.parametrize("name", ("mqar", "passkey"))
def test_the_model_retrieves_from_far_what_its_control_cannot(trained: runs.Run, name: str) -> None:
    """Without this, a control at chance would only say that nothing was learned."""
    result = asked(trained, name, "yarn")
    own = {(entry["multiple"], entry["scaling"]): entry for entry in result["by_length"]}
    assert own[1, "trained"]["accuracy"] > 0.85
    assert own[4, "yarn"]["accuracy"] > own[4, "yarn"]["chance"] + 0.3
    for times in FAR:
        local = own[times, "yarn"]["control"]
        assert local["accuracy"] <= own[times, "yarn"]["chance"] + 0.08, (name, times, local)


@pytest.mark.slow
@pytest.mark.parametrize("name", tasks.SYNTHETIC)
def test_the_control_is_at_chance_at_four_times_the_training_length_and_beyond(trained: runs.Run, name: str) -> None:
    entries = [entry for entry in asked(trained, name)["by_length"] if entry["multiple"] in FAR]
    measured = [entry for entry in entries if entry["control"] is not None]
    assert measured, [entry.get("reason") for entry in entries]
    for entry in measured:
        assert entry["distance"]["least"] > LENGTH and entry["measures_distance"] is True
        local = entry["control"]["accuracy"]
        own, chance = entry["accuracy"], entry["chance"]
        print(f"{name} at {entry['length']}: {own:.3f}, control {local:.3f}, chance {chance:.3f}")
        assert local <= chance + 0.08
