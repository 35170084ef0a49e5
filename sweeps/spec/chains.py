"""Runs that continue others of the sweep: `init_from = "arm:NAME"` starts each seed from that arm's run of that seed.

So continued training (another scaling, another length, fewer KV heads by surgery) is an ordinary arm: it starts when
the run it continues is done. No JAX.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from configs.errors import nearest
from sweeps.spec.sweep import Run, Study

PREFIX = "arm:"


def continued(config: ConfigDict) -> str | None:
    """Returns the arm whose runs this config's runs continue, or None."""
    return config.init_from.removeprefix(PREFIX) if config.init_from.startswith(PREFIX) else None


def key(config: ConfigDict) -> str | None:
    """Returns the run, `<arm>/seed<k>`, that a run's config continues, or None."""
    arm = continued(config)
    return None if arm is None else f"{arm}/seed{config.seed}"


def parent(run: Run) -> str | None:
    """Returns the run, `<arm>/seed<k>`, that a run continues, or None."""
    arm = continued(run.base)
    return None if arm is None else f"{arm}/seed{run.seed}"


def same(on_disk: Any, config: ConfigDict) -> bool:
    """Returns whether the path in a run's config.json is the run that `config` continues, also in a moved sweep."""
    expected = key(config)
    return expected is not None and Path(str(on_disk)).parts[-3:] == ("runs", *Path(expected).parts)


def problems(studies: Iterable[Study]) -> list[str]:
    """Returns a line for each arm with an invalid continuation: no such arm, other seeds, or a cycle."""
    known = {arm.name: (arm, study) for study in studies for arm in study.arms}
    results = []
    for name, (arm, study) in known.items():
        before = continued(arm.config)
        if before is None:
            continue
        where = f"{study.name}: arm {name}: init_from = '{PREFIX}{before}'"
        if before not in known:
            results.append(f"{where}: no arm with that name{nearest(before, known)}")
            continue
        lacking = sorted(set(study.seeds) - set(known[before][1].seeds))
        if lacking:
            results.append(f"{where}: that arm has no seed {', '.join(map(str, lacking))}")
        elif study.plan and known[before][1].name != study.name:
            results.append(f"{where}: seeds added by looks need the continued arm in the same study")
        if name in _ancestors(name, known):
            results.append(f"{where}: continues itself")
    return results


def _ancestors(name: str, known: dict[str, Any]) -> list[str]:
    """Returns the arms that an arm continues, the next first; ends where they repeat."""
    results: list[str] = []
    while name in known:
        before = continued(known[name][0].config)
        if before is None or before in results:
            break
        results.append(before)
        name = before
    return results
