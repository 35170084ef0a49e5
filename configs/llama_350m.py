"""A Llama of 360M parameters with GPT-2's vocabulary on one GPU: a preset for accelerators.

The blocks are Llama's (Touvron et al. 2023, 2302.13971): RMSNorm, RoPE, SwiGLU of width 8/3 D rounded up to a multiple
of 256, no biases; embeddings are tied. Size and training are those of GPT-3 Medium (Brown et al. 2020, 2005.14165,
table 2.1 and appendix B): 24 layers, width 1,024, 16 heads, 2,048 tokens, half a million tokens a step, AdamW with 3e-4
(0.9, 0.95), decay 0.1, 375 million tokens of warm-up, cosine to a tenth, clipping at 1. The budget is 20 tokens a
parameter (Hoffmann et al. 2022, 2203.15556), not GPT-3's 300 billion. The vocabulary is GPT-2's, padded to 50,304.

Give the text and GPT-2's tokenizer, `--config.data.path='text/*.jsonl' --config.data.tokenizer=gpt2/tokenizer.json`:
without them bytes of the built-in corpus are trained on, which tries the program and its speed.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    """Returns the config: 360M parameters, 7.2 billion tokens."""
    config = base.get_config()
    config.name = "llama_350m"
    model = config.model
    model.width = 1024
    model.num_layers = 24
    model.num_heads = 16
    model.vocab_size = 50304
    model.mlp_width = 2816
    config.data.length = 2048
    config.data.batch_size = 256
    config.data.micro_batches = 32
    config.budget.kind = "tokens"
    config.budget.amount = 7.2e9
    config.optimizer.learning_rate = 3e-4
    config.optimizer.warmup_steps = 715
    config.eval.every_steps = 1000
    config.eval.tokens = 2**20
    config.eval.multiples = (1, 2, 4)
    return config
