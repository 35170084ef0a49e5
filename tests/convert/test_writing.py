import json
from pathlib import Path

import jax
import numpy as np
import pytest

from configs.errors import UserError
from convert.writing import write_run
from models import initialise
from tests.convert.conftest import config_of
from training.run_directory import run as runs
from training.run_directory.checkpoint import flat


def test_what_is_written_is_what_is_restored(saved) -> None:
    workdir = saved()
    run = runs.load(workdir)
    expected = initialise(config_of().model, 0)[1]
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, run.params, expected)))
    assert run.step == 0
    assert run.tokenizer.describe()["kind"] == "byte"
    assert run.config.init_from == str(workdir)
    info = json.loads((workdir / "run.json").read_text())
    assert info["status"] == "done"
    assert info["origin"] == {"kind": "test"}
    assert info["parameters"]["total"] == sum(x.size for x in jax.tree.leaves(expected))
    assert [path.name for path in workdir.parent.iterdir()] == [workdir.name]


def test_nothing_is_overwritten_and_nothing_half_is_left(saved, tmp_path: Path) -> None:
    workdir = saved()
    before = (workdir / "config.json").read_text()
    with pytest.raises(UserError, match="already exists"):
        saved(model__num_heads=2)
    assert (workdir / "config.json").read_text() == before
    (tmp_path / "empty").mkdir()
    assert saved("empty") == tmp_path / "empty"
    config = config_of()
    with pytest.raises(UserError, match="no tokenizer"):
        bad = tmp_path / "bad"
        bad.mkdir()
        (bad / "ablax_tokenizer.json").write_text("{")
        write_run(tmp_path / "new", config, initialise(config.model, 0)[1], tokenizer_from=bad, origin={})
    assert not (tmp_path / "new").exists()


def test_parameters_are_checked_by_name_and_shape(tmp_path: Path, byte_tokenizer: Path) -> None:
    config = config_of()
    params = dict(flat(initialise(config.model, 0)[1]))
    # A flat table of another dtype does as well as the tree.
    write_run(tmp_path / "flat", config, {k: np.asarray(x, np.float16) for k, x in params.items()}, origin={})
    assert runs.load(tmp_path / "flat").params["embedding"].get_value().dtype == np.float32
    kernel = params.pop("blocks.attention.key.kernel")
    with pytest.raises(UserError, match=r"blocks\.attention\.key\.kernel: is nothing, the config's model has"):
        write_run(tmp_path / "new", config, params, origin={})
    with pytest.raises(UserError, match=r"key\.kernel: is \(2, 16, 8\), the config's model has \(2, 16, 16\)"):
        write_run(tmp_path / "new", config, params | {"blocks.attention.key.kernel": kernel[..., :8]}, origin={})
    with pytest.raises(UserError, match=r"the tokenizer has 256 tokens, the model model\.vocab_size = 96"):
        other = config_of(model__vocab_size=96, data__weights__text=0.0, data__weights__mqar=1.0, data__mqar__pairs=2)
        write_run(tmp_path / "new", other, params, tokenizer_from=byte_tokenizer, origin={})
    assert not (tmp_path / "new").exists()
