"""The smallest model that learns something: seconds on one core, for trying things out and for tests."""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    """Returns the config: about 0.1M parameters, 200 steps."""
    config = base.get_config()
    config.name = "tiny"
    config.model.width = 64
    config.model.num_layers = 2
    config.model.num_heads = 4
    config.data.length = 64
    config.data.batch_size = 16
    config.budget.amount = 200
    config.optimizer.learning_rate = 3e-3
    config.optimizer.warmup_steps = 20
    config.checkpoint.every_steps = 100
    config.eval.every_steps = 100
    config.eval.tokens = 16384
    config.eval.multiples = (1, 2)
    config.eval.retrieval.examples = 8
    return config
