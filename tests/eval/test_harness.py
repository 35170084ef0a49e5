"""lm-evaluation-harness on a run: its numbers are the model's own, whatever the batches; its tasks run offline."""

import json
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx
from scipy.special import log_softmax

from configs.errors import UserError
from convert.writing import write_run
from eval import harness
from models.decoding import decode

TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
{more}
"""
CHOICE = """doc_to_choice: ["one", "two of them"]
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]"""
# As RULER's: the task makes its own texts, to lengths that it is given, and scores the share of answers found.
RULER = """
task: tiny_niah
custom_dataset: !function made.needles
test_split: test
output_type: generate_until
doc_to_text: "{{input}}"
doc_to_target: "{{outputs}}"
gen_prefix: "{{gen_prefix}}"
target_delimiter: " "
process_results: !function made.found
metric_list:
  - {metric: "64", aggregation: !function made.mean, higher_is_better: true}
  - {metric: "96", aggregation: !function made.mean, higher_is_better: true}
generation_kwargs: {do_sample: false, temperature: 0.0, max_gen_toks: 12, until: []}
"""
MADE = """
import datasets
import tokenizers

def needles(max_seq_lengths=(4096,), tokenizer=None, **kwargs):
    size = tokenizers.Tokenizer.from_file(tokenizer + "/tokenizer.json")
    rows = []
    for length in max_seq_lengths:
        for index in range(3):
            value = str(100 + 37 * index)
            text, end = " the magic number is " + value + ".", " the magic number is"
            while len(size.encode("he " + text + end).ids) <= length - 12:
                text = "he " + text
            rows.append({"input": text, "outputs": [value, "of"], "gen_prefix": end, "max_length": length})
    return {"test": datasets.Dataset.from_list(rows)}

def found(doc, results):
    share = sum(answer in results[0] for answer in doc["outputs"]) / len(doc["outputs"])
    return {"64": -1.0, "96": -1.0, str(doc["max_length"]): share}

def mean(scores):
    kept = [score for score in scores if score != -1]
    return sum(kept) / len(kept) if kept else -1
"""
UNTIL = """generation_kwargs: {until: ["e"], max_gen_toks: 6}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]"""
QUESTIONS = [{"question": f"the {word} of", "answer": i % 2} for i, word in enumerate(["he", "they", "you", "on"])]


@pytest.fixture
def workdir(make, tmp_path):
    """A run directory of an untrained byte model with trained length 16."""
    run = make()
    write_run(tmp_path / "run", run.config, run.params, origin={"kind": "test"})
    run.tokenizer.save(tmp_path / "run" / "tokenizer")
    return tmp_path / "run"


@pytest.fixture
def model(workdir):
    return harness.AblaxLM(str(workdir), batch_size=3)


def request(*args):
    return SimpleNamespace(args=args)


def by_hand(run, ids):
    """Each token's log-probability given those before it, and whether it was the likeliest, by numpy."""
    logits = jax.jit(lambda p, t: nnx.merge(run.graphdef, p)(t))(run.params, np.array([ids[:-1]]))[0]
    scores = log_softmax(np.asarray(logits, np.float64), axis=-1)
    return scores[np.arange(len(ids) - 1), ids[1:]], scores.argmax(-1) == ids[1:]


def test_loglikelihood_is_the_models_own(model):
    """Contexts of several lengths, empty and longer than the training length, in batches filled up with padding."""
    pairs = [("the of", " and"), ("", "to"), ("in is you that it he was", " for"), ("a", "b")]
    result = model.loglikelihood([request(*pair) for pair in pairs], disable_tqdm=True)
    for (context, continuation), (score, greedy) in zip(pairs, result, strict=True):
        ids = list((context or "\0").encode() + continuation.encode())
        scores, right = by_hand(model.run, ids)
        new = len(continuation)
        assert score == pytest.approx(scores[-new:].sum(), abs=1e-4)
        assert greedy == bool(right[-new:].all())


def test_rolling_scores_every_token_once_in_windows_of_the_training_length(model):
    text = "the and to in is you that it he was for on are as with his"
    (result,) = model.loglikelihood_rolling([request(text)], disable_tqdm=True)
    ids, total, length = [0, *text.encode()], 0.0, 16
    for end in range(0, len(text), length):
        last = min(end + length, len(text))
        window = ids[max(0, last - length) : last + 1] if end else ids[: last + 1]
        total += by_hand(model.run, window)[0][-(last - end) :].sum()
    assert result == pytest.approx(total, abs=1e-3)


def test_generation_stops_where_it_must_and_is_greedy_decoding(model):
    prompts = ["the of and to in is", "he", "was for on"]
    until = {"until": [], "max_gen_toks": 8}
    whole = model.generate_until([request(prompt, until) for prompt in prompts], disable_tqdm=True)
    for prompt, text in zip(prompts, whole, strict=True):
        ids = decode.generate(model.run.graphdef, model.run.params, np.array([list(prompt.encode())]), max_new=8)[0]
        ids = list(np.asarray(ids))
        assert text == model.run.tokenizer.decode(ids[: ids.index(0)] if 0 in ids else ids)
    stop = whole[0][3]
    (cut,) = model.generate_until([request(prompts[0], until | {"until": [stop, "?!"]})], disable_tqdm=True)
    assert cut == whole[0][: whole[0].index(stop)]


@pytest.mark.parametrize("options, message", [({"top_k": 4}, "top_k"), ({"num_beams": 2}, "num_beams")])
def test_an_option_that_would_be_ignored_is_refused(model, options, message):
    with pytest.raises(UserError, match=message):
        model.generate_until([request("he", options)], disable_tqdm=True)


@pytest.mark.filterwarnings("ignore:os.fork")  # its task files are read by processes, here after JAX has started
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_harness_runs_its_own_tasks_from_files(workdir, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, kind, more in (("choice", "multiple_choice", CHOICE), ("until", "generate_until", UNTIL)):
        (folder / f"{name}.yaml").write_text(TASK.format(name=f"tiny_{name}", kind=kind, more=more, data=data))
    argv = ["--workdir", str(workdir), "--tasks", "tiny_choice,tiny_until", "--include_path", str(folder)]
    harness.main(argv)
    result = json.loads((workdir / "eval/harness.json").read_text())
    run = harness.AblaxLM(str(workdir)).run
    right = 0
    for question in QUESTIONS:
        scores = [
            by_hand(run, list(f"{question['question']} {choice}".encode()))[0][-len(choice) - 1 :].sum()
            for choice in ("one", "two of them")
        ]
        right += int(np.argmax(scores)) == question["answer"]
    assert result["results"]["tiny_choice"]["acc,none"] == right / len(QUESTIONS)
    assert math.isfinite(result["results"]["tiny_until"]["exact_match,none"])
    assert result["eval"] == "harness"


@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_task_that_makes_its_own_texts_gets_lengths_and_the_runs_tokenizer(workdir, tmp_path, monkeypatch):
    """RULER's way, offline; the model is one that says the number, so that half of each row's two answers is found."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "niah.yaml").write_text(RULER)
    (folder / "made.py").write_text(MADE)
    seen = []

    def answer(model, params, prompts, *, max_new, mask_BT, **_):
        assert max_new == 12
        texts = [bytes(row[mask > 0].tolist()).decode() for row, mask in zip(prompts, mask_BT, strict=True)]
        seen.extend(texts)
        said = [" " + text.split("number is ")[1].split(".")[0] for text in texts]
        return np.array([list(text.encode().ljust(max_new, b"!")) for text in said])

    monkeypatch.setattr(harness.scoring, "answer", answer)
    argv = ["--workdir", str(workdir), "--tasks", "tiny_niah", "--include_path", str(folder)]
    harness.main([*argv, "--max_lengths", "64,96"])
    result = json.loads((workdir / "eval/harness.json").read_text())["results"]["tiny_niah"]
    assert result["64,none"] == result["96,none"] == 0.5
    # As long as each length allows, in the run's tokens.
    assert {len(text) // 3 for text in seen} == {(64 - 12) // 3, (96 - 12) // 3}
    assert all(text.endswith("the magic number is") for text in seen)
    with pytest.raises(UserError, match="--max_lengths=64,x: must be whole numbers above 0"):
        harness.main([*argv, "--max_lengths", "64,x"])


def test_the_tokenizer_for_the_harness_counts_as_the_runs_does(make, tmp_path):
    import tokenizers as library

    text = "the of and to in is you"
    for kind in ("byte", "char"):
        run = make(data__tokenizer=kind)
        harness.write_tokenizer(run, tmp_path / kind)
        there = library.Tokenizer.from_file(str(tmp_path / kind / "tokenizer.json"))
        ids = there.encode(text).ids
        assert len(ids) == len(run.tokenizer.encode(text)) and there.decode(ids) == text
    assert len(library.Tokenizer.from_file(str(tmp_path / "byte/tokenizer.json")).encode("\u2581 \n\u00e9").ids) == 7
