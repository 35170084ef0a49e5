"""Memory: the formulas against what is compiled, and the search for what fits."""

import pytest

from configs.errors import ConfigError
from configs.validate import check
from eval.cost import fitting, memory, programs
from eval.progress import Quiet

BASE = dict(
    model__width=128,
    model__num_layers=3,
    model__num_heads=4,
    model__init_std=None,
    data__length=256,
    data__batch_size=16,
)
CASES = {
    "base": {},
    "wide_mlp": {"model__mlp_width": 1024},
    "gelu": {"model__mlp": "gelu"},
    "mqa": {"model__num_kv_heads": 1},
    "thin_heads": {"model__num_heads": 16, "model__head_dim": 16},
    "long": {"data__length": 1024, "data__batch_size": 4},
    "large_vocabulary": {"model__vocab_size": 4096},
    "deep": {"model__num_layers": 6},
    "layernorm": {"model__norm": "layernorm"},
    "alibi": {"model__position__kind": "alibi"},
    "wide": {"model__width": 256, "model__num_heads": 8},
    "parallel": {"model__residual": "parallel"},
}


def _row(rows: list[dict], part: str) -> dict:
    return next(row for row in rows if row["part"] == part)


def _compared(run) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """(by formula, XLA's account, the arguments) of the training step."""
    program = programs.lower_train_step(run.config).compile()
    return memory.formula(run), programs.analysis(program), memory.arguments(program.as_text())


def test_parameters_optimizer_and_cache_agree_exactly_and_differences_are_explained(make):
    run = make(model__num_layers=2, model__num_kv_heads=1, model__tie_embeddings=False)
    result = memory.evaluate(run, Quiet())
    rows = result["side_by_side"]
    for part in ("parameters", "optimizer", "kv_cache"):
        row = _row(rows, part)
        assert row["formula"] == row["compiled"] > 0 and row["difference"] == 0, part
    assert [row["part"] for row in rows] == list(memory.WHY) and all(row["why"] for row in rows)
    assert all(row["measured"] is None for row in rows) and result["measured"] is None  # a CPU does not count
    step = result["compiled"]["train_step"]
    assert _row(rows, "train_step")["compiled"] == step["peak"]
    assert _row(rows, "activations")["compiled"] == step["temp"] - result["formula"]["gradients"]
    assert result["formula"]["logits"] == 4 * 4 * 16 * 256 < result["formula"]["activations"]
    assert "fits" not in result


def test_what_is_quantised_is_counted_with_its_scales(make):
    run = make(model__attention__kv_storage="int8")
    decoding = programs.lower_decode(run.config).compile()
    assert memory.arguments(decoding.as_text())["kv_cache"] == memory.formula(run)["kv_cache"]


def test_activations_grow_with_rows_and_widths_and_remat_cuts_them(make):
    once = memory.activation_bytes(make().config)
    for rows, micro_batches, share in ((8, 1, 2), (8, 2, 1)):
        run = make(data__batch_size=rows, data__micro_batches=micro_batches)
        assert memory.activation_bytes(run.config) == share * once
    wider = memory.activation_bytes(make(model__mlp_width=96).config)
    assert wider - once == 4 * 16 * 48 * 5 * 4  # rows x length x hidden units more x arrays of SwiGLU x bytes
    assert memory.activation_bytes(make(model__remat="block").config) < once


def test_activations_of_a_model_of_a_size_to_train(make):
    formula, compiled, arguments = _compared(make(**BASE))
    assert arguments["parameters"] == formula["parameters"] and arguments["optimizer"] == formula["optimizer"]
    assert compiled["temp"] - formula["gradients"] == pytest.approx(formula["activations"], rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_activations_by_formula_are_within_15_percent_of_what_is_compiled(make, name: str):
    formula, compiled, arguments = _compared(make(**BASE | CASES[name]))
    assert arguments["parameters"] == formula["parameters"] and arguments["optimizer"] == formula["optimizer"]
    assert compiled["temp"] - formula["gradients"] == pytest.approx(formula["activations"], rel=0.15)


@pytest.mark.parametrize(("limit", "start"), [(100, 16), (1000, 1), (1_000_000, 4), (10**8, 1 << 20)])
def test_the_search_finds_the_largest_that_fits(limit: int, start: int):
    requested = []

    def peak(size: int) -> int:
        requested.append(size)
        return 90 + 9 * size + (3 * size if size > 40 else 0)

    result = fitting.search(peak, start, limit)
    assert result["peak"] == peak(result["largest"]) <= limit < peak(result["too_large"]) == result["too_large_peak"]
    assert result["too_large"] - result["largest"] <= max(1, result["largest"] // fitting.FINE)
    assert len(requested) < 30 and len(set(requested[:-3])) == len(requested[:-3])  # each is compiled once


def test_the_search_says_where_nothing_or_everything_fits():
    none = fitting.search(lambda size: None, 16, 1000)
    assert none == {"largest": 0, "peak": None, "too_large": 1, "too_large_peak": None}
    every = fitting.search(lambda size: 8, 16, 1000, unit=2, most=101)
    assert every == {"largest": 100, "peak": 8, "too_large": None, "too_large_peak": None}
    assert fitting.search(lambda size: 10 * size, 3, 100, unit=4)["largest"] == 8


def test_what_fits_is_found_by_compiling(make, monkeypatch):
    run = make(eval__memory__limit_gib=0.002, eval__throughput__new_tokens=2)
    limit = 0.002 * fitting.GIB
    monkeypatch.setattr(fitting, "PROGRAMS", {"decode": fitting.PROGRAMS["decode"]})
    result = fitting.largest_fits(run.config, limit, Quiet())["decode"]
    for what, field in (("batch", "decode_batch_size"), ("length", "length")):
        one = result[what]
        run.config.eval.throughput.decode_batch_size, run.config.eval.throughput.length = 1, 16
        run.config.eval.throughput[field] = one["largest"]
        fits = programs.analysis(programs.lower_decode(run.config).compile())["peak"]
        assert fits == one["peak"] <= limit < one["too_large_peak"]
        assert one["largest"] > 16


def test_a_program_that_the_compiler_refuses_does_not_fit(make, monkeypatch):
    import jax

    def refused(config):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm")

    monkeypatch.setitem(programs.LOWERED, "decode", refused)
    assert fitting.compiled_peak(make().config, "decode") is None

    def broken(config):
        raise jax.errors.JaxRuntimeError("INTERNAL: a bug")

    monkeypatch.setitem(programs.LOWERED, "decode", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="a bug"):
        fitting.compiled_peak(make().config, "decode")


def test_a_device_that_counts_is_asked(make, monkeypatch):
    counts = iter([{"bytes_in_use": 5, "peak_bytes_in_use": 7}, {"bytes_in_use": 6, "peak_bytes_in_use": 9}])

    class Device:
        def memory_stats(self):
            return next(counts)

    monkeypatch.setattr(memory.jax, "devices", lambda: [Device()])
    monkeypatch.setattr(memory.ready, "train", lambda run: _Nothing())
    assert memory.measured(make()) == {"bytes_in_use": 6, "peak_bytes_in_use": 9, "train_step": 9}


class _Nothing:
    lowered = property(lambda self: self)

    def compile(self):
        return None

    def start(self):
        return 0

    def call(self, compiled, state):
        return state


def test_a_limit_below_nothing_is_refused(make):
    config = make().config
    config.eval.memory.limit_gib = -1.0
    with pytest.raises(ConfigError, match=r"eval\.memory\.limit_gib"):
        check(config)
