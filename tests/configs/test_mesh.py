"""What a mesh must divide, told at config time."""

import pytest

from configs import base, cli, validate


def problems(**changes):
    config = base.get_config()
    cli.apply(config, {name.replace("__", "."): value for name, value in changes.items()})
    return validate.problems(config)


@pytest.mark.parametrize("changes, expected", [
    ({"mesh__data": 3}, "data.batch_size = 16: must be a multiple of mesh.data x mesh.fsdp = 3"),
    ({"mesh__data": 4, "mesh__fsdp": 2, "data__micro_batches": 4},
     "data.batch_size = 16: must be a multiple of mesh.data x mesh.fsdp x data.micro_batches = 32"),
    ({"mesh__tensor": 3}, "mesh.tensor = 3: must divide model.num_heads = 8"),
    ({"mesh__tensor": 8, "model__mlp_width": 100}, "mesh.tensor = 8: must divide model.mlp_width = 100"),
    ({"mesh__fsdp": 16, "model__width": 264, "model__head_dim": 32}, "mesh.fsdp = 16: must divide model.width = 264"),
    ({"mesh__context": 3}, "data.length = 256: must be a multiple of mesh.context = 3"),
    ({"mesh__data": 0}, "mesh.data = 0: must be 1 or more, or -1"),
    ({"mesh__tensor": -1}, "mesh.tensor = -1: must be 1 or more"),
    ({"mesh__data": -1, "mesh__fsdp": -1}, "mesh: one axis at most may be -1"),
    ({"mesh__kv_heads": "split"}, "mesh.kv_heads = 'split': must be replicate or refuse"),
    ({"mesh__tensor": 4, "model__num_kv_heads": 2, "mesh__kv_heads": "refuse"},
     "mesh.tensor = 4: must divide model.num_kv_heads = 2, or set mesh.kv_heads = 'replicate'"),
])  # fmt: skip
def test_what_devices_do_not_divide_is_refused_in_a_line(changes, expected):
    (result,) = problems(**changes)
    assert result.startswith(expected) and "\n" not in result


def test_what_they_divide_is_allowed():
    assert problems(mesh__data=2, mesh__fsdp=2, mesh__tensor=4, model__num_kv_heads=2) == []
    assert problems(mesh__data=-1, mesh__context=4) == []


def test_a_stage_of_a_curriculum_must_be_divisible_too():
    (result,) = problems(mesh__data=8, data__curriculum=({"steps": 5, "length": 64, "batch_size": 12},))
    assert result.startswith("data.curriculum[0].batch_size = 12: must be a multiple of")
