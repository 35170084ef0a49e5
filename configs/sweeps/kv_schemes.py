"""How keys and values are kept: MHA, GQA, MQA, latent (MLA), shared by layers, and K = V, for 8 heads of 32 dims.

The cache holds, a token and layer, 512 numbers with MHA (2 x 8 heads x 32 dims), 128 with GQA of 2 groups and 64 with
MQA. MLA keeps one latent and a rotary key of 16 dims that all heads share: latents of 112 and 48 numbers give it GQA's
cache and MQA's. Layers that share keys and values in pairs (CLA) have MQA's cache with 2 groups, K = V GQA's with 4 and
MQA's with 2. In YOCO's arm the first half has windows of 64 tokens and the second half reads one layer's 4 groups: 256
numbers in the windows' two layers, and 64 a layer in the others and beyond the windows.

DeepSeek-V2 (arXiv 2405.04434, tables 8 and 9) found MHA above GQA above MQA, and MLA above MHA; CLA (2405.12981, table
1) that sharing by pairs costs less than halving heads or their dims does. Parameters differ between the arms, which the
report says.
"""

from ml_collections import ConfigDict

KIND, GROUPS, RANK = "model.attention.kind", "model.num_kv_heads", "model.attention.mla.kv_rank"
SHARE, FIRST, TIED = "model.attention.kv_share", "model.attention.kv_share_from", "model.attention.tie_kv"
WINDOWS = "model.attention.window_pattern"


def get_sweep() -> dict:
    """Returns the sweep: 9 arms, 3 seeds."""
    return dict(
        name="kv_schemes",
        title="Key/value schemes of 8 heads",
        question="For the cache it takes, what validation loss does each way of keeping keys and values give?",
        base="configs/lm.py",
        fixed={
            "model.width": 256,
            "model.num_heads": 8,
            "eval.throughput.new_tokens": 128,  # the cache matters in decoding
        },
        axes=[
            {
                "chain": [
                    {KIND: "gqa", GROUPS: [8, 2, 1]},
                    {KIND: "mla", RANK: [112, 48]},
                    {GROUPS: 2, SHARE: 2},
                    {GROUPS: [4, 2], TIED: True},
                    {GROUPS: 4, SHARE: 2, FIRST: 2, WINDOWS: (64, 64, 0, 0)},
                ]
            }
        ],
        arm=_name,
        seeds=[0, 1, 2],
        baseline="mha",
        evals=["loss", "throughput", "memory"],
    )


def _name(config: ConfigDict) -> str:
    model = config.model
    if model.attention.kind == "mla":
        return f"mla{model.attention.mla.kv_rank}"
    if model.attention.tie_kv:
        return f"gqa{model.num_kv_heads}-tied"
    if model.attention.kv_share > 1:
        return "yoco" if model.attention.kv_share_from else f"gqa{model.num_kv_heads}-cla{model.attention.kv_share}"
    return {8: "mha", 1: "mqa"}.get(model.num_kv_heads, f"gqa{model.num_kv_heads}")
