"""A peer: MaxText's Llama on the CPU, in a separate environment (Python 3.12); only training steps.

python -m bench.speed.maxtext THREADS
"""

import contextlib
import os
import sys
import tempfile
from typing import Any

from bench.speed.cases import Case
from bench.speed.serving import Work, cores, serve

if __name__ == "__main__":
    cores(int(sys.argv[1]))
    os.environ |= {"JAX_PLATFORMS": "cpu", "DECOUPLE_GCLOUD": "TRUE"}  # the second: without Google's cloud packages

with contextlib.redirect_stdout(sys.stderr):  # it prints missing optional packages there
    import jax
    import maxtext
    from flax import nnx
    from flax.core.spmd import logical_axis_rules
    from maxtext.trainers.pre_train import train
    from maxtext.utils import sharding, train_utils

FOLDER = tempfile.TemporaryDirectory()  # for its output; removed at the end
# For one machine without an accelerator; layers unrolled and no rematerialization, as in our runs there.
SETTINGS: dict[str, Any] = dict(
    run_name="bench",
    hardware="cpu",
    skip_jax_distributed_system=True,
    enable_checkpointing=False,
    dataset_type="synthetic",
    attention="dot_product",
    decoder_block="llama2",
    logits_via_embedding=True,
    normalize_embedding_logits=False,
    scan_layers=False,
    enable_dropout=False,
    steps=10**6,
    learning_rate=1e-3,
    enable_goodput_recording=False,
    weight_dtype="float32",
)


def settings_of(case: Case, folder: str) -> list[str]:
    """Returns MaxText's command line for a case."""
    shape = dict(
        base_output_directory=folder,
        base_emb_dim=case.width,
        base_num_decoder_layers=case.layers,
        base_num_query_heads=case.heads,
        base_num_kv_heads=case.kv_heads,
        head_dim=case.width // case.heads,
        base_mlp_dim=case.mlp,
        vocab_size=case.vocab,
        max_target_length=case.length,
        per_device_batch_size=case.batch,
        dtype=case.dtype,
        remat_policy="none",
    )
    file = os.path.join(os.path.dirname(maxtext.__file__), "configs", "base.yml")
    return ["maxtext", file, *(f"{name}={value}" for name, value in {**SETTINGS, **shape}.items())]


def prepare(case: Case) -> Work:
    """Returns a training step: as in MaxText's own loop, with a wait for the result."""
    config, recorder = train.initialize(settings_of(case, FOLDER.name))
    _, _, places, _, mesh, _, _, loader, _, _, state = train_utils.setup_train_loop(config, recorder)
    graph, state = nnx.split(state)
    of_params, places = sharding.maybe_update_params_sharding_with_opt(config, places)
    step, _ = train_utils.jit_train_and_eval_step(
        config, graph, mesh, state, places, train.train_step, train.eval_step, None, of_params
    )
    rows = loader.load_next_batch()
    held = [state]

    def work() -> None:
        with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
            held[0], metrics = step(held[0], rows)
        float(metrics["scalar"]["learning/loss"])

    return work


if __name__ == "__main__":
    serve(prepare, {"maxtext": getattr(maxtext, "__version__", ""), "maxtext's jax": jax.__version__})
