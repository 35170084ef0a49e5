"""The measured cases: shapes, and target ratios."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One piece of work, the same for every peer: a training step, or greedy decoding of `new` tokens after a prompt.

    A step is loss, gradient, clipping to norm 1 and AdamW (1e-3, 0.9, 0.95, decay 0.1) of a Llama: RMSNorm, RoPE,
    SwiGLU, grouped heads, embeddings tied to the output.
    """

    name: str
    kind: str  # train or decode
    width: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vocab: int
    batch: int
    length: int  # tokens per row; of the prompt
    new: int = 0
    dtype: str = "float32"
    family: str = "llama"  # or gpt2: learned positions, LayerNorm, GELU, biases; kv_heads is not used
    peers: tuple[str, ...] = ("transformers", "jax")  # the peers to compare with
    targets: dict[str, float] = field(default_factory=dict)  # peer -> target of our speed over its

    @property
    def tokens(self) -> int:
        """Tokens trained per step, or generated per call."""
        return self.batch * (self.new or self.length)


SMALL: dict[str, Any] = dict(width=256, layers=4, heads=8, kv_heads=8, mlp=704, vocab=256)
NANOGPT: dict[str, Any] = dict(width=128, layers=4, heads=4, kv_heads=4, mlp=384, vocab=65)

CASES = (
    Case("train 256", "train", **SMALL, batch=16, length=256, targets={"transformers": 1.0}),
    Case("train nanoGPT", "train", **NANOGPT, batch=12, length=64, targets={"transformers": 1.15}),
    Case("train 1024", "train", **SMALL, batch=4, length=1024, targets={"transformers": 1.0, "jax": 2.0}),
    *(
        Case(
            f"decode {batch}",
            "decode",
            **{**SMALL, "kv_heads": 2},
            batch=batch,
            length=256,
            new=64,
            peers=("transformers",),
            targets={"transformers": target},
        )
        for batch, target in ((1, 4.0), (8, 3.0))
    ),
)
