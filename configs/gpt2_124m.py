"""GPT-2 (124M parameters) on one GPU, trained as nanoGPT's reproduction: a preset for accelerators.

The model is GPT-2's smallest (Radford et al. 2019; `gpt2` on Hugging Face): 12 layers, width 768, 12 heads, learned
positions for 1,024 tokens, LayerNorm and the tanh form of GELU, biases everywhere, the output tied to the embedding.
Its vocabulary of 50,257 is padded to 50,304, a multiple of 64, as in nanoGPT. Training is nanoGPT's
`config/train_gpt2.py` (github.com/karpathy/nanoGPT): 480 rows of 1,024 tokens a step, there in 40 micro-batches of 12;
AdamW with 6e-4 (0.9, 0.95), decay 0.1, 2,000 steps of warm-up, cosine to a tenth, clipping at 1, 600,000 steps. That
recipe leaves biases out of the blocks (`bias=False`); GPT-2's own are kept here.

Give the text and GPT-2's tokenizer, `--config.data.path='text/*.jsonl' --config.data.tokenizer=gpt2/tokenizer.json`:
without them bytes of the built-in corpus are trained on, which tries the program and its speed.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    """Returns the config: 124M parameters, 295 billion tokens; see `configs/sweeps/gpu` for shorter budgets."""
    config = base.get_config()
    config.name = "gpt2_124m"
    model = config.model
    model.width = 768
    model.num_layers = 12
    model.num_heads = 12
    model.vocab_size = 50304
    model.mlp = "gelu"
    model.mlp_bias = True
    model.norm = "layernorm"
    model.norm_bias = True
    model.norm_eps = 1e-5
    model.attention.qkv_bias = True
    model.attention.out_bias = True
    model.position.kind = "learned"
    model.init = "normal"
    model.init_std = 0.02
    config.data.length = 1024
    config.data.batch_size = 480
    config.data.micro_batches = 40
    config.budget.amount = 600_000
    config.optimizer.learning_rate = 6e-4
    config.optimizer.warmup_steps = 2000
    config.eval.every_steps = 1000
    config.eval.tokens = 2**20
    config.eval.multiples = (1,)  # the table of learned positions ends there
    return config
