"""What is allowed of attention: combinations of its switches."""

from ml_collections import ConfigDict


def problems(config: ConfigDict) -> list[str]:
    """Returns every problem of a config's attention, a line each; the fields by themselves must be sound."""
    attention, found = config.model.attention, []
    if attention.scale is not None and attention.scale_rule != "auto":
        found.append(
            f"model.attention.scale = {attention.scale}: model.attention.scale_rule = {attention.scale_rule!r} sets "
            "the scale already; leave one of them out"
        )
    return found
