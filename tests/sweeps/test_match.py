"""Arms made equal: solved values against every value tried, against counted arrays, and what cannot be is refused."""

import jax
import pytest

from models import initial
from sweeps.spec import match
from sweeps.store import state
from tests.sweeps.test_expand import refused, sweep

SMALL = {"model.width": 64, "model.num_layers": 2, "model.num_heads": 8, "data.length": 32}
GROUPS = dict(fixed=SMALL, axes=[{"model.num_kv_heads": [1, 2, 4, 8]}], arm="kv{model.num_kv_heads}")


def groups(**changed):
    (study,) = sweep(**GROUPS, match={"equal": "parameters", "to": "kv8", "by": "model.mlp_width", **changed}).studies
    return {arm.name: arm for arm in study.arms}


def counted(arm):
    """Parameters as arrays: the shapes that initialisation would make, added up."""
    _, params = initial.abstract(arm.config.model)
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_key_value_groups_are_matched_in_parameters_and_their_caches_stand_in_exact_proportion():
    arms = groups()
    sizes = {name: counted(arm) for name, arm in arms.items()}
    assert all(abs(size / sizes["kv8"] - 1) <= 0.005 for size in sizes.values())
    # Keys and values of 2 layers, a group's head of 8 dims, float32.
    held = {name: match.count("kv_bytes", arm.config) for name, arm in arms.items()}
    assert held == {"kv1": 128, "kv2": 2 * 128, "kv4": 4 * 128, "kv8": 8 * 128}
    assert arms["kv8"].matches == () and arms["kv8"].config.model.mlp_width == 176
    for name in ("kv1", "kv2", "kv4"):
        (one,) = arms[name].matches
        assert (one.reached, one.wanted) == (sizes[name], sizes["kv8"])
        assert arms[name].overrides["model.mlp_width"] == one.value == arms[name].config.model.mlp_width


def test_no_width_comes_nearer():
    # Width 64, 2 layers, 8 heads of 8: attention 64 * 64 * 2 + 2 * 64 * 8 g, swiglu 3 * 64 F, two norms of 64.
    def size(g, width):
        return 256 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 8 * g + 3 * 64 * width + 2 * 64) + 64

    for name, arm in groups().items():
        g = int(name[2:])
        best = min(range(1, 2000), key=lambda width, g=g: abs(size(g, width) - size(8, 176)))
        assert arm.config.model.mlp_width == best
        assert counted(arm) == size(g, best)
    for name, arm in groups(multiple_of=4).items():
        g = int(name[2:])
        best = min(range(4, 2000, 4), key=lambda width, g=g: abs(size(g, width) - size(8, 176)))
        assert arm.config.model.mlp_width == best


def test_flops_are_matched_by_depth_and_caches_by_a_latent():
    thin = dict(
        fixed=SMALL | {"model.mlp": "relu", "model.num_layers": 120},
        axes=[{"model.mlp_width": [64, 128, 192]}],
        arm="f{model.mlp_width}",
        match=dict(equal="flops", to="f64", by="model.num_layers"),
    )
    (study,) = sweep(**thin).studies
    # A layer: 6 (4 * 64**2 + 2 * 64 F) of its matrices and 12 * 64 * 33 / 2 of attention; 6 * 256 * 64 of the output.
    layer = {f: 6 * (4 * 64**2 + 2 * 64 * f) + 12 * 64 * 33 / 2 for f in (64, 128, 192)}
    best = [min(range(1, 300), key=lambda n, f=f: abs(n * layer[f] - 120 * layer[64])) for f in layer]
    assert [arm.config.model.num_layers for arm in study.arms] == best and best[0] == 120 > best[1]
    # MLA's cache holds kv_rank + rope_dim numbers a layer: 32 - 4 give it that of one group of 16 keys and values.
    latent = dict(
        fixed=SMALL | {"model.head_dim": 16, "model.attention.mla.rope_dim": 4},
        axes=[{"chain": [{"model.attention.kind": "gqa", "model.num_kv_heads": 1}, {"model.attention.kind": "mla"}]}],
        arm=lambda config: config.model.attention.kind,
        match=dict(equal="kv_bytes", to="gqa", by="model.attention.mla.kv_rank"),
    )
    (study,) = sweep(**latent).studies
    gqa, mla = study.arms
    assert mla.config.model.attention.mla.kv_rank == 28
    assert match.count("kv_bytes", gqa.config) == match.count("kv_bytes", mla.config)


def test_two_matches_hold_together():
    given = GROUPS | {"axes": [{"model.head_dim": [8, 16]}], "arm": "d{model.head_dim}"}
    both = [
        dict(equal="kv_bytes", to="d8", by="model.num_kv_heads"),
        dict(equal="parameters", to="d8", by="model.mlp_width"),
    ]
    (study,) = sweep(**given, match=both).studies
    one, other = study.arms
    assert (one.config.model.num_kv_heads, other.config.model.num_kv_heads) == (8, 4)
    assert match.count("kv_bytes", one.config) == match.count("kv_bytes", other.config)
    assert abs(counted(other) / counted(one) - 1) <= 0.005
    # The other way round the second match undoes the first, which is found out.
    assert "its parameters come no closer than" in refused(**given, match=both[::-1])[0]


def test_what_cannot_be_matched_is_refused_with_the_nearest_figure():
    lines = refused(**GROUPS, match=dict(equal="parameters", to="kv8", by="model.num_layers"))
    # A layer of one group has 8,192 + 1,024 + 33,792 + 128 parameters, beside the embedding's 16,384 and 64.
    assert lines[0] == (
        "match: arm kv1: its parameters come no closer than 102,720 (model.num_layers = 2), 12.25% fewer than the "
        "117,056 of kv8; must be within 0.5%"
    )
    assert len(lines) == 3
    latent = dict(equal="kv_bytes", to="kv8", by="model.attention.mla.kv_rank")  # which these arms do not have
    assert "kv1: its KV bytes/token come no closer than 128 " in refused(**GROUPS, match=latent)[0]


@pytest.mark.parametrize("given, message", [
    (dict(equal="parameter", to="kv8", by="model.mlp_width"), "match.equal = 'parameter': must be parameters, flops"),
    (dict(equal="kv_bytes", to="kv8", by="model.mlp_width"), "match.by = 'model.mlp_width': must be model.num_layers"),
    (dict(equal="flops", to="kv8", by="model.num_kv_heads"), "is already an axis"),
    (dict(equal="flops", to="kv9", by="model.mlp_width"), "match: no arm 'kv9'"),
    (dict(equal="flops", to="kv8", by="model.mlp_width", arm=["kv1"]), "match: unknown key 'arm'"),
    (dict(equal="flops", to="kv8", by="model.mlp_width", multiple_of=0), "multiple_of = 0: must be"),
    ("parameters", "match = 'parameters': must be dict(equal=, to=, by=)"),
])  # fmt: skip
def test_a_match_that_says_nothing_is_refused(given, message):
    assert message in refused(**GROUPS, match=given)[0]


def test_only_the_arms_named_are_solved_and_the_sweep_remembers():
    arms = groups(arms=["kv1"])
    assert [name for name, arm in arms.items() if arm.matches] == ["kv1"]
    described = state.describe(sweep(**GROUPS, match=dict(equal="flops", to="kv8", by="model.mlp_width")), "", "")
    first, *_, last = described["studies"][0]["arms"]
    (one,) = first["match"]
    assert one["equal"] == "flops" and one["to"] == "kv8" and abs(one["error"]) <= 0.005
    assert first["config"]["model"]["mlp_width"] == one["value"] and last["match"] == []
