"""The check before a sweep: it holds on sound code, and every line of its table turns red on a fault of its own."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import base, cli, validate
from configs.errors import UserError
from eval import equivalence
from eval import run as command
from eval.equivalence import __main__ as main
from eval.equivalence import cores, decoding, layouts, programs, rows, setting, target
from eval.progress import Quiet
from models import attention, kernels, positions, transformer
from models.decoding import decode, kv_cache, storage
from models.kernels import masks
from training.devices import compile_only

TINY = {
    "model.width": 16,
    "model.num_layers": 2,
    "model.num_heads": 4,
    "model.num_kv_heads": 2,
    "model.attention.window": 5,
    "data.length": 32,
    "eval.equivalence.length": 16,
}

POLICIES = ("remat block", "remat attention", "remat projections")


def config_of(**changes: Any) -> ConfigDict:
    config = base.get_config()
    cli.apply(config, TINY | {name.replace("__", "."): value for name, value in changes.items()})
    return validate.resolve(config)


@pytest.fixture(scope="module")
def tried() -> setting.Setting:
    (result,) = setting.settings(config_of())
    return result


@pytest.fixture(scope="module")
def plain(tried: setting.Setting) -> Any:
    """The batch and what the model as configured gives for it."""
    batch = programs.plain(tried.tokens())
    return batch, programs.outcome(tried, programs.compiled(tried), batch)


@pytest.fixture
def decoding_anew() -> Iterator[None]:
    """Programs of decoding are kept by the model's graph, and a fault is in none of them."""
    for program in (decode.prefill, decode.step):
        program.clear_cache()
    yield
    for program in (decode.prefill, decode.step):
        program.clear_cache()


def red(found: Iterable[rows.Row]) -> set[tuple[str, str]]:
    return {(row.what, row.part) for row in found if row.exceeded}


def test_holds_on_sound_code_and_says_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {*kernels.KERNELS} - {"reference", "blocked", "cudnn"}:
        monkeypatch.delitem(kernels.KERNELS, name)
    monkeypatch.setattr(decoding, "ROUNDED", {})
    result = equivalence.check(config_of(), Quiet())
    assert result["passed"] and not any(row["exceeded"] for row in result["rows"])
    messages = {(row["what"], row["part"]) for row in result["rows"] if row["reason"] is None}
    both = ("core blocked", "fused QKV", "scanned layers", *POLICIES, "packed documents")
    assert messages == {
        *((what, part) for what in (*both, "left padding") for part in ("output", "gradient")),
        *((what, "output") for what in ("decoding", "left-padded decoding")),
    }
    for row in result["rows"]:
        if row["reason"] is None:
            assert 0 <= row["relative"] <= row["tolerance"] < 1e-3 and row["absolute"] >= 0
        if "core" in row["what"]:
            assert row["where"] == "rope, window 5"
    reasons = {row["what"]: row["reason"] for row in result["rows"] if row["reason"] is not None}
    assert reasons["core cudnn"] == "runs on NVIDIA GPUs alone, and this is cpu"


def test_the_cores_of_tpus_run_interpreted_where_it_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    result = rows.Outcome({"out": np.ones(1)}, {"input": np.ones(1)})
    met = {}

    def under(tried: setting.Setting, layer: cores.Layer, core: str) -> rows.Outcome:
        met[core] = kernels.pallas.platform()
        kernels.choose(core, kernels.Needs(met[core], jnp.float32, head_dim=4, q_len=16, kv_len=16))
        return result

    monkeypatch.setattr(cores, "under", under)
    (short,) = setting.settings(config_of())
    noted = {row.what: row.note for row in cores.rows(short) if row.reason is None}
    wanted = {"splash": "tpu", "flash": "tpu", "fused": "gpu"}
    assert met == {core: wanted.get(core, "cpu") for core in kernels.KERNELS}
    assert {what for what, note in noted.items() if "interpreted" in note} == {f"core {name}" for name in wanted}
    reasons = {row.what: row.reason for row in cores.rows(dataclasses.replace(short, length=1024)) if row.reason}
    assert reasons["core splash"] == "runs on TPUs alone, and this is cpu"


def wrong_scale(core: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays: core(*arrays[:-1], dataclasses.replace(arrays[-1], scale=1.1 * arrays[-1].scale))


def one_key_more(core: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(q: Any, k: Any, v: Any, masking: masks.Masking, scoring: kernels.Scoring) -> Any:
        wider = masks.Masking(**{**vars(masking), "window": masking.window + 1})
        return core(q, k, v, wider, scoring)

    return faulty


def wrong_gradient(core: Callable[..., Any]) -> Callable[..., Any]:
    """Right output, but the keys' gradient misses a hundredth."""
    return lambda q, k, v, *rest: core(q, 0.99 * k + jax.lax.stop_gradient(0.01 * k), v, *rest)


@pytest.mark.parametrize(
    ("core", "fault", "parts"),
    [
        ("blocked", wrong_scale, {"output", "gradient"}),
        ("xla", one_key_more, {"output", "gradient"}),
        ("blocked", wrong_gradient, {"gradient"}),
    ],
)
def test_a_faulty_core_is_red(
    tried: setting.Setting, monkeypatch: pytest.MonkeyPatch, core: str, fault: Any, parts: set[str]
) -> None:
    for name in {*kernels.KERNELS} - {"reference", core}:
        monkeypatch.delitem(kernels.KERNELS, name)
    sound = kernels.KERNELS[core]
    monkeypatch.setitem(kernels.KERNELS, core, dataclasses.replace(sound, run=fault(sound.run)))
    assert red(cores.rows(tried)) == {(f"core {core}", part) for part in parts}


def raising(error: Exception) -> Callable[..., Any]:
    def run(*_: Any) -> Any:
        raise error

    return run


def test_a_core_that_fails_is_red_and_the_others_are_compared(
    tried: setting.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = {"splash": RuntimeError("out of shared memory\nmore"), "blocked": NotImplementedError("no such mask")}
    for name in {*kernels.KERNELS} - {"reference", "xla", *errors}:
        monkeypatch.delitem(kernels.KERNELS, name)
    plain = dataclasses.replace(kernels.KERNELS["blocked"], lacks=lambda needs: None)
    for name, error in errors.items():
        monkeypatch.setitem(kernels.KERNELS, name, dataclasses.replace(plain, run=raising(error)))
    rows = {row.what: row for row in cores.rows(tried)}
    assert rows["core splash"].exceeded and rows["core splash"].reason == "RuntimeError: out of shared memory"
    assert not rows["core blocked"].exceeded and rows["core blocked"].reason == "no such mask"
    assert rows["core xla"].reason is None and not rows["core xla"].exceeded


def test_a_faulty_fused_layout_is_red(tried: setting.Setting, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 10: keys and values taken from one another's columns."""
    right = attention.Attention.project

    def wrong(self: Any, *given: Any, **more: Any) -> Any:
        q, kv = right(self, *given, **more)
        return q, kv if self.qkv is None else {"k": kv["v"], "v": kv["k"]}

    monkeypatch.setattr(attention.Attention, "project", wrong)
    assert red(layouts.qkv(tried, *plain)) == {("fused QKV", "output"), ("fused QKV", "gradient")}


def test_a_faulty_scan_is_red(tried: setting.Setting, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers in the wrong order."""
    right = transformer.Transformer._scanned

    def wrong(self: Any, x: Any, *rest: Any) -> Any:
        blocks = self.blocks
        graph, state = transformer.nnx.split(blocks)
        self.blocks = transformer.nnx.merge(graph, jax.tree.map(lambda leaf: leaf[::-1], state))
        try:
            return right(self, x, *rest)
        finally:
            self.blocks = blocks

    monkeypatch.setattr(transformer.Transformer, "_scanned", wrong)
    assert red(layouts.scan(tried, *plain)) == {("scanned layers", "output"), ("scanned layers", "gradient")}


def test_a_faulty_rematerialisation_is_red(tried: setting.Setting, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right output, but nothing flows back through the residual stream."""
    right = transformer._rematerialised

    def wrong(remat: str, call: Any, block: Any, x: Any, *rest: Any) -> Any:
        return right(remat, call, block, jax.lax.stop_gradient(x), *rest)

    monkeypatch.setattr(transformer, "_rematerialised", wrong)
    assert red(layouts.remat(tried, *plain)) == {(policy, "gradient") for policy in POLICIES}


def test_documents_that_see_one_another_and_padding_that_is_seen_are_red(
    tried: setting.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models.kernels import block

    def blind(q: Any, kv: Any, q_segments: Any, kv_segments: Any, causal: bool, window: Any) -> Any:
        return masks_visible(q, kv, None, None, causal, window)

    masks_visible = masks.visible
    for module in (masks, block):
        monkeypatch.setattr(module, "visible", blind)
    assert red(layouts.documents(tried)) == {
        (what, part) for what in ("packed documents", "left padding") for part in ("output", "gradient")
    }


@pytest.mark.usefixtures("decoding_anew")
def test_a_cache_that_counts_wrong_is_red(tried: setting.Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded tokens one place too far on."""
    monkeypatch.setattr(decoding, "ROUNDED", {})
    right = kv_cache.KVCache.next_positions
    monkeypatch.setattr(kv_cache.KVCache, "next_positions", lambda self, count: right(self, count) + 1)
    assert ("decoding", "output") in red(decoding.rows(tried))


@pytest.mark.usefixtures("decoding_anew")
def test_a_cache_that_sees_padding_is_red(tried: setting.Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 7."""
    monkeypatch.setattr(decoding, "ROUNDED", {})
    right = kv_cache.KVCache.place
    monkeypatch.setattr(
        kv_cache.KVCache,
        "place",
        lambda self, tokens, positions, segments, **given: right(
            self, tokens, positions, jnp.ones_like(tokens), **given
        ),
    )
    assert ("left-padded decoding", "output") in red(decoding.rows(tried))


@pytest.mark.usefixtures("decoding_anew")
def test_a_scale_with_a_floor_is_red(tried: setting.Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 20: a scale that is never below 1 kills what an 8-bit cache holds."""
    right = storage.encode

    def wrong(x: Any, like: Any) -> Any:
        result = right(x, like)
        if not isinstance(like, storage.Quantised):
            return result
        return storage.Quantised(jnp.round(jnp.asarray(x)).astype(jnp.int8), jnp.ones_like(result.scales))

    monkeypatch.setattr(storage, "encode", wrong)
    monkeypatch.setattr(decoding, "ROUNDED", {"int8": decoding.ROUNDED["int8"]})
    assert red(decoding.rows(tried)) == {("int8 cache", "output")}


def test_distances() -> None:
    expected = {"a": np.array([2.0, -4.0]), "b": np.array([1e-9])}
    assert rows.distance({"a": np.array([2.0, -4.4]), "b": np.array([1e-9])}, expected) == pytest.approx(
        (0.4, 0.1, "a")
    )
    # A tensor of nothing but noise is measured against a hundredth of the largest.
    assert rows.distance({"a": expected["a"], "b": np.array([4e-4])}, expected)[1:] == (
        pytest.approx(0.01, rel=1e-3),
        "b",
    )
    for bad in (np.nan, np.inf):
        row = rows.Row("x", "y", "output", "float32")
        (result,) = rows.compared(row, rows.Outcome({"a": np.array([bad])}), rows.Outcome({"a": np.array([1.0])}))
        assert result.exceeded
    with pytest.raises(ValueError, match="tensors differ"):
        rows.distance({}, expected)


def test_what_would_not_act_is_made_to() -> None:
    changes = {
        "model__attention__window": 1024,
        "model__position__rope__scaling__kind": "dynamic",
        "model__position__rope__scaling__factor": 2.0,
        "model__position__rope__scaling__original_length": 2048,
    }
    (result,) = setting.settings(config_of(**changes))
    assert result.model.attention.window == 4 and result.model.position.rope.scaling.original_length == 8
    assert result.changed == {
        "model.attention.window": 4,
        "model.position.rope.scaling.original_length": 8,
    }
    (real,) = setting.settings(config_of(**changes, eval__equivalence__length=0, eval__equivalence__batch_size=0))
    assert (real.batch, real.length, real.changed) == (16, 32, {}) and real.model.attention.window == 1024


def test_float32_is_tried_beside_the_dtype_of_the_config() -> None:
    result = setting.settings(config_of(model__dtype="bfloat16"))
    assert [one.dtype for one in result] == ["float32", "bfloat16"]
    with pytest.raises(UserError, match=r"eval.equivalence.length = 4: must be 8 or more"):
        setting.settings(config_of(eval__equivalence__length=4))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"data__packing": "segments"},
        {"model__dtype": "bfloat16", "model__attention__sinks": True},
        {"model__attention__kind": "mla", "model__num_kv_heads": None, "model__attention__kv_storage": "int8"},
        {"model__position__kind": "cope", "model__remat": "block", "model__scan_layers": "yes"},
        {"model__position__pattern": ("fire", "alibi"), "model__num_layers": 4, "model__attention__qkv": "fused"},
        {
            "model__position__rope__scaling__kind": "dynamic",
            "model__position__rope__scaling__factor": 2.0,
            "model__attention__window": None,
        },
        {"model__position__kind": "learned", "model__attention__soft_cap": 3.0, "model__attention__qk_norm": True},
    ],
)
def test_holds_for_other_configs(changes: dict[str, Any]) -> None:
    result = equivalence.check(config_of(**changes), Quiet())
    assert result["passed"], [row for row in result["rows"] if row["exceeded"]]
    assert {row["what"] for row in result["rows"]} >= {f"core {name}" for name in [*kernels.KERNELS][1:]}
    if "data__packing" in changes:
        assert {row["where"] for row in result["rows"] if row["what"] == "core xla"} == {
            "rope, window 5",
            "rope, window 5, packed",
        }


def test_the_command_exits_with_one_where_something_is_exceeded(
    make: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = rows.Row("core blocked", "core reference", "output", "float32", absolute=0.1, relative=0.1, tolerance=1e-5)
    monkeypatch.setattr(equivalence, "GROUPS", (lambda setting: iter([row]),))
    assert main.main(["--config=configs/tiny.py", "--length=16"]) == 1
    assert "EXCEEDED" in capsys.readouterr().out
    good = rows.Row("core blocked", "core reference", "output", "float32", absolute=0.0, relative=0.0, tolerance=1e-5)
    monkeypatch.setattr(equivalence, "GROUPS", (lambda setting: iter([good]),))
    assert main.main(["--config=configs/tiny.py"]) == 0
    assert equivalence.evaluate(make(), Quiet())["passed"]


def test_it_is_asked_for_by_name_and_refuses_in_one_line() -> None:
    assert "equivalence" in command.EVALUATIONS and "equivalence" not in command.DEFAULT
    for arguments, words in (
        (["--workdir=a", "--config=b"], "give either --workdir=RUN or --config=FILE"),
        (["--workdir=a", "--out=b"], "--out: needs --config"),
        (["--workdir=a", "--config.model.width=8"], "only --config.eval"),
    ):
        with pytest.raises(UserError, match=words):
            main.main(arguments)


@pytest.mark.parametrize("given, message", [
    (["--target=h1000:1"], "--target=h1000:1: must be"),
    (["--target=h100:1", "--length=8"], "--length: cannot be combined with --target"),
])  # fmt: skip
def test_a_target_that_is_none_or_with_shapes_of_its_own_is_refused(given: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        main.main(["--config=configs/tiny.py", *given])


def test_a_target_without_what_compiles_for_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_only, "CUDA_PLUGINS", ("no_such_plugin",))
    with pytest.raises(UserError, match="make setup EXTRAS=dev,plan-gpu"):
        main.main(["--config=configs/tiny.py", "--target=h100:1"])


def test_every_core_is_compiled_refused_or_told_as_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_only, "check", lambda name: "cpu")
    monkeypatch.setattr(compile_only, "describe", lambda name: ((jax.devices()[0],), 2**40))
    config = config_of(model__position__pattern=("rope", "alibi"), data__packing="segments")
    result = target.check(config, "here", Quiet())
    status = {(row["core"], row["where"]): row["status"] for row in result["rows"]}
    kinds = {where for _, where in status}
    assert result["passed"] and len(kinds) == 4  # two schemes, whole and packed
    assert {status["blocked", kind] for kind in kinds} == {status["reference", kind] for kind in kinds} == {"compiles"}
    assert {status["cudnn", kind] for kind in kinds} == {"refused"}
    assert all(row["temp"] > 0 for row in result["rows"] if row["status"] == "compiles")
    assert {row["core"] for row in result["rows"] if row["chosen"]} == {"blocked"}

    def broken(*arguments: Any, **settings: Any) -> Any:
        raise ValueError("no tile fits")

    monkeypatch.setitem(kernels.KERNELS, "blocked", dataclasses.replace(kernels.KERNELS["blocked"], run=broken))
    result = target.check(config_of(), "here", Quiet())
    assert not result["passed"]
    assert [row["reason"] for row in result["rows"] if row["wrong"]] == ["ValueError: no tile fits"]


def test_a_grid_takes_the_place_of_the_configs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_only, "check", lambda name: "cpu")
    monkeypatch.setattr(compile_only, "describe", lambda name: ((jax.devices()[0],), 2**40))
    met: list[tuple[Any, ...]] = []

    def compiled(tried: setting.Setting, layer: cores.Layer, core: str, *where: Any) -> Any:
        met.append((core, layer.label, tried.dtype, tried.model.head_dim, tried.length))
        raise NotImplementedError("no such tile")

    monkeypatch.setattr(target, "compiled", compiled)
    grid = target.Grid(["all"], ["blocked", "fused"], ["bfloat16"], [8, 16], [32, 64])
    result = target.check(config_of(), "here", Quiet(), grid)
    kinds = {kind for kind in positions.KINDS if positions.places_of(kind) != {"embed"}}
    assert len(met) == len(set(met)) == len(result["rows"]) == 2 * len(kinds) * 2 * 2
    assert {label.partition(",")[0] for _, label, *_ in met} == kinds
    assert {row["status"] for row in result["rows"]} == {"refused"}
    with pytest.raises(UserError, match=r"--schemes: 'rop' must be one of .* did you mean rope"):
        main.main(["--config=configs/tiny.py", "--target=h100:1", "--schemes=rop"])
    for given, message in ((["--lengths=0"], "needs --target"), (["--target=h100:1", "--lengths=0"], "above 0")):
        with pytest.raises(UserError, match=message):
            main.main(["--config=configs/tiny.py", *given])


def test_the_chosen_core_must_fit_the_devices_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_only, "check", lambda name: "cpu")
    monkeypatch.setattr(compile_only, "describe", lambda name: ((jax.devices()[0],), 1000))
    result = target.check(config_of(), "here", Quiet())
    assert not result["passed"] and [row["core"] for row in result["rows"] if row["wrong"]] == ["blocked"]
    assert {row["status"] for row in result["rows"]} == {"too large", "refused"}
