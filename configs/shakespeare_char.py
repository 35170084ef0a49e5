"""nanoGPT's CPU setting on tiny Shakespeare: character level, GPT-2 blocks, 2,000 steps.

Run with `--config.data.path=input.txt`. The peer's README gives a validation loss of 1.88.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    """Returns the config: 4 layers, 4 heads, width 128, length 64, batch 12, learned positions, GELU, LayerNorm."""
    config = base.get_config()
    config.name = "shakespeare_char"
    config.model.width = 128
    config.model.num_layers = 4
    config.model.num_heads = 4
    config.model.mlp = "gelu"
    config.model.norm = "layernorm"
    config.model.norm_eps = 1e-5
    config.model.position.kind = "learned"
    config.data.tokenizer = "char"
    config.data.split = "first"
    config.data.train_share = 0.9
    config.data.length = 64
    config.data.batch_size = 12
    config.budget.amount = 2000
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 100
    config.optimizer.beta2 = 0.99
    config.eval.every_steps = 500
    config.eval.multiples = (1,)
    return config
