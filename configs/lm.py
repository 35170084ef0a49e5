"""A byte-level language model on the built-in corpus, sized for a laptop: the base of most sweeps."""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    """Returns the config: about 0.9M parameters, minutes on two cores."""
    config = base.get_config()
    config.name = "lm"
    config.model.width = 128
    config.model.num_layers = 4
    config.model.num_heads = 4
    config.data.length = 128
    config.data.batch_size = 32
    config.budget.amount = 2000
    config.optimizer.learning_rate = 3e-3
    config.eval.every_steps = 500
    config.eval.multiples = (1, 2, 4)
    return config
