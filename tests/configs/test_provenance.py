"""What results are of: each setting in turn, identities of runs, and files of earlier versions."""

import json
from pathlib import Path

import pytest

from configs import base, cli, evaluations, fields, provenance, schema, validate
from configs.rules.sources import SOURCES
from tests.report import synthetic

EVALUATIONS = tuple(evaluations.EVALUATIONS)
# The settings that shape no number of a held-out question, and why. All others make results incomparable.
HARMLESS = {
    "eval.every_steps": "losses while training",
    "eval.bootstrap": "resamples of the same interval",
    "data.cache_dir": "where prepared data lie",
    "data.workers": "speed",
    "data.prefetch": "speed",
    "data.curriculum": "training; its mixture is in the fingerprint",
    "data.retrieval.answer_weight": "loss weights in training",
    "data.retrieval.text_weight": "loss weights in training",
}
# Judged by what they lead to: run.json's data, in whose fingerprint documents, split, tokenizer and mixture are.
BY_FINGERPRINT = {
    *(f"data.{one.field}" for one in SOURCES.values() if one.field),
    "data.source", "data.field", "data.split", "data.train_share", "data.tokenizer", "data.tfds.data_dir",
    "data.tfds.train_split", "data.tfds.validation_split", "data.validation_path", "data.validation_in_train",
    "data.vocab_size", "data.separator", "data.retrieval.questions", "eval.retrieval.questions",
    *(name for name in fields.types() if name.startswith("data.weights.")),
}  # fmt: skip


def whole_config(**changes):
    config = base.get_config()
    cli.apply(config, {name.replace("__", "."): value for name, value in changes.items()})
    return fields.to_dict(validate.resolve(config))


def another(value):
    """Returns a value of the same kind that is another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return [3] if isinstance(value, list) else f"{value}x"


def with_field(config, name, value):
    changed = json.loads(json.dumps(config))
    *groups, last = name.split(".")
    node = changed
    for group in groups:
        node = node[group]
    node[last] = value
    return changed


def asked(config, name):
    return {"question": provenance.question(name, config, {})}


@pytest.mark.parametrize("name", [n for n in fields.types() if n.startswith(("eval.", "data."))])
def test_every_setting_makes_results_incomparable_or_is_declared_harmless(name):
    config = whole_config()
    changed = with_field(config, name, another(provenance.flat(config)[name]))
    differing = [
        one for one in EVALUATIONS if provenance.other_questions(one, asked(config, one), asked(changed, one), False)[0]
    ]
    if name in HARMLESS or name in BY_FINGERPRINT:
        assert not differing
        return
    assert differing, f"{name}: two results that differ in it would be compared"
    line = provenance.difference(asked(changed, differing[0]), asked(config, differing[0]))
    assert line.startswith("asks another question: ") and name in line


def test_a_field_that_nobody_declared_makes_every_evaluation_incomparable():
    config = whole_config()
    for name in ("eval.brand_new", "data.brand_new", "data.new_group.field"):
        one, two = dict(config), {**config}
        group, _, rest = name.partition(".")
        one = {**config, group: {**config[group], rest: 1}}
        two = {**config, group: {**config[group], rest: 2}}
        for evaluation in EVALUATIONS:
            strict, lists = provenance.other_questions(evaluation, asked(one, evaluation), asked(two, evaluation), True)
            assert strict == [f"{name} = 1 against 2"] and not lists


def test_declarations_name_evaluations_that_exist_and_stand_where_they_count():
    declared = {name: field.compare for name, field in base.SCHEMA.items() if field.compare is not None}
    for name, shaped in declared.items():
        assert name.startswith(("data.", "eval.")), f"{name}: results never ask about it"
        assert set(shaped) <= {*EVALUATIONS}, name
    assert {name for name, shaped in declared.items() if not shaped} == {*HARMLESS} | BY_FINGERPRINT


@pytest.mark.parametrize("name", ["eval.new", "data.new"])
def test_a_new_field_needs_nothing_and_makes_results_incomparable(name, monkeypatch):
    monkeypatch.setattr(base, "SCHEMA", base.SCHEMA.adding(name, schema.field(1, "a new setting")))
    config = whole_config()
    assert provenance.flat(config)[name] == 1
    for one in EVALUATIONS:
        own, other = asked(config, one), asked(with_field(config, name, 2), one)
        assert provenance.other_questions(one, own, other, True)[0] == [f"{name} = 1 against 2"]
    harmless = schema.field(1, "a new setting", compare=())
    monkeypatch.setattr(base, "SCHEMA", base.SCHEMA.adding(name, harmless))
    assert not any(provenance.shapes(name, one) for one in EVALUATIONS)


def test_lists_of_conditions_are_compared_where_both_asked_as_configured_and_not_where_one_was_asked_again():
    one, two = whole_config(eval__multiples=(1,)), whole_config(eval__multiples=(1, 2))
    for configured, expected in ((True, ([], 1)), (False, (1, []))):
        result = provenance.other_questions("retrieval", asked(one, "retrieval"), asked(two, "retrieval"), configured)
        assert tuple(len(part) or [] for part in result) == expected
    # Of the loss, lengths shape every row.
    assert provenance.other_questions("loss", asked(one, "loss"), asked(two, "loss"), True)[0]


def test_an_unset_number_of_pairs_is_the_one_it_resolved_to():
    config, again = whole_config(), whole_config(eval__retrieval__task="mqar", eval__retrieval__needles=(4,))
    one = {"question": provenance.question("retrieval", config, {"task": "mqar", "pairs": 4})}
    for pairs, same in ((4, True), (1, False)):
        two = {"question": provenance.question("retrieval", again, {"task": "mqar", "pairs": pairs})}
        two["question"]["eval.retrieval.needles"] = [pairs]
        assert (provenance.other_questions("retrieval", one, two, True) == ([], [])) is same


def test_the_hash_of_a_run_outlives_new_fields_and_moved_files_and_follows_every_other_setting():
    config = whole_config()
    same = provenance.run_hash(config)
    older = json.loads(json.dumps(config))
    del older["model"]["embedding_norm"], older["watch"]
    assert provenance.run_hash(older) == same
    for name, value in (("init_from", "/elsewhere"), ("data.path", "/b/*.txt"), ("eval.tokens", 1), ("name", "x")):
        assert provenance.run_hash(with_field(config, name, value)) == same
    for name, value in (("seed", 1), ("model.num_heads", 2), ("budget.amount", 5.0), ("data.length", 8)):
        assert provenance.run_hash(with_field(config, name, value)) != same
    assert provenance.run_hash(with_field(config, "budget.amount", 1000)) == same  # a float, however it is written


def test_each_part_of_an_identity_is_told_apart_and_what_is_not_known_is_no_difference(tmp_path: Path):
    run = synthetic.write_run(tmp_path / "run", evals={"loss": synthetic.loss_json(1.7)})
    assert provenance.problem(run, "loss") == ""
    assert provenance.problem(run, "memory") == "no memory.json"
    written = json.loads((run / "eval/loss.json").read_text())
    of, now = written["of"], provenance.directory(run)
    other = {"run": "0" * 32, "step": 292, "checkpoint": "1", "parents": [{"run": "a", "step": 1}]}
    for name, value in other.items():
        at = {**now, "checkpoint": "2", "parents": []}
        line = provenance.difference({**of, "checkpoint": "2", "parents": [], name: value}, at)
        words = {"run": "config", "step": "step 292, the run is at step 1000", "parents": "another parent"}
        assert words.get(name, name) in line
        assert provenance.difference({**of, name: None}, at) == ""
    data = {**of["data"], "fingerprint": "e" * 64}
    assert "other data (fingerprint eeeeeeeeeeee" in provenance.difference({**of, "data": data}, now)


def test_a_file_of_an_earlier_version_is_judged_by_its_step_and_its_settings(tmp_path: Path):
    run = synthetic.write_run(tmp_path / "run", configuration=whole_config())
    for change, said in (
        ({}, ""),
        ({"step": 292}, "loss.json is of step 292, the run is at step 1000"),
        ({"settings": {"tokens": 7}}, "eval.tokens = 7 there, 65536 here"),
        ({"settings": {"batch_size": 7, "bootstrap": 9}}, ""),
        ({"step": "nonsense", "settings": [1], "of": []}, ""),
    ):
        (run / "eval/loss.json").write_text(json.dumps(synthetic.loss_json(1.7) | {"settings": {}} | change))
        problem = provenance.problem(run, "loss")
        assert said in problem and bool(said) == bool(problem)
    of = provenance.of(json.loads((run / "eval/loss.json").read_text()), "loss", whole_config())
    assert provenance.unknown(of)


def parent_and_child(folder: Path):
    parent, child = folder / "runs/base/seed0", folder / "runs/tuned/seed0"
    synthetic.write_run(parent, configuration=whole_config(budget__amount=30), info=synthetic.run_json(step=30))
    config = whole_config(init_from=str(parent))
    info = synthetic.run_json(identity=provenance.identity(config, provenance.parents_of(parent, 30)))
    synthetic.write_run(child, configuration=config, info=info)
    return parent, child


def test_a_parent_that_changed_is_named_and_one_that_moved_along_is_found(tmp_path: Path):
    _, child = parent_and_child(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    parent, child = tmp_path / "b/runs/base/seed0", tmp_path / "b/runs/tuned/seed0"
    assert provenance.parent_problem(child) == provenance.parent_problem(child, siblings_only=True) == ""
    expected = {"base/seed0": whole_config(budget__amount=300)}
    expected["base/seed0"]["model"]["vocab_size"] = None
    message = "started from base/seed0, which has changed since: budget.amount was 30.0, is now 300.0"
    assert provenance.parent_problem(child, wanted=expected) == message
    (parent / "config.json").write_text(json.dumps(whole_config(budget__amount=300)))
    assert provenance.parent_problem(child, siblings_only=True) == message
    synthetic.write_run(parent, configuration=whole_config(budget__amount=30), info=synthetic.run_json(step=31))
    assert provenance.parent_problem(child).endswith("it was at step 30, is now at 31")
    data = synthetic.run_json()["data"] | {"fingerprint": "e" * 64}
    info = synthetic.run_json(step=30, data=data)
    synthetic.write_run(parent, configuration=whole_config(budget__amount=30), info=info)
    assert provenance.parent_problem(child).endswith("its data were ffffffffffff, are now eeeeeeeeeeee")


def test_a_parent_of_a_parent_counts_and_one_outside_the_sweep_is_not_looked_at_where_it_must_not_be(tmp_path: Path):
    parent, child = parent_and_child(tmp_path / "a")
    grandchild = tmp_path / "elsewhere"
    config = whole_config(init_from=str(child))
    info = synthetic.run_json(identity=provenance.identity(config, provenance.parents_of(child, 1000)))
    synthetic.write_run(grandchild, configuration=config, info=info)
    assert provenance.parent_problem(grandchild) == ""
    (parent / "config.json").write_text(json.dumps(whole_config(seed=7, budget__amount=30)))
    assert provenance.parent_problem(grandchild).startswith("started from base/seed0, which has changed since: seed")
    assert provenance.parent_problem(grandchild, siblings_only=True) == ""


def test_a_config_edited_after_training_is_noticed_and_an_edited_setting_of_evaluation_is_not(tmp_path: Path):
    config = whole_config()
    info = synthetic.run_json(identity=provenance.identity(config, []))
    run = synthetic.write_run(tmp_path / "run", configuration=config, info=info)
    assert provenance.changed(run) == ""
    (run / "config.json").write_text(json.dumps(whole_config(eval__tokens=5)))
    assert provenance.changed(run) == ""
    (run / "config.json").write_text(json.dumps(whole_config(model__position__rope__theta=5.0)))
    assert provenance.changed(run).endswith("model.position.rope.theta was 10000.0, is now 5.0")


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"identity": 3}', '{"identity": {"parents": [1, {}, null]}}'])
def test_spoilt_files_are_unknown_and_no_traceback(tmp_path: Path, text: str):
    run = synthetic.write_run(tmp_path / "run", evals={"loss": synthetic.loss_json(1.7)})
    (run / "run.json").write_text(text)
    assert isinstance(provenance.problem(run, "loss"), str) and provenance.parent_problem(run) == ""
    (run / "eval/loss.json").write_text(text)
    (run / "config.json").write_text(text)
    assert isinstance(provenance.problem(run, "loss"), str) and provenance.changed(run) == ""
