"""Rules of what is evaluated, and of what is watched while training."""

from ml_collections import ConfigDict


def lengths(config: ConfigDict) -> list[str]:
    """Returns a line where no length at all would be evaluated."""
    if config.eval.multiples or config.eval.lengths:
        return []
    return ["eval.multiples = (): must hold one length at least, or eval.lengths must"]


def watch_problems(config: ConfigDict) -> list[str]:
    """Returns what is watched at validation intervals though there are none."""
    requested = [name for name in ("attention_logit", "dead_heads") if config.watch[name]]
    return [
        f"watch.{name} = {config.watch[name]:g}: is looked at each eval.every_steps, which is 0 (only at the end)"
        for name in requested
        if not config.eval.every_steps
    ]
