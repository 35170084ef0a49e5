"""What would change the result and is not supported is refused, in one line that names it; the rest is read right."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from safetensors.numpy import load_file, save_file

from configs.errors import UserError
from convert import from_hf
from convert.families import FAMILIES
from convert.families.family import resolved
from convert.hf import files
from convert.hf.keys import Keys

ORIGINAL = "original_max_position_embeddings"
VECTORS = Path(__file__).parent / "vectors"
FOLDERS = {json.loads((path / "config.json").read_text())["model_type"]: path for path in VECTORS.iterdir()}


def values_of(family: str) -> dict[str, Any]:
    return json.loads((FOLDERS[family] / "config.json").read_text())


def read(family: str, **changes: Any) -> Any:
    """Returns our config.model of a family's vector config with keys changed (`...` takes one away), and the notes."""
    values = values_of(family) | changes
    keys = Keys({key: value for key, value in values.items() if value is not ...})
    ours = FAMILIES[family].read_config(keys)
    return resolved({**ours, "data.tokenizer": "char"}).model, keys.notes


def rope(**values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **values}}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", rope(rope_type="mrope"), "rope_type 'mrope' is not supported"),
    ("llama", rope(rope_type="yarm"), "did you mean yarn"),
    ("llama", {"rope_parameters": ..., "rope_scaling": {"type": "ntk", "factor": 2.0}}, "rope_type 'ntk'"),
    ("llama", rope(rope_type="linear"), "needs factor"),
    ("llama", rope(rope_type="linear", factor=0.5), "rope.scaling.factor"),
    ("llama", rope(rope_type="linear", factor="2"), "must be a number"),
    ("llama", rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0), "needs high_freq_factor"),
    ("llama", rope(rope_type="longrope", short_factor=[1.0] * 8), "needs long_factor"),
    ("llama", rope(rope_type="longrope", short_factor=[1.0] * 8, long_factor=[1.0] * 7), "long_factor"),
    ("llama", rope(rope_type="yarn", factor=2.0, novelty=1), "novelty"),
    ("llama", rope(partial_rotary_factor=0.5), "partial rotary"),
    ("llama", rope() | {"partial_rotary_factor": 0.5}, "partial rotary"),
    ("llama", rope() | {"rope_theta": 500000.0}, "rope_theta"),
    ("llama", rope(rope_type="default") | {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
    ("phi3", rope(rope_type="linear", factor=2.0), "rope_type 'linear'"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act"),
    ("llama", {"sliding_window": 8}, "sliding_window"),
    ("llama", {"layer_types": ["sliding_attention"] * 2}, "layer_types"),
    ("llama", {"attention_multiplier": 0.1}, "attention_multiplier"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("llama", {"rope_interleaved": True}, "rope_interleaved"),
    ("llama", {"hidden_size": ...}, "hidden_size: is missing"),
    ("llama", {"hidden_size": 49}, "hidden_size"),
    ("llama", {"num_key_value_heads": 4}, "num_kv_heads"),
    ("llama", {"vocab_size": True}, "vocab_size"),
    ("mistral", {"attention_bias": True}, "attention_bias"),
    ("mistral", {"sliding_window": -1}, "sliding_window"),
    ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ("qwen2", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
    ("smollm3", {"no_rope_layers": [1, 0, 2, 0]}, "no_rope_layers"),
    ("gpt_neox", {"hidden_act": "quick_gelu"}, "hidden_act"),
    ("gpt_neox", {"num_key_value_heads": 2}, "num_key_value_heads"),
    ("gpt_neox", {"rotary_pct": 0.25}, "rotary_pct"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    ("gpt2", {"n_head": 5}, "multiple of the 5"),
    ("gpt2", {"hidden_size": 64}, "hidden_size"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "changes", "message"), REFUSED)
def test_refused_by_name(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        read(family, **changes)
    assert len(str(refused.value).splitlines()) == 1


def test_every_family_refuses_a_key_nobody_knows_unless_it_is_null_or_ignored() -> None:
    assert FOLDERS.keys() == FAMILIES.keys()
    for family in FAMILIES:
        read(family, novelty=None)
        for value in (False, 0, 1.5, "x", [1], {"a": 1}):
            with pytest.raises(UserError, match="novelty"):
                read(family, novelty=value)
        keys = Keys(values_of(family) | {"novelty": 1})
        FAMILIES[family].read_config(keys, ignore=["novelty"])


V4 = {"rope_parameters": ..., "dtype": ..., "torch_dtype": "float32"}
YARN = dict(factor=8.0, beta_fast=16.0, beta_slow=2.0, truncate=False, mscale=0.7, mscale_all_dim=1.3)


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("llama", {**V4, "rope_theta": 7.5, "rope_scaling": None}, dict(theta=7.5, kind="none")),
        ("llama", {**V4}, dict(theta=10000.0, kind="none")),
        ("smollm3", {**V4}, dict(theta=2000000.0, kind="none")),
        ("llama", {**V4, "rope_scaling": {"type": "linear", "factor": 2}}, dict(kind="linear", factor=2.0)),
        # dynamic counts from max_position_embeddings, whatever the table says
        (
            "llama",
            {**V4, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}},
            dict(kind="dynamic", factor=4.0, original_length=256),
        ),
        ("llama", rope(rope_type="yarn", **YARN), dict(kind="yarn", original_length=256, **YARN)),
        (
            "llama",
            rope(rope_type="yarn", factor=2.0, attention_factor=1.5, beta_fast=None, **{ORIGINAL: 128}),
            dict(factor=2.0, attention_factor=1.5, beta_fast=32.0, beta_slow=1.0, truncate=True, original_length=128),
        ),
        (
            "llama",
            {"rope_parameters": {kind: {"rope_type": "linear", "factor": 3.0, "rope_theta": 5.0}
                                 for kind in ("full_attention", "sliding_attention")}},
            dict(kind="linear", factor=3.0, theta=5.0),
        ),
        # longrope: the original length on top or inside, the factor their quotient
        ("phi3", {}, dict(kind="longrope", factor=2.0, original_length=32, long_factor=(1.0, 1.5, 2.5, 4.0))),
        ("phi3", {"original_max_position_embeddings": ...}, dict(factor=2.0, original_length=32)),
        ("phi3", {"original_max_position_embeddings": 16}, dict(factor=4.0, original_length=16)),
        ("phi3", {"max_position_embeddings": 16}, dict(factor=1.0, original_length=32)),
        (
            "phi3",
            {**V4, "rope_scaling": {"type": "su", "short_factor": [1] * 4, "long_factor": [2] * 4}},
            dict(kind="longrope", factor=2.0, original_length=32, short_factor=(1.0,) * 4),
        ),
        ("phi3", {**V4, "partial_rotary_factor": 0.5, "rope_scaling": None}, dict(kind="none", fraction=0.5)),
        ("gpt_neox", {**V4, "rotary_pct": 1.0, "rotary_emb_base": 77}, dict(theta=77.0, fraction=1.0)),
        ("gpt_neox", {**V4}, dict(theta=10000.0, fraction=0.25)),
        # transformers 5.24 gives these four
        ("gpt_neox", {**V4, "rope_theta": 800}, dict(theta=10000.0, fraction=0.25)),
        ("gpt_neox", {**V4, "rope_theta": 800, "rotary_emb_base": 500}, dict(theta=500.0, fraction=0.25)),
        ("gpt_neox", {**V4, "partial_rotary_factor": 0.5}, dict(theta=10000.0, fraction=0.25)),
        (
            "gpt_neox",
            {**V4, "rope_theta": 800, "rope_scaling": {"type": "linear", "factor": 2.0}},
            dict(theta=10000.0, fraction=0.25, kind="linear", factor=2.0),
        ),
        ("llama", rope(rope_type="proportional", partial_rotary_factor=0.5), dict(fraction=0.5, kind="none")),
    ],
)  # fmt: skip
def test_both_schemas_of_rope(family: str, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    settings = read(family, **changes)[0].position.rope
    for name, value in expected.items():
        result = settings[name] if name in ("theta", "fraction") else settings.scaling[name]
        assert result == value, name


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        (
            {"rope_theta": 800},
            "rope_theta = 800 has no effect at top level in this family, which reads rotary_emb_base; 1000",
        ),
        (
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor = 0.5 has no effect at top level .* reads rotary_pct; 0.25",
        ),
        ({"rope_theta": 10000}, None),
        ({"rope_theta": 800, "rotary_emb_base": 800}, None),
    ],
)
def test_gpt_neox_has_names_of_its_own_for_rope(changes: dict[str, Any], warned: str | None) -> None:
    notes = read("gpt_neox", **V4, **changes)[1]
    assert len(notes) == (warned is not None)
    assert warned is None or re.search(warned, notes[0])


@pytest.mark.fault(4)
def test_an_explicit_factor_counts_and_a_mismatch_warns() -> None:
    """Fault 4: with an original length given, YaRN's factor is still the one that is written."""
    yarn = dict(rope_type="yarn", factor=4.0)
    model, notes = read("llama", **rope(**yarn, original_max_position_embeddings=32))
    assert model.position.rope.scaling.factor == 4.0
    assert len(notes) == 1 and "explicit factor 4.0" in notes[0] and "is 8" in notes[0]
    assert read("llama", **rope(**yarn, original_max_position_embeddings=64))[1] == []
    explicit = rope(**yarn, attention_factor=1.25, original_max_position_embeddings=64)
    assert read("llama", **explicit)[0].position.rope.scaling.attention_factor == 1.25
    assert "no effect" in read("llama", **rope(rope_type="linear", factor=2.0, beta_fast=3.0))[1][0]


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    [
        ("mistral", {"sliding_window": None}, [None, None]),
        ("mistral", {"sliding_window": ...}, [4096, 4096]),
        ("phi3", {"sliding_window": 5}, [5, 5]),
        ("qwen2", {"sliding_window": 5, "max_window_layers": 1, "layer_types": ...}, [None, None]),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "layer_types": ...},
            [None, 5],
        ),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
            [5, None],
        ),
        (
            "smollm3",
            {"use_sliding_window": True, "sliding_window": 5, "layer_types": ...},
            [None, 5, None, 5],
        ),
    ],
)  # fmt: skip
def test_windows_by_layer(family: str, changes: dict[str, Any], windows: list[int | None]) -> None:
    from models import pattern

    assert [plan.window for plan in pattern.plans(read(family, **changes)[0])] == windows


def test_layers_without_rope() -> None:
    from models import pattern

    def kinds(**changes: Any) -> list[str]:
        return [plan.position for plan in pattern.plans(read("smollm3", **changes)[0])]

    assert kinds() == ["rope", "none", "rope", "none"]  # 1 is RoPE, though the key is called no_rope_layers
    assert kinds(no_rope_layers=..., no_rope_layer_interval=3) == ["rope", "rope", "none", "rope"]
    assert kinds(no_rope_layers=..., no_rope_layer_interval=...) == ["rope", "rope", "rope", "none"]
    assert kinds(no_rope_layers=[0, 0, 0, 0]) == ["none"] * 4
    assert kinds(no_rope_layers=[0, 1, 1, 1]) == ["none", "rope", "rope", "rope"]


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("llama", {"num_key_value_heads": None}, dict(num_kv_heads=6)),
        ("llama", {"num_key_value_heads": ...}, dict(num_kv_heads=6)),
        ("mistral", {"num_key_value_heads": ..., "num_attention_heads": 16}, dict(num_kv_heads=8)),
        ("llama", {"head_dim": None}, dict(head_dim=8)),
        ("qwen3", {"head_dim": ...}, dict(head_dim=128)),
        ("llama", {"tie_word_embeddings": ...}, dict(tie_embeddings=False)),
        ("gpt2", {"tie_word_embeddings": ...}, dict(tie_embeddings=True)),
        ("gpt2", {"n_inner": 50}, dict(mlp_width=50)),
        ("gpt2", {"activation_function": "gelu"}, dict(mlp="gelu_exact")),
        ("gpt_neox", {"hidden_act": "gelu_fast"}, dict(mlp="gelu")),
        ("gpt_neox", {"use_parallel_residual": False}, dict(residual="serial")),
        ("bloom", {"hidden_size": ..., "n_embed": 24}, dict(width=24, mlp_width=96)),
    ],
)
def test_sizes_and_switches(family: str, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    model = read(family, **changes)[0]
    assert {name: model[name] for name in expected} == expected


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Copies a vector's checkpoint, with tensors changed (None takes one away)."""

    def make(family: str = "llama", config: dict[str, Any] | None = None, **tensors: np.ndarray | None) -> Path:
        made = tmp_path / "checkpoint"
        made.mkdir()
        (made / "config.json").write_text(json.dumps(values_of(family) | (config or {})))
        whole = load_file(FOLDERS[family] / "model.safetensors") | tensors
        save_file({name: value for name, value in whole.items() if value is not None}, made / "model.safetensors")
        return made

    return make


def params_of(source: Path) -> dict[str, np.ndarray]:
    """Reads a checkpoint's parameters without writing a run."""
    values = files.read_config(source)
    family = from_hf.family_of(values, source)
    config = resolved({**family.read_config(Keys(values)), "data.tokenizer": "char"})
    return from_hf._parameters(family, config, files.Weights(source), str(source))


def test_tensors_that_are_missing_strange_or_misshapen_are_named(folder: Callable[..., Path]) -> None:
    changed: dict[str, np.ndarray | None] = {"model.norm.weight": None, "model.layers.0.novel.weight": np.ones(2)}
    changed["model.layers.1.self_attn.k_proj.weight"] = np.ones((48, 32), np.float32)
    changed["model.layers.1.self_attn.q_proj.bias"] = np.ones(96, np.float32)
    with pytest.raises(UserError) as refused:
        params_of(folder(**changed))
    message = str(refused.value)
    for name in ("missing: model.norm.weight", "novel.weight", "q_proj.bias", "k_proj.weight has shape (48, 32), must"):
        assert name in message


def test_a_tied_head_may_be_written_out_but_must_be_the_embedding(folder: Callable[..., Path], tmp_path: Path) -> None:
    table = load_file(FOLDERS["llama"] / "model.safetensors")["model.embed_tokens.weight"]
    made = folder(**{"lm_head.weight": table, "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)})
    assert params_of(made).keys() == params_of(FOLDERS["llama"]).keys()
    shutil.rmtree(made)
    with pytest.raises(UserError, match=r"lm_head\.weight"):
        params_of(folder(**{"lm_head.weight": table + 1}))


@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_half_precision_is_read_exactly(folder: Callable[..., Path], dtype: Any) -> None:
    whole = load_file(FOLDERS["llama"] / "model.safetensors")
    result = params_of(folder(**{name: value.astype(dtype) for name, value in whole.items()}))
    expected = whole["model.layers.1.mlp.up_proj.weight"].astype(dtype).astype(np.float32).T
    assert result["blocks.mlp.up.kernel"].dtype == np.float32
    np.testing.assert_array_equal(result["blocks.mlp.up.kernel"][1], expected)


def test_tables_that_older_versions_saved_are_passed_over(folder: Callable[..., Path]) -> None:
    mask = np.tril(np.ones((1, 1, 64, 64), bool))
    made = folder("gpt_neox", **{"gpt_neox.layers.0.attention.bias": mask, "gpt_neox.layers.1.attention.bias": mask})
    assert params_of(made).keys() == params_of(FOLDERS["gpt_neox"]).keys()


def test_a_bare_model_without_prefix_is_read(folder: Callable[..., Path]) -> None:
    whole = load_file(FOLDERS["gpt2"] / "model.safetensors")
    short = {name.removeprefix("transformer."): value for name, value in whole.items()}
    result, expected = params_of(folder("gpt2", **dict.fromkeys(whole), **short)), params_of(FOLDERS["gpt2"])
    assert all(np.array_equal(result[name], expected[name]) for name in expected)


def test_other_types_are_refused(folder: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match=r"model\.norm\.weight is I8"):
        params_of(folder(**{"model.norm.weight": np.ones(48, np.int8)}))


def shard(made: Path, names: dict[str, str]) -> dict[str, np.ndarray]:
    """Splits model.safetensors in two by layer, with the index `names` may change."""
    whole = load_file(made / "model.safetensors")
    (made / "model.safetensors").unlink()
    first = {name: value for name, value in whole.items() if ".0." in name}
    save_file(first, made / "model-00001-of-00002.safetensors")
    save_file({n: v for n, v in whole.items() if n not in first}, made / "model-00002-of-00002.safetensors")
    index = {name: f"model-0000{1 if name in first else 2}-of-00002.safetensors" for name in whole} | names
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return whole


def test_shards_are_read_by_their_index(folder: Callable[..., Path]) -> None:
    made = folder()
    shard(made, {})
    result, expected = params_of(made), params_of(FOLDERS["llama"])
    assert all(np.array_equal(result[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"model.norm.weight": "../elsewhere.safetensors"}, "not the name of a safetensors file"),
        ({"model.norm.weight": "pytorch_model.bin"}, "not the name of a safetensors file"),
        ({"model.norm.weight": "model-3.safetensors"}, "the shard model-3.safetensors is missing"),
        ({"model.norm.weight": "model-00001-of-00002.safetensors"}, "no tensor model.norm.weight"),
    ],
)
def test_a_wrong_index_is_refused(folder: Callable[..., Path], names: dict[str, str], message: str) -> None:
    made = folder()
    shard(made, names)
    with pytest.raises(UserError, match=message):
        params_of(made)


def test_a_pickle_is_never_opened(folder: Callable[..., Path], tmp_path: Path) -> None:
    made = folder()
    (made / "model.safetensors").rename(made / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin .* pickle"):
        from_hf.convert(made, tmp_path / "run")
    (made / "pytorch_model.bin").rename(made / "other.txt")
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        from_hf.convert(made, tmp_path / "run")
    (made / "other.txt").rename(made / "model.safetensors")
    (made / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(UserError, match="is not a safetensors file"):
        from_hf.convert(made, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_models_are_refused(folder: Callable[..., Path], tmp_path: Path) -> None:
    for name, message in (("gemma", "'gemma': not supported"), ("lama", "did you mean llama"), (None, "None")):
        made = folder(config={"model_type": name})
        with pytest.raises(UserError, match=message):
            from_hf.convert(made, tmp_path / "run")
        shutil.rmtree(made)
    with pytest.raises(UserError, match="no such directory"):
        from_hf.convert(tmp_path / "nowhere", tmp_path / "run")


def test_only_the_runs_own_fields_are_set_from_the_command_line(tmp_path: Path) -> None:
    arguments = [f"--from={FOLDERS['gpt2']}", f"--workdir={tmp_path / 'run'}"]
    with pytest.raises(UserError, match=r"config\.model\.width: is set by the checkpoint"):
        from_hf.main([*arguments, "--config.model.width=64"])
    assert not (tmp_path / "run").exists()
    from_hf.main([*arguments, "--config.data.length=16", "--config.model.attention.qkv=split"])
    values = json.loads((tmp_path / "run" / "config.json").read_text())
    assert values["data"]["length"] == 16 and values["model"]["attention"]["qkv"] == "split"
    assert values["model"]["position"]["max_length"] == 64
