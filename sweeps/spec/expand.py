"""Expands a sweep file to arms with resolved configs; reports everything impossible at once, before anything runs.

A sweep file has `get_sweep()`, which returns a dictionary:

    dict(
        name="head_count",
        title="...", question="...",                          # for the report
        base="configs/lm.py",                                 # a config file, from the checkout or beside this file
        fixed={"budget.amount": 2000},                        # set on every arm
        axes=[{"model.num_heads": [1, 2, 4]}, ...],           # multiplied; see sweeps/spec/axes.py
        where="model.num_heads <= model.num_layers",          # combinations that are kept; see sweeps/spec/where.py
        derived={"model.head_dim": lambda c: c.model.width // c.model.num_heads},  # in order, after the axes
        arm="h{model.num_heads}",                             # or a function of the arm's config; unset: from the axes
        match=dict(equal="parameters", to="h4", by="model.mlp_width"),  # see sweeps/spec/match.py
        seeds=[0, 1],                                         # or dict(looks=(5, 10), care=0.01): sweeps/spec/looks.py
        care=0.01,                                            # nats: the report says how many seeds would show them
        select=dict(field="optimizer.learning_rate", values=[1e-3, 3e-3], seeds=[100]),  # see sweeps/spec/select.py
        ladder=dict(by="budget.amount", values=[500, 1000, 2000]),  # gains in compute; see sweeps/spec/ladder.py
        baseline="h4",                                        # the arm that others are compared with
        target=2.2,                                           # nats: the report has steps and tokens to this loss
        solved=dict(accuracy=0.9, loss=0.2),                  # for sudden transitions; see report/statistics/solving.py
        evals=["loss", "throughput"],                         # run after training
        columns=["model.num_heads", "loss", "difference"],    # of table.tex and table.md; see configs/columns.py
        highlight=["h1", "h4"],                               # arms in colour if there are more than 24
    )

or `dict(name=..., studies={"heads": {...}, "windows": {...}})`, where each study is such a dictionary, and `base`,
`fixed`, `derived`, `arm`, `where`, `ladder`, `match`, `seeds`, `care`, `select`, `solved`, `target`, `evals`
and `columns` beside `studies` apply to all of them. Arm names are unique over all studies, because they name folders,
and an arm may continue another one's runs (`init_from = "arm:NAME"`, see sweeps/spec/chains.py). Command-line overrides
apply to every arm; they come after `fixed` and the axes and before `derived`, so that derived fields follow them.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from configs import cli, fields, validate
from configs.errors import ConfigError, UserError, nearest
from sweeps.spec import axes, chains, drafts, looks, match, names, select, where
from sweeps.spec import ladder as ladders
from sweeps.spec.drafts import Draft
from sweeps.spec.sweep import Arm, Ladder, Study, Sweep


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """Reads a sweep file and expands it.

    Args:
        path: the file, with `get_sweep()`.
        overrides: `{dotted field: value}` for every arm (the command line's `--config.x=v`).

    Raises:
        UserError: the file is missing, fails, or has no `get_sweep`.
        ConfigError: with one line for each problem and for each impossible arm.
    """
    module = cli.load_module(path)
    if not hasattr(module, "get_sweep"):
        hint = " (it is a config: use train.py --config)" if hasattr(module, "get_config") else ""
        raise UserError(f"{path}: has no get_sweep(){hint}")
    file = Path(module.__file__ or path)
    try:
        given = module.get_sweep()
    except (Exception, SystemExit) as error:
        raise cli.failed(path, error, file) from error
    return expand(given, file=file, overrides=overrides)


def expand(given: Any, *, file: Path, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """Expands a sweep dictionary (see `load`); `file` is its source."""
    overrides = dict(overrides or {})
    given_studies, problems = drafts.split(given, file)
    for draft in given_studies:
        problems += drafts.check_study(draft, overrides)
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    studies = []
    for draft in given_studies:
        climbed = ladders.of(draft.given.get("ladder"))
        for value in climbed.values if climbed else (None,):
            arms, wrong = _arms(draft, overrides, {climbed.by: value} if climbed else {})
            if climbed and value is not None and not wrong:
                arms, wrong = ladders.rung(climbed, value, arms, draft.where)
            study = _rung(_study(draft, arms), climbed, value)
            tried, untried = _selection(draft, study)
            study = replace(study, arms=select.reported(study.arms)) if study.select else study
            studies += [*tried, study]
            problems += [*(wrong or _check_names(study)), *untried]
    problems += names.collisions([arm.name for study in studies for arm in study.arms])
    problems += [] if problems else chains.problems(studies)
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    return Sweep(
        name=given.get("name") or file.stem,
        title=given.get("title") or "",
        file=_relative(file),
        text=file.read_text(encoding="utf-8") if file.is_file() else "",
        overrides=overrides,
        studies=tuple(studies),
    )


def _relative(file: Path) -> str:
    file = file.resolve()
    return file.relative_to(cli.CHECKOUT).as_posix() if file.is_relative_to(cli.CHECKOUT) else str(file)


def _arms(draft: Draft, overrides: Mapping[str, Any], rung: Mapping[str, Any]) -> tuple[list[Arm], list[str]]:
    """Builds a study's arms, and a line for each impossible one; `rung` has the fields that its ladder sets."""
    given = draft.given
    choices = axes.assignments({"product": list(given["axes"])}) if given.get("axes") else [{}]
    derived = given.get("derived", {})
    arms: list[Arm] = []
    solved: list[match.Draft] = []
    problems = []
    for varied in choices:
        config = copy.deepcopy(draft.base)
        overridden = {**given.get("fixed", {}), **varied, **overrides, **rung}
        cli.apply(config, overridden)
        try:
            if not where.keeps(given.get("where"), config):
                continue
        except ConfigError as error:
            problems += [f"{draft.where}{problem} ({names.default(varied)})" for problem in error.problems]
            continue
        values, wrong = _derive(config, derived)
        wrong = wrong or validate.problems(config)
        arm, unnamed = _named(draft, varied, overridden | values, config if wrong else validate.resolve(config))
        if wrong or unnamed:
            problems.append(f"{draft.where}arm {arm.name}: {'; '.join([*wrong, *unnamed])}")
        else:
            arms.append(arm)
            solved.append(match.draft(arm.name, config, lambda config: _derive(config, derived)[1]))
    if given.get("match") and not problems and not names.collisions([arm.name for arm in arms]):
        problems += match.solve(given["match"], solved, f"{draft.where}match")
        pairs = [_matched(draft, arm, one) for arm, one in zip(arms, solved, strict=True)]
        arms = [arm for arm, _ in pairs]
        problems += [line for _, unnamed in pairs for line in unnamed]
    if not arms and not problems:
        problems.append(f"{draft.where}where: excludes all {len(choices)} combinations")
    return arms, problems + _same_configs(arms, draft.where)


def _named(
    draft: Draft, varied: axes.Assignment, overrides: dict[str, Any], config: ConfigDict
) -> tuple[Arm, list[str]]:
    """Returns the arm, and what is wrong with its name; an invalid name is replaced by the default."""
    label = names.default(varied) or draft.name
    try:
        return Arm(draft.name, names.of(draft.given.get("arm"), config, label), overrides, dict(varied), config), []
    except ConfigError as error:
        return Arm(draft.name, label, overrides, dict(varied), config), error.problems


def _matched(draft: Draft, arm: Arm, solved: match.Draft) -> tuple[Arm, list[str]]:
    """Returns the arm with the fields solved by `match`, which its name may contain."""
    if not solved.solved:
        return arm, []
    config = solved.build(solved.solved)
    derived = {name: fields.flatten(config)[name] for name in draft.given.get("derived", {})}
    named, unnamed = _named(draft, arm.varied, arm.overrides | derived | solved.solved, config)
    problems = [f"{draft.where}arm {named.name}: {problem}" for problem in unnamed]
    return replace(named, matches=tuple(solved.matches)), problems


def _derive(config: ConfigDict, derived: Mapping[str, Callable[[ConfigDict], Any]]) -> tuple[dict[str, Any], list[str]]:
    """Sets the derived fields in place; returns them, and the errors."""
    values: dict[str, Any] = {}
    for name, function in derived.items():
        try:
            values[name] = function(config)
            fields.set_field(config, name, values[name])
        except ConfigError as error:
            return values, [f"derived {problem}" for problem in error.problems]
        except Exception as error:
            return values, [
                f"derived {name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            ]
    return values, []


def _same_configs(arms: list[Arm], where: str) -> list[str]:
    seen: dict[str, str] = {}
    problems = []
    for arm in arms:
        same = seen.setdefault(arm.config.to_json(), arm.name)
        if same != arm.name:
            problems.append(f"{where}arm {arm.name}: is the same config as arm {same}")
    return problems


def _study(draft: Draft, arms: list[Arm]) -> Study:
    given = draft.given
    return Study(
        name=draft.name,
        title=given.get("title") or "",
        question=given.get("question") or "",
        base=given["base"],
        baseline=given.get("baseline"),
        evals=tuple(given.get("evals", ("loss",))),
        seeds=tuple(drafts.seeds_of(given)),
        arms=tuple(arms),
        solved=dict(given.get("solved") or {}),
        target=given.get("target"),
        select=select.of(given.get("select")),
        plan=looks.plan_of(given),
        care=given.get("care"),
        columns=tuple(given.get("columns") or ()),
        highlight=tuple(given.get("highlight") or ()),
    )


def _rung(study: Study, climbed: Ladder | None, value: float | None) -> Study:
    """Returns the study at a rung of its ladder; the highest is the study itself."""
    if climbed is None or value is None:
        return study
    study = replace(study, ladder=climbed, rung=value)
    if value == climbed.values[-1]:
        return study
    chosen = study.select
    if chosen is not None and climbed.branches:
        chosen = replace(chosen, strip=climbed.suffix(value))
    return replace(
        study, name=f"{study.name}: {climbed.label(value)}", title="", question="", baseline=None, solved={},
        evals=tuple(name for name in study.evals if name in ladders.EVALS), select=chosen, rung_of=study.name,
        columns=(), highlight=(),
    )  # fmt: skip


def _selection(draft: Draft, study: Study) -> tuple[list[Study], list[str]]:
    """Returns the study that tries the values of `select`, which runs first, and its problems."""
    if study.select is None or study.select.strip:
        return [], []
    arms, problems = select.trials(study.select, study.arms, draft.where)
    tried = replace(
        study, name=f"{study.name}: selection", title="", question="", baseline=None, evals=(select.MEASURED,),
        seeds=study.select.seeds, arms=tuple(arms), select=None, selects_for=study.name, ladder=None, rung=None,
        rung_of="", plan=None, columns=(), highlight=(),
    )  # fmt: skip
    if select.MEASURED not in study.evals:
        problems.append(
            f"{draft.where}evals = {list(study.evals)}: must contain {select.MEASURED!r}, by which `select` chooses"
        )
    return [tried], problems


def _check_names(study: Study) -> list[str]:
    arms = [arm.name for arm in study.arms]
    shown = ", ".join(arms[:20]) + (f" and {len(arms) - 20} more" if len(arms) > 20 else "")
    named = [("baseline", study.baseline)] if study.baseline is not None else []
    return [
        f"{study.name}: {key} = {name!r} is not an arm{nearest(name, arms)}; the arms are {shown}"
        for key, name in [*named, *(("highlight", name) for name in study.highlight)]
        if name not in arms
    ]
