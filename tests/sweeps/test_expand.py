"""From a sweep file to arms: sizes, order, names, and everything impossible refused at once."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import validate
from configs.errors import ConfigError, UserError
from sweeps.spec import axes, drafts, expand, names

FIELDS = ["model.width", "model.num_layers", "data.length", "data.batch_size", "optimizer.warmup_steps"]


def sweep(**given):
    return expand.expand({"name": "s", "base": "configs/tiny.py", **given}, file=Path("s.py"))


def refused(**given):
    with pytest.raises(ConfigError) as error:
        sweep(**given)
    return error.value.problems


def leaf(field, size):
    return {field: [8 * (i + 1) for i in range(size)]}


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_product_has_every_combination_once(sizes):
    axis = {"product": [leaf(f, n) for f, n in zip(FIELDS, sizes, strict=False)]}
    result = axes.assignments(axis)
    assert axes.check(axis, "axes") == []
    assert len(result) == axes.count(axis) == math.prod(sizes)
    assert len({tuple(a.values()) for a in result}) == len(result)
    assert all(list(a) == FIELDS[: len(sizes)] for a in result)
    # Several fields in one leaf are multiplied alike.
    assert axes.assignments({k: v for part in axis["product"] for k, v in part.items()}) == result


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(2, 4))
def test_a_zip_goes_in_step(length, children):
    axis = {"zip": [leaf(f, length) for f in FIELDS[:children]]}
    assert axes.check(axis, "axes") == []
    assert axes.assignments(axis) == [dict.fromkeys(FIELDS[:children], 8 * (i + 1)) for i in range(length)]
    assert axes.count(axis) == length


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_a_chain_goes_one_after_the_other(sizes):
    axis = {"chain": [leaf(f, n) for f, n in zip(FIELDS, sizes, strict=False)]}
    result = axes.assignments(axis)
    assert axes.check(axis, "axes") == []
    assert axes.count(axis) == len(result) == sum(sizes)
    assert [next(iter(a)) for a in result] == [f for f, n in zip(FIELDS, sizes, strict=False) for _ in range(n)]


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=3), st.booleans())
def test_arms_have_unique_names_and_the_values_they_are_named_by(sizes, template):
    given = dict(axes=[leaf(f, n) for f, n in zip(FIELDS[1:], sizes, strict=False)])
    if template:
        given["arm"] = "_".join(f"{{{f}}}" for f in FIELDS[1 : 1 + len(sizes)])
    (study,) = sweep(**given).studies
    assert len({arm.name.lower() for arm in study.arms}) == len(study.arms) == math.prod(sizes)
    for arm in study.arms:
        assert names.SAFE.fullmatch(arm.name)
        if template:
            assert arm.name == "_".join(str(value) for value in arm.varied.values())
        for field, value in arm.varied.items():
            group, name = field.split(".")
            assert arm.config[group][name] == value


def test_combinators_nest_and_scalars_are_one_value():
    axis = {"chain": [
        {"model.num_layers": 1},
        {"zip": [{"model.width": [8, 16]}, {"chain": [{"model.num_heads": 1}, {"model.num_heads": 2}]}]},
        {"model.attention.window_pattern": [(4, 0), ()]},
    ]}  # fmt: skip
    assert axes.check(axis, "axes") == []
    assert axes.assignments(axis) == [
        {"model.num_layers": 1},
        {"model.width": 8, "model.num_heads": 1},
        {"model.width": 16, "model.num_heads": 2},
        {"model.attention.window_pattern": (4, 0)},
        {"model.attention.window_pattern": ()},
    ]


def test_derived_fields_follow_in_order_and_configs_are_resolved():
    (study,) = sweep(
        fixed={"model.width": 96},
        axes=[{"model.num_heads": [2, 4]}],
        derived={
            "model.head_dim": lambda c: c.model.width // c.model.num_heads,
            "model.num_kv_heads": lambda c: 1 if c.model.head_dim == 24 else 2,
        },
        arm=lambda c: f"h{c.model.num_heads}d{c.model.head_dim}g{c.model.num_kv_heads}",
    ).studies
    assert [arm.name for arm in study.arms] == ["h2d48g2", "h4d24g1"]
    assert study.arms[1].overrides == {
        "model.width": 96, "model.num_heads": 4, "model.head_dim": 24, "model.num_kv_heads": 1
    }  # fmt: skip
    assert study.arms[0].config == validate.resolve(study.arms[0].config)


def test_overrides_hold_for_every_arm_and_derived_fields_follow_them():
    given = dict(
        base="configs/tiny.py",
        fixed={"budget.amount": 5},
        axes=[{"model.num_heads": [1, 2]}],
        derived={"model.head_dim": lambda c: c.model.width // c.model.num_heads},
    )
    result = expand.expand(given, file=Path("s.py"), overrides={"model.width": 32, "budget.amount": 7})
    assert [(a.config.model.head_dim, a.config.budget.amount) for a in result.studies[0].arms] == [(32, 7), (16, 7)]
    with pytest.raises(ConfigError) as error:
        expand.expand(given, file=Path("s.py"), overrides={"model.num_heads": 4, "model.head_dim": 2, "seed": 1})
    assert len(error.value.problems) == 3
    assert all(p.startswith("--config.") for p in error.value.problems)


def test_runs_are_ordered_by_arm_and_carry_seed_and_name():
    runs = sweep(axes=[{"model.num_heads": [1, 2]}], arm="h{model.num_heads}", seeds=range(2)).runs()
    assert [run.key for run in runs] == ["h1/seed0", "h1/seed1", "h2/seed0", "h2/seed1"]
    assert [(run.config.name, run.config.seed) for run in runs] == [("h1", 0), ("h1", 1), ("h2", 0), ("h2", 1)]


def test_seeds_go_as_far_as_the_config_s():
    most = 2**63 - 1
    runs = sweep(arm="a", seeds=[most, most - 1, 2**31]).runs()
    assert [(run.key, run.config.seed) for run in runs][:2] == [(f"a/seed{s}", s) for s in (most, most - 1)]


def test_all_impossible_arms_are_told_at_once_with_a_line_each():
    lines = refused(
        axes=[{"model.num_heads": [3, 4, 6], "model.num_kv_heads": [2, 3]}],
        derived={"model.head_dim": lambda c: 48 // c.model.num_heads},
        arm="h{model.num_heads}g{model.num_kv_heads}",
    )
    assert [line.split(":")[0] for line in lines] == ["arm h3g2", "arm h4g3"]
    assert "must divide model.num_heads = 3" in lines[0]


def test_an_odd_rotary_width_is_refused():
    (line,) = refused(axes=[{"model.head_dim": [15, 16]}], arm="d{model.head_dim}")
    assert line.startswith("arm d15: ") and "15" in line and "even" in line


@pytest.mark.parametrize("given, message", [
    (dict(axes=[{"model.num_haeds": [1]}]), "axes[0]: unknown field model.num_haeds; did you mean model.num_heads?"),
    (dict(axes=[{"model": [1]}]), "group of fields"),
    (dict(axes=[{"model.num_heads": ["x"]}]), "model.num_heads = 'x': must be a whole number"),
    (dict(axes=[{"model.num_heads": []}]), "model.num_heads has no values"),
    (dict(axes=[{"model.num_heads": [2, 2]}]), "lists 2 twice"),
    (dict(axes=[{"zip": [{"model.num_heads": [1, 2]}, {"model.width": [8, 16, 32]}]}]),
     "equally long, but model.num_heads has 2, model.width has 3"),
    (dict(axes=[{"zip": [{"model.num_heads": 1}], "model.width": 8}]), "must be the only key"),
    (dict(axes=[{"porduct": [{"model.width": 8}]}]), "did you mean product?"),
    (dict(axes=[{"zip": []}]), "must be a list of axes"),
    (dict(axes=[{"seed": [1, 2]}]), "list seeds in `seeds`"),
    (dict(axes=[{"model.width": [32]}, {"model.width": [64]}]), "two of its axes set model.width"),
    (dict(axes={"model.width": [32]}), "must be a list of axes"),
    (dict(axes=[{"optimizer.warmup_steps": range(101), "data.length": range(8, 108)}]), "10100 arms"),
    (dict(axis=[]), "unknown key 'axis'; did you mean axes?"),
    (dict(fixed={"model.widht": 8}), "fixed: unknown field model.widht; did you mean model.width?"),
    (dict(derived={"model.head_dim": 8}), "must be a function"),
    (dict(derived={"model.head_dim": lambda c: c.model.width / 4}), "model.head_dim = 16.0: must be a whole number"),
    (dict(derived={"model.head_dim": lambda c: c.model.widht}), "derived model.head_dim: AttributeError"),
    (dict(derived={"model.head_dim": lambda c: 1 // 0}), "derived model.head_dim: ZeroDivisionError"),
    (dict(arm="h{model.num_haeds}"), "did you mean model.num_heads?"),
    (dict(arm="h{model.num_heads"), "arm ="),
    (dict(arm=lambda c: 1 // 0), "its name failed: ZeroDivisionError"),
    (dict(arm=lambda c: 3), "must be text"),
    (dict(seeds=3), "must be a list of whole numbers"),
    (dict(seeds=[0, 0]), "lists a seed twice"),
    (dict(seeds=[-1]), "-1 is not a whole number"),
    (dict(seeds=[2**63]), f"{2**63} is not a whole number in 0 .. {2**63 - 1}"),
    (dict(seeds=[]), "must be a list"),
    (dict(evals=["los"]), "unknown evaluation 'los'; did you mean loss?"),
    (dict(evals="loss"), "must be a list"),
    (dict(baseline=0, axes=[{"model.num_heads": [4]}], arm="h{model.num_heads}"), "baseline = 0: must be text"),
    (dict(baseline=[], axes=[{"model.num_heads": [4]}], arm="h{model.num_heads}"), "baseline = []: must be text"),
    (dict(baseline="h8", axes=[{"model.num_heads": [4]}], arm="h{model.num_heads}"), "baseline = 'h8' is not an arm"),
    (dict(base="configs/tniy.py"), "no file configs/tniy.py"),
    (dict(base=None), "must name a config file"),
    (dict(studies={}), "must be a dictionary of studies"),
])  # fmt: skip
def test_mistakes_in_a_sweep_are_told(given, message):
    assert any(message in line for line in refused(**given)), refused(**given)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "-a", "a b", "a\\b", "é", "x" * 101, "a.", "con", "nul.x"]
)
def test_names_unsafe_as_folders_are_refused(name):
    (line,) = refused(arm=lambda c: name)
    assert "not safe as a folder" in line


def test_two_arms_of_one_name_or_one_config_are_refused():
    (line,) = refused(axes=[{"model.num_heads": [1, 2]}], arm="same")
    assert line == "arm same: 2 arms have this name; `arm` must distinguish them"
    (line,) = refused(axes=[{"model.num_heads": [1, 2]}], arm=lambda c: "aA"[c.model.num_heads - 1])
    assert "only in case" in line
    # One is what the other resolves to.
    (line,) = refused(axes=[{"model.num_kv_heads": [4, None]}], arm=lambda c: "ab"[c.model.num_kv_heads is None])
    assert "2 arms have this name" in line
    (line,) = refused(axes=[{"model.num_kv_heads": [4, None]}])
    assert line == "arm num_kv_heads=None: is the same config as arm num_kv_heads=4"


def test_studies_share_what_stands_beside_them_and_names_are_unique_over_all():
    given = dict(
        fixed={"budget.amount": 9, "model.width": 32},
        seeds=[3],
        evals=[],
        studies={
            "heads": dict(axes=[{"model.num_heads": [1, 2]}], arm="h{model.num_heads}", baseline="h1"),
            "width": dict(fixed={"model.width": 16}, arm="w{model.width}", seeds=[0, 1], evals=["loss"]),
        },
    )
    result = sweep(**given)
    heads, width = result.studies
    assert (heads.name, heads.seeds, heads.evals, heads.baseline) == ("heads", (3,), (), "h1")
    assert (width.seeds, width.evals) == ((0, 1), ("loss",))
    assert width.arms[0].config.model.width == 16 and width.arms[0].config.budget.amount == 9
    given["studies"]["width"]["arm"] = "h1"
    assert any("arm h1: 2 arms have this name" in line for line in refused(**given))
    given["studies"]["width"] = dict(axes=[{"model.head_dim": [3]}], arms="x")
    assert refused(**given) == ["studies.width: unknown key 'arms'; did you mean arm?"]


def test_files_are_refused_with_where_they_fail(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("def get_config():\n    pass\n")
    with pytest.raises(UserError, match=r"has no get_sweep.*it is a config"):
        expand.load(file)
    file.write_text("def get_sweep():\n    return 1 // 0\n")
    with pytest.raises(UserError, match="ZeroDivisionError"):
        expand.load(file)
    file.write_text("def get_sweep():\n    return []\n")
    with pytest.raises(ConfigError, match="must be a dictionary"):
        expand.load(file)


def test_a_base_beside_the_sweep_file_is_found(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from configs import base\ndef get_config():\n    c = base.get_config()\n    c.model.width = 48\n    return c\n"
    )
    (tmp_path / "sweep.py").write_text("def get_sweep():\n    return dict(base='mine.py')\n")
    result = expand.load(tmp_path / "sweep.py")
    assert result.name == "sweep"
    assert result.studies[0].arms[0].config.model.width == 48
    assert "get_sweep" in result.text


@pytest.mark.parametrize("file", sorted((Path(__file__).resolve().parents[2] / "configs/sweeps").rglob("[a-z]*.py")))
def test_the_sweeps_that_come_with_the_project_expand(file):
    result = expand.load(file)
    assert result.runs()
    for study in result.studies:
        if study.selects_for:  # holds the runs that try a hyperparameter, which are compared by nobody
            assert study.selects_for in [other.name for other in result.studies]
            continue
        if study.rung_of:  # a lower rung of a ladder, whose baseline is that of the study at its top
            assert study.rung_of in [other.name for other in result.studies]
            continue
        if len(study.arms) > 1:  # one arm alone is compared under its scalings only
            assert study.baseline in [arm.name for arm in study.arms]
        assert study.title and study.question


def test_evaluations_that_a_sweep_may_name_are_those_there_are():
    from eval.run import EVALUATIONS

    assert set(drafts.EVALS) == set(EVALUATIONS)


@pytest.mark.parametrize("sources, message", [
    (["arm:nobody", ""], r"arm x0: init_from = 'arm:nobody': no arm with that name"),
    (["arm:x1", "arm:x0"], r"arm x0: init_from = 'arm:x1': continues itself"),
    (["arm:x0", ""], r"continues itself"),
])  # fmt: skip
def test_what_an_arm_continues_must_be_there(tmp_path, sources, message):
    rates = [1e-3, 2e-3]
    given = dict(
        base="configs/tiny.py",
        axes=[{"zip": [{"init_from": sources}, {"optimizer.learning_rate": rates}]}],
        arm=lambda c: f"x{rates.index(c.optimizer.learning_rate)}",
    )
    with pytest.raises(ConfigError, match=message):
        expand.expand(given, file=tmp_path / "test.py")


def test_an_arm_continues_seeds_that_are_there(tmp_path):
    first = dict(base="configs/tiny.py", arm="first", seeds=[0])
    second = dict(base="configs/tiny.py", arm="second", seeds=[0, 1], fixed={"init_from": "arm:first"})
    with pytest.raises(ConfigError, match=r"second: arm second: init_from = 'arm:first': that arm has no seed 1"):
        expand.expand(dict(name="t", studies={"one": first, "second": second}), file=tmp_path / "t.py")


def test_what_solves_a_task_is_checked_and_remembered():
    (study,) = sweep(solved={"accuracy": 0.9, "loss": 0.2}).studies
    assert study.solved == {"accuracy": 0.9, "loss": 0.2}
    assert refused(solved={"accuracy": 1.2}) == ["solved.accuracy = 1.2: must be above 0 and at most 1"]
    assert refused(solved={"acuracy": 0.9})[0] == "solved: unknown key 'acuracy'; did you mean accuracy?"
    assert "must be dict(accuracy=0.9)" in refused(solved=0.9)[0]
