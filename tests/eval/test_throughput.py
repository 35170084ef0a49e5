"""What a throughput is set beside: peaks measured here, FLOPs and bytes that can be counted by hand; and grids."""

import dataclasses

import pytest

from configs import base, cli
from configs.errors import ConfigError
from configs.validate import check
from eval.cost import peaks, throughput
from eval.progress import Quiet
from training.devices import chips

BEST = {"dtype": "bfloat16", "flops": 1e12, "bandwidth": 1e9, "published": dataclasses.asdict(chips.CHIPS["TPU v4"])}


def test_peaks_are_measured_here(monkeypatch):
    monkeypatch.setattr(peaks, "LONG", 0.0)
    result = peaks.peaks("float32", side=64, copied=1 << 20)
    assert result["flops"] > 1e6 and result["bandwidth"] > 1e6 and result["product_side"] == 64
    assert result["published"] is None  # nobody publishes this CPU's


def test_mfu_is_flops_by_formula_over_what_was_measured(make):
    config = make(model__mlp_width=32).config
    # 2 (16 x 16) and 2 (16 x 16) of attention, 3 (16 x 32), the output matrix 256 x 16; 12 heads x dim x length.
    flops = 6 * (4 * 256 + 3 * 512 + 4096) + 12 * 16 * 17 / 2
    results = {"length": 16, "tokens_per_second": 1e6}
    assert throughput.utilisation(config, "train", results, BEST) == pytest.approx(
        {"mfu": flops * 1e6 / 1e12, "mfu_published": flops * 1e6 / 275e12}
    )
    forward = throughput.utilisation(config, "forward", results, {**BEST, "dtype": "float32"})
    assert forward["mfu"] == pytest.approx(flops * 1e6 / 3e12) and forward["mfu_published"] is None
    assert throughput.utilisation(config, "prefill", results, BEST) == {}


def test_decoding_reads_its_parameters_and_its_cache(make):
    config = make(model__mlp_width=32, model__num_kv_heads=1).config
    parameters = 4 * (2 * 256 + 2 * 128 + 3 * 512 + 256 * 16 + 3 * 16)
    cache = 2 * 1 * 8 * 4 * 20 * 3
    assert throughput.step_bytes(config, 3, 20) == parameters + cache
    results = {"batch_size": 3, "length": 16, "new_tokens": 4, "seconds": 0.5}
    rate = (parameters + cache) * 4 / 0.5
    assert throughput.utilisation(config, "decode", results, BEST)["bandwidth"] == pytest.approx(rate)
    assert throughput.utilisation(config, "decode", results, BEST)["bandwidth_share"] == pytest.approx(rate / 1e9)
    apart = make(model__mlp_width=32, model__num_kv_heads=1, model__tie_embeddings=False).config
    assert throughput.step_bytes(apart, 3, 20) == parameters + cache  # rows of the other table alone are read


def test_half_the_numbers_are_half_the_bytes(make):
    whole, half = (make(model__dtype=dtype).config for dtype in ("float32", "bfloat16"))
    matrices = 4 * (4 * 256 + 3 * 16 * 48)
    saved = throughput.step_bytes(whole, 1, 8) - throughput.step_bytes(half, 1, 8)
    assert saved == matrices / 2 + 2 * 16 * 2 * 8  # norms and the table stay float32; the cache does not


def test_a_grid_has_every_place_and_says_what_does_not_fit(make, monkeypatch):
    run = make(eval__throughput__batch_sizes=(1, 2), eval__throughput__lengths=(8, 12), eval__throughput__repeats=1)
    assert len(throughput.places(run.config)) == 4 * 2 * 2 and throughput.places(make().config) == []
    assert throughput.places(make(eval__throughput__lengths=(8,)).config)[0] == ("train", 4, 8)
    one = throughput.cell(run, BEST, "decode", 2, 12)
    assert (one["program"], one["batch_size"], one["length"], one["new_tokens"]) == ("decode", 2, 12, 3)
    assert one["tokens_per_second"] > 0 and one["bandwidth"] > 0
    monkeypatch.setattr(throughput, "free", lambda: 1000.0)
    monkeypatch.setattr(throughput, "measure", lambda *_, **__: pytest.fail("ran what does not fit"))
    none = throughput.cell(run, BEST, "decode", 2, 12)
    assert "takes" in none["reason"] and "1,000 are free" in none["reason"]


def test_a_learned_table_bounds_the_grid(make):
    run = make(model__position__kind="learned", eval__throughput__lengths=(8, 32))
    assert "learned table has 16 positions" in throughput.cell(run, BEST, "train", 2, 32)["reason"]


def test_a_grid_of_nothing_is_refused():
    config = base.get_config()
    cli.apply(config, {"eval.throughput.lengths": (0,)})
    with pytest.raises(ConfigError, match=r"eval\.throughput\.lengths.*whole numbers above 0"):
        check(config)


def test_the_device_is_described(make, monkeypatch):
    monkeypatch.setenv("NPROC", "2")
    monkeypatch.setattr(throughput.peaks, "peaks", lambda dtype: BEST)
    monkeypatch.setattr(throughput, "timed", lambda run, name, best=None: {"kernel": name})
    result = throughput.evaluate(make(), Quiet())
    assert result["device"]["NPROC"] == "2" and 1 <= result["device"]["affinity"] <= result["device"]["cores"]
    assert len(result["device"]["load"]) == 3 and result["peak"] == BEST and result["grid"] == []


def test_the_longest_name_of_a_chip_counts():
    assert chips.peak("TPU v5 lite") == 197e12 and chips.peak("TPU v5p") == 459e12
    assert chips.peak("NVIDIA H100 80GB HBM3") == 989e12 and chips.peak("NVIDIA H100 PCIe") == 756e12
    assert chips.peak("cpu") is None and all(chip.source for chip in chips.CHIPS.values())
