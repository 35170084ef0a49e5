"""Rules of runs that continue from the state of another one, at a checkpoint before its decay."""

from ml_collections import ConfigDict


def problems(config: ConfigDict) -> list[str]:
    """Returns what is wrong with a run that branches off another one, or that others branch off."""
    smaller, budget = config.checkpoint.branches, config.budget
    results = []
    if config.init_state == "branch" and not config.init_from:
        results.append("init_state = 'branch': needs the run that is continued, in init_from")
    for name, requested in (("init_state", config.init_state == "branch"), ("checkpoint.branches", bool(smaller))):
        if requested and budget.kind == "seconds":
            results.append(f"{name}: budget.kind = 'seconds' does not say how many steps there are; take another")
    results += [
        f"checkpoint.branches = {tuple(smaller)!r}: {one:g} must be below budget.amount = {budget.amount:g}"
        for one in smaller
        if not one < budget.amount
    ]
    if smaller and config.optimizer.schedule != "wsd":
        results.append(
            f"checkpoint.branches: optimizer.schedule = {config.optimizer.schedule!r}: must be wsd, whose rates do not "
            "depend on the budget before the decay"
        )
    return results
