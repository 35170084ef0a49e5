"""Two head counts, three steps of a tiny model."""


def get_sweep() -> dict:
    """Returns the sweep."""
    return dict(
        title="Heads",
        question="Do two heads lower the loss?",
        base="configs/lm.py",
        fixed={
            "model.width": 8,
            "model.num_layers": 1,
            "data.path": "tests/earlier/words.txt",
            "data.split": "first",
            "data.tokenizer": "char",
            "data.length": 16,
            "data.batch_size": 4,
            "optimizer.learning_rate": 0.01,
            "optimizer.warmup_steps": 4,
            "log.every_steps": 3,
            "log.tensorboard": False,
            "eval.every_steps": 6,
            "eval.tokens": 512,
            "eval.batch_size": 8,
            "eval.multiples": (1,),
            "budget.amount": 6,
            "checkpoint.every_steps": 0,
        },
        axes=[{"model.num_heads": [1, 2]}],
        derived={"model.head_dim": lambda config: config.model.width // config.model.num_heads},
        arm="heads{model.num_heads}",
        seeds=[0, 1],
        baseline="heads1",
        evals=["loss"],
    )
