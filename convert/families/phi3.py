"""Phi-3: related to Llama, with q, k, v in one matrix, gate and up in another, and LongRoPE."""

from convert.families.llama import NO_WINDOW, PLAIN, biases, family, sizes
from convert.hf.keys import Always, HeadDim, Only
from convert.hf.layers import OneWindow
from convert.hf.rope import Rope

PHI3 = family(
    "phi3",
    "Phi3ForCausalLM",
    *sizes(None, HeadDim(usual=True), eps=1e-5, length=4096),
    *biases(False, False),
    PLAIN,
    Always({"model.attention.qkv": "fused"}),
    # transformers accepts no other; `su` and `yarn` are the first releases' names for longrope.
    Rope(
        types={"default": "none", "longrope": "longrope", "su": "longrope", "yarn": "longrope"},
        original=4096,
        bare=True,
        partial=True,
    ),
    OneWindow(None),
    *NO_WINDOW[1:],
    *(
        Only(key, usual, False)
        for key, usual in (("lm_head_bias", False), ("full_attn_mod", 1), ("interpolate_factor", 1))
    ),
    fused=True,
)
