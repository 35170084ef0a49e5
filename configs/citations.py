"""Which publications each choice of a config comes from, and their BibTeX: what a report's methods paragraph cites.

Every value of the fields of CITED has an entry, () where there is nothing to cite (tests/configs/test_citations.py).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BIBTEX = Path(__file__).with_name("references.bib")
ROTARY = ("rope", "p_rope", "xpos")  # kinds of positions that a RoPE scaling can act on

CITED: dict[str, dict[str, tuple[str, ...]]] = {
    "model.position.kind": {
        "none": ("kazemnejad2023nope",),
        "learned": ("radford2019gpt2",),
        "sinusoidal": ("vaswani2017attention",),
        "rope": ("su2021roformer",),
        "p_rope": ("barbero2024round",),
        "xpos": ("sun2022xpos",),
        "alibi": ("press2021alibi",),
        "t5": ("raffel2020t5",),
        "kerple_log": ("chi2022kerple",),
        "kerple_power": ("chi2022kerple",),
        "fire": ("li2023fire",),
        "cope": ("golovneva2024cope",),
    },
    "model.position.rope.scaling.kind": {
        "none": (),
        "linear": ("chen2023pi",),
        "ntk": ("peng2023yarn",),
        "ntk_by_parts": ("peng2023yarn",),
        "dynamic": ("peng2023yarn",),
        "yarn": ("peng2023yarn",),
        "llama3": ("grattafiori2024llama3",),
        "longrope": ("ding2024longrope",),
    },
    "model.position.temperature.kind": {
        "none": (),
        "log_n": ("chiang2022overcoming",),
        "llama4": (),
        "ministral3": (),
    },
    "model.attention.kind": {
        "gqa": ("ainslie2023gqa",),
        "mla": ("deepseek2024v2",),
        "differential": ("ye2024differential",),
    },
    "model.attention.gate.kind": {"none": (), "head": ("qiu2025gated",), "element": ("qiu2025gated",)},
    "model.attention.value_residual": {"none": (), "fixed": ("zhou2024value",), "learned": ("zhou2024value",)},
    "model.attention.weights.kind": {
        "softmax": (),
        "sigmoid": ("ramapuram2024sigmoid",),
        "top_k": ("gupta2021topk",),
        "selective": ("leviathan2024selective",),
    },
    "model.attention.kernel": {
        "auto": (),
        "reference": (),
        "blocked": ("dao2023flash2",),
        "xla": (),
        "cudnn": (),
        "splash": (),
        "flash": ("dao2023flash2",),
        "fused": ("dao2023flash2", "dong2024flex"),
    },
    "model.mlp": {
        "swiglu": ("shazeer2020glu",),
        "gelu": ("hendrycks2016gelu",),
        "gelu_exact": ("hendrycks2016gelu",),
        "relu2": ("so2021primer",),
        "relu": (),
    },
    "model.norm": {"rmsnorm": ("zhang2019rmsnorm",), "layernorm": ("ba2016layernorm",)},
    "optimizer.kind": {
        "adamw": ("loshchilov2017adamw",),
        "muon": ("jordan2024muon", "liu2025muon"),
        "lion": ("chen2023lion",),
        "adafactor": ("shazeer2018adafactor",),
        "schedule_free_adamw": ("defazio2024road",),
    },
}
MULTI_QUERY = "shazeer2019mqa"  # one KV head
MULTI_HEAD = "vaswani2017attention"  # as many KV heads as heads
STATISTICS = {
    "holm": "holm1979", "wilson": "wilson1927", "newcombe": "newcombe1998", "bartlett": "bartlett1937",
    "banerjee": "banerjee1960", "hesterberg": "hesterberg2015",
}  # fmt: skip
SOFTWARE = {"jax": "jax2018", "flax": "flax2020"}


def keys(config: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Returns {field: BibTeX keys} of what a config (as config.json has it) chose; unknown values cite nothing."""
    results = {}
    for field, choices in CITED.items():
        value: Any = config
        for part in field.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, str) and choices.get(value):
            results[field] = choices[value]
    model = config.get("model")
    heads = (model.get("num_heads"), model.get("num_kv_heads")) if isinstance(model, Mapping) else (None, None)
    if results.get("model.attention.kind") == CITED["model.attention.kind"]["gqa"] and heads[1] in (1, heads[0]):
        results["model.attention.kind"] = (MULTI_QUERY if heads[1] == 1 and heads[0] != 1 else MULTI_HEAD,)
    return results


def entries() -> dict[str, str]:
    """Returns {key: BibTeX entry} of all that can be cited."""
    text = BIBTEX.read_text(encoding="utf-8")
    found = re.finditer(r"^@\w+\{([^,\s]+),.*?^\}$", text, re.M | re.S)
    return {one.group(1): one.group(0) for one in found}
