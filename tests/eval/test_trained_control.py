"""The local baseline of a model that really retrieves: at chance for every task, from four times its length on."""

import dataclasses
import json
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

import pytest

from configs import cli, passkey, validate
from configs.rules import tasks
from data import tokenizers
from eval.progress import Quiet
from eval.quality import retrieval
from train import main as train
from training.run_directory import run as runs

LENGTH = 15  # tokens that the model trains at
FAR = (4, 8, 16, 32)  # times that; not every task has rows as short as the first of them
QA_LENGTH = 255  # of the rows that `qa` calls the training length: no paragraph and its question fit LENGTH
# Characters of tasks whose texts have some that the model's tokenizer has no tokens for, as many as it has.
ALPHABETS = {
    "variable_tracking": ascii_uppercase + "abcdeghiklnorstuwy" + digits + " .,:;#=\n",
    "qa": ascii_lowercase + ascii_uppercase[:18] + digits + " .,:;#=\n",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """Bare pairs of 15 tokens, as configs/passkey.py begins; its tokenizer writes the tasks in words."""
    folder: Path = tmp_path_factory.mktemp("recall")
    settings = {"data.length": LENGTH, "data.mqar.pairs": 4, "data.batch_size": 256, "data.curriculum": "()",
                "data.weights.mqar": 1.0, "data.weights.passkey": 0.0, "budget.amount": 300,
                "checkpoint.every_steps": 0, "eval.every_steps": 0, "log.tensorboard": False}  # fmt: skip
    train([f"--config={passkey.__file__}", f"--workdir={folder}", "--quiet",
           *(f"--config.{name}={value}" for name, value in settings.items())])  # fmt: skip
    run = runs.load(folder)
    return dataclasses.replace(run, tokenizer=tokenizers.load(run.config.data, None, run.config.model.vocab_size))


def written_in(run: runs.Run, alphabet: str) -> tokenizers.Tokenizer | None:
    """Returns a tokenizer as large as the run's, of other characters: the pairs that the model learned are no text."""
    own = json.loads(passkey.TOKENIZER.read_text())
    special = {one["content"]: one["id"] for one in own["added_tokens"]}
    own["model"]["vocab"] = {character: index for index, character in enumerate(alphabet)} | special
    path = Path(run.workdir) / "alphabet.json"
    path.write_text(json.dumps(own))
    data = run.config.data.copy_and_resolve_references()
    data.tokenizer = str(path)
    return tokenizers.load(data, None, run.config.model.vocab_size)


def _words(run: runs.Run) -> str:
    """Writes paragraphs and questions, in SQuAD's format."""
    paragraphs = []
    for index in range(200):
        name, place = (f"{word}{index:03d}" for word in ("person ", "town "))
        context = f"{name} lives in {place}."
        answer = {"text": place, "answer_start": context.index(place)}
        asked = {"question": f"where does {name} live", "answers": [answer], "id": str(index)}
        paragraphs.append({"context": context, "qas": [asked]})
    path = Path(run.workdir) / "squad.json"
    path.write_text(json.dumps({"data": [{"title": "towns", "paragraphs": paragraphs}]}))
    return str(path)


def asked(run: runs.Run, name: str, *scalings: str) -> dict:
    """Returns eval/retrieval.json's content of one task."""
    config = run.config.copy_and_resolve_references()
    if name in ALPHABETS:
        run = dataclasses.replace(run, tokenizer=written_in(run, ALPHABETS[name]))
    own = tasks.RETRIEVAL[name].haystack if name in tasks.RETRIEVAL else ""
    cli.apply(config, {
        "eval.multiples": (1, *FAR), "eval.scalings": scalings, "eval.retrieval.task": name,
        "eval.retrieval.haystack": "noise" if own == "text" else "auto", "eval.retrieval.generate": False,
        "eval.retrieval.depths": 3, "eval.retrieval.examples": 32,
    })  # fmt: skip
    if name == "qa":
        cli.apply(config, {"data.length": QA_LENGTH, "eval.multiples": (1, *FAR[:2]),
                           "eval.retrieval.questions": _words(run)})  # fmt: skip
    return retrieval.evaluate(dataclasses.replace(run, config=validate.resolve(config)), Quiet())


@pytest.mark.slow
def test_the_model_retrieves_from_far_what_its_control_cannot(trained: runs.Run) -> None:
    """Without this, a control at chance would only say that nothing was learned."""
    own = {(one["multiple"], one["scaling"]): one for one in asked(trained, "mqar", "yarn")["by_length"]}
    assert own[1, "trained"]["accuracy"] > 0.9
    far = own[4, "yarn"]
    print(f"mqar at {far['length']}, YaRN: {far['accuracy']:.3f}, control {far['control']['accuracy']:.3f}")
    assert far["accuracy"] > far["chance"] + 0.3 and far["control"]["accuracy"] <= far["chance"] + 0.08


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(tasks.SYNTHETIC))
def test_the_control_is_at_chance_at_four_times_the_training_length_and_beyond(trained: runs.Run, name: str) -> None:
    entries = [entry for entry in asked(trained, name)["by_length"] if entry["multiple"] in FAR]
    measured = [entry for entry in entries if entry.get("control") is not None]
    assert measured, [entry.get("reason") for entry in entries]
    for entry in measured:
        trained_at = QA_LENGTH if name == "qa" else LENGTH
        assert entry["distance"]["least"] > trained_at and entry["measures_distance"] is True
        local = entry["control"]["accuracy"]
        own, chance = entry["accuracy"], entry["chance"]
        print(f"{name} at {entry['length']}: {own:.3f}, control {local:.3f}, chance {chance:.3f}")
        assert local <= chance + 0.08
