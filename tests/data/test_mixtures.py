"""Several texts in one run: shares of rows, order, resume, fingerprint, losses apart and together, refusals."""

import json

import numpy as np
import pytest

from configs.errors import ConfigError, UserError
from configs.rules import sources as rules
from data import fingerprint, parts, pipeline, sources, streams, tokenizers
from data.streams import Concatenated, MixedStream
from eval.progress import Quiet
from eval.quality import loss
from models import initialise
from tests.data.common import same, settings, words, write
from training.run_directory.run import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    texts = {f"a{i}.txt": words(i, 150) for i in range(8)} | {f"b{i}.txt": words(90 + i, 150).upper() for i in range(8)}
    return write(folder, texts | {"held.txt": words(99, 200), "c.txt": "0123456789" * 60})


def mixture(folder, weights=(3, 1), **more):
    entries = tuple(
        {"name": name, "path": str(folder / f"{name}*.txt"), "weight": weight, **more.get(name, {})}
        for name, weight in zip("ab", weights, strict=False)
    )
    return {"data__mixture": entries, "data__cache_dir": str(folder / "cache")}


def opened(config, **more):
    corpus = sources.open_data(config.data)
    return pipeline.TrainStream(config, tokenizers.Bytes(), corpus, **more)


def taken(stream, count):
    result = [next(stream) for _ in range(count)]
    stream.close()
    return result


def is_upper(batch):
    """Which rows are of the second text, by their letters."""
    letters = batch["tokens"] > 64
    return ((batch["tokens"] < 97) & letters).sum(axis=1) > letters.sum(axis=1) / 2


@pytest.mark.parametrize("packing", ["contiguous", "segments"])
def test_rows_come_in_proportion_in_one_order_whoever_makes_them(folder, packing):
    config = settings(**mixture(folder), data__packing=packing, data__batch_size=6)
    batches = taken(opened(config), 8)
    counts = [int(is_upper(batch).sum()) for batch in batches]
    assert np.cumsum(counts).tolist() == [-(-6 * n // 4) for n in range(1, 9)], "without drift over batches"
    resumed = opened(config)
    resumed.set_state(json.loads(json.dumps({"batches": 5})))
    assert all(same(*pair) for pair in zip(taken(resumed, 3), batches[5:], strict=True))
    shares = [taken(opened(config, share=pipeline.Share((part,), 3)), 4) for part in range(3)]
    for number in range(4):
        joined = {key: np.concatenate([of[number][key] for of in shares]) for key in batches[number]}
        assert same(joined, batches[number])


def test_worker_processes_change_nothing(folder):
    alone = taken(opened(settings(**mixture(folder))), 3)
    assert all(same(*pair) for pair in zip(taken(opened(settings(**mixture(folder), data__workers=1)), 3), alone,
                                           strict=True))  # fmt: skip


def test_texts_of_equal_content_have_orders_of_their_own(folder):
    twice = tuple({"name": name, "path": str(folder / "a*.txt"), "weight": 1} for name in "xy")
    config = settings(data__mixture=twice, data__cache_dir=str(folder / "cache"), data__validation_in_train=1.0)
    (batch,) = taken(opened(config), 1)
    assert not np.array_equal(batch["tokens"][:2], batch["tokens"][2:])


def test_the_fingerprint_holds_shares_and_content(folder):
    def of(**more):
        config = settings(**{**mixture(folder), **more})
        return fingerprint(config, sources.open_data(config.data), tokenizers.Bytes())

    one = of()
    assert [(text["name"], text["share"]) for text in one["texts"]] == [("a", 0.75), ("b", 0.25)]
    assert one["bytes"] == sum(text["bytes"] for text in one["texts"]) and one["source"] == "mixture"
    other = of(data__mixture=mixture(folder, (1, 1))["data__mixture"])
    apart = of(**mixture(folder, a={"validation_path": str(folder / "held.txt")}))
    assert len({one["fingerprint"], other["fingerprint"], apart["fingerprint"], of()["fingerprint"]}) == 3
    assert one["documents_sha256"] == other["documents_sha256"] != apart["documents_sha256"]


def test_the_joined_validation_split_is_the_texts_one_after_the_other(folder):
    config = settings(**mixture(folder))
    corpus = sources.open_data(config.data)
    joined = parts.open_split(corpus, tokenizers.Bytes(), "validation")
    assert isinstance(joined, MixedStream)
    each = [streams.open_stream(one, tokenizers.Bytes(), "validation") for one in corpus.texts]
    whole = np.concatenate([one.tokens for one in each])
    assert np.array_equal(joined.tokens[:], whole) and len(joined) == len(whole) == joined.starts[-1]
    assert np.array_equal(joined.byte_counts[:], np.concatenate([one.byte_counts for one in each]))
    first, second = (len(one.validation) for one in corpus.texts)
    expected = [-1, *[0] * first, *[1] * second]
    assert joined.text_of(np.arange(-1, len(joined.starts) - 1)).tolist() == expected
    halves = [parts.open_split(corpus, tokenizers.Bytes(), name) for name in parts.PARTS]
    # A document that is cut in two has a separator in its middle.
    assert 0 <= sum(map(len, halves)) - len(joined) <= 2 and all(len(text) for half in halves for text in half.texts)


def test_an_array_of_arrays_reads_as_one():
    whole = np.arange(20, dtype=np.uint16)
    made = Concatenated([whole[:3], whole[3:3], whole[3:].astype(np.uint32)])
    for key in (slice(None), slice(1, 9), slice(-4, None), slice(0, 20, 3), slice(5, 5), np.array([[0, 19], [-1, 3]])):
        assert np.array_equal(made[key], whole[key])


@pytest.mark.parametrize("packing", ["contiguous", "segments"])
def test_losses_apart_and_together(folder, tmp_path, packing):
    small = {"model__width": 16, "model__num_layers": 1, "model__num_heads": 1, "model__init_std": 0.3}
    small |= {"eval__bootstrap": 20, "eval__multiples": (1,), "eval__tokens": 64, "data__packing": packing}
    config = settings(**mixture(folder), **small)
    run = Run(tmp_path, config, *initialise(config.model, 0), tokenizers.Bytes(), 0)
    result = loss.evaluate(run, Quiet())
    apart = {one["name"]: one for one in result["by_source"]}
    assert list(apart) == ["a", "b"] and apart["a"]["share"] == 0.75
    assert sum(one["tokens"] for one in apart.values()) == result["tokens"]
    assert sum(one["bytes"] for one in apart.values()) == result["bytes"]
    together = sum(one["loss"] * one["tokens"] for one in apart.values()) / result["tokens"]
    assert together == pytest.approx(result["loss"]) and apart["a"]["loss"] != apart["b"]["loss"]
    bits = sum(one["bits_per_byte"] * one["bytes"] for one in apart.values()) / result["bytes"]
    assert bits == pytest.approx(result["bits_per_byte"])
    if packing == "segments":  # a text alone gives the loss that it has apart, but for how its rows are filled
        alone = settings(**small, data__path=str(folder / "b*.txt"), data__cache_dir=str(folder / "cache"))
        alone = loss.evaluate(Run(tmp_path, alone, run.graphdef, run.params, tokenizers.Bytes(), 0), Quiet())
        assert alone["loss"] == pytest.approx(apart["b"]["loss"], rel=1e-5) and alone["tokens"] == apart["b"]["tokens"]


@pytest.mark.parametrize("given, message", [
    ({"weight": 1}, r"data.mixture\[0\].path: is missing"),
    ({"path": "a"}, r"data.mixture\[0\].weight is missing; it must be a number above 0"),
    ({"path": "a", "weight": -1}, r"data.mixture\[0\].weight = -1: must be a number above 0"),
    ({"path": "a", "weight": 0.0}, r"weight = 0.0: must be a number above 0"),
    ({"path": "a", "weight": float("inf")}, r"weight = inf: must be"),
    ({"path": "a", "weight": 1, "wieght": 2}, r"data.mixture\[0\].wieght = 2: unknown; did you mean"),
    ({"path": "", "weight": 1}, r"data.mixture\[0\].path = '': must be text, a file or a glob"),
    ("a", r"data.mixture\[0\] = 'a': must be dict\(path=, weight=\)"),
])  # fmt: skip
def test_what_is_wrong_with_a_mixture_is_told(given, message):
    with pytest.raises(ConfigError, match=message):
        settings(data__mixture=(given,))


def test_names_are_one_each_and_no_other_text_is_named():
    twice = ({"path": "a", "weight": 1}, {"path": "a", "weight": 2})
    with pytest.raises(ConfigError, match="two of its texts are named 'a'"):
        settings(data__mixture=twice)
    with pytest.raises(ConfigError, match=r"data.path = 'b': data.mixture is also set"):
        settings(data__mixture=twice[:1], data__path="b")
    assert rules.source(settings(data__mixture=twice[:1]).data) == "mixture"


def test_texts_that_cannot_be_read_are_named(folder):
    lost = ({"path": str(folder / "a*.txt"), "weight": 1}, {"name": "lost", "path": str(folder / "z*"), "weight": 1})
    with pytest.raises(UserError, match=r"data.mixture\[1\], lost: data.path = '.*z\*': no file matches"):
        sources.open_data(settings(data__mixture=lost).data)


def test_text_beside_token_files_needs_the_tokenizer_of_both(folder):
    np.save(folder / "ids.npy", np.arange(4000, dtype=np.uint16) % 200)
    both = ({"name": "a", "path": str(folder / "a*.txt"), "weight": 1},
            {"name": "ids", "path": str(folder / "ids.npy"), "weight": 1})  # fmt: skip
    config = settings(data__mixture=both, data__cache_dir=str(folder / "cache"), model__vocab_size=256)
    with pytest.raises(
        UserError, match=r"text beside token files \(a: text, ids: token ids\); set it to the tokenizer.json"
    ):
        sources.open_data(config.data, 256)


def test_documents_that_validate_one_text_and_train_another_are_refused(folder):
    entries = ({"name": "a", "path": str(folder / "a[0-3].txt"), "weight": 1},
               {"name": "b", "path": str(folder / "b*.txt"), "weight": 1,
                "validation_path": str(folder / "a[0-7].txt")})  # fmt: skip
    shared = settings(data__mixture=entries, data__cache_dir=str(folder / "cache"), data__validation_in_train=0.25)
    with pytest.raises(UserError, match=r"3 of the 8 validation documents of b also train in a|4 of the 8 validation"):
        sources.open_data(shared.data)
    shared.data.validation_in_train = 1.0
    assert len(sources.open_data(shared.data).texts) == 2
