"""Faults in published code, and the tests against them: `python -m tests.faults` writes docs/faults.md.

A test declares its faults by `@pytest.mark.fault(numbers)`; `pytest -m fault` runs them all.
"""

import ast
from pathlib import Path

PAGE = Path("docs/faults.md")

# number -> (what went wrong, where)
FAULTS: dict[int, tuple[str, str]] = {
    1: ("Angles in bfloat16: 257 becomes 256, 4095 becomes 4096; neighbouring positions get equal rotations",
        "transformers #29285"),
    2: ("Dynamic NTK with a KV cache: keys rotated for one length are used at another", "transformers #25104"),
    3: ("LongRoPE crossing its original length while decoding", "transformers #33129"),
    4: ("YaRN's explicit factor is ignored if an original length is set", "transformers #38224"),
    5: ("The run's maximum length changes frequencies although factor and original length are set", "Megatron #1418"),
    6: ("Conversion permutes keys with the number of query heads", "flash-attention #546"),
    7: ("Left padding shifts positions, in the forward pass or in decoding", "unsloth #3699"),
    8: ("A fully masked row returns the mean of all values, or has NaN gradients", "jax.nn"),
    9: ("Query heads read KV heads in turn instead of in groups", "axlearn #842"),
    10: ("Fused QKV is split into three equal parts although there are fewer KV heads", "several"),
    11: ("head_dim is assumed to be width / heads: in the scale, the output matrix, FLOP and memory counters",
         "transformers #32495, levanter, prime-rl #1246"),
    12: ("Masks are added as finite numbers: finfo.min + bias unmasks keys; softmax below float32",
         "transformers #17437"),
    13: ("T5's bias and ALiBi count positions from 0 in every decoding step", "candle #899"),
    14: ("Writing past the end of the cache silently overwrites older slots", "nanochat #520, Flax"),
    15: ("The causal mask is aligned top-left if there are fewer queries than keys", "jax.nn"),
    16: ("A window of W keeps W + 1 keys", "jax.nn"),
    17: ("Packed documents attend to one another, or a label crosses their boundary", "several"),
    18: ("Micro-batches with unequal token counts are averaged without weights; padding changes the loss",
         "transformers #34191, optax.MultiSteps"),
    19: ("Warm-up steps are not counted among the decay steps", "optax schedules"),
    20: ("A floor on the int8 cache's scale rounds small values to 0; a flag that has no effect", "InfiniLM #553"),
    21: ("A checkpoint restores only on the number of devices that saved it", "Orbax #648"),
    22: ("A RoPE table is cached without theta in its key", "Equinox"),
    23: ("A dropout rate outside [0, 1) is accepted", "Flax #5497"),
    24: ("cuDNN: unsupported dtypes, head dims, masks and bias gradients are accepted silently", "JAX #28974, #30593"),
    25: ("Fewer KV heads than tensor-parallel shards: the copies' gradients are not summed", "torchtitan #2574"),
    26: ("The validation loss depends on the evaluation's batch size", "nanochat #286"),
    27: ("A longer evaluation length only warns, and the training length is evaluated", "nanodo"),
}  # fmt: skip

# Broken on purpose: (number, the change, the test that failed).
BROKEN: list[tuple[int, str, str]] = [
    (
        1,
        "angles of RoPE computed in bfloat16",
        "tests/models/positions/test_rope.py::test_angles_are_float32_in_bfloat16",
    ),
    (
        2,
        "a decoding step uses keys rotated for another length",
        "tests/models/test_decode.py::test_token_by_token_equals_forward",
    ),
    (
        5,
        "the original length follows data.length although it is set",
        "tests/models/positions/test_rope_faults.py::test_the_runs_length_changes_nothing_where_factor_and_original_length_are_given",
    ),
    (
        6,
        "keys permuted with the number of query heads",
        "tests/convert/test_round_trip.py::test_interleaved_pairs_become_halves_with_the_same_scores",
    ),
    (
        7,
        "left padding counts as positions in generation",
        "tests/models/test_decode.py::test_generate_continues_greedily",
    ),
    (
        8,
        "a fully masked row is not handled: the mask is the smallest float instead of -inf",
        "tests/models/kernels/test_attend.py::test_fully_masked_rows_are_zero_with_finite_gradients",
    ),
    (
        9,
        "query heads laid out as [H/G, G] in the reference kernel",
        "tests/models/kernels/test_attend.py::test_query_heads_read_their_group_in_order",
    ),
    (10, "values split before keys from the fused matrix", "tests/models/test_layout.py::test_fused_equals_split"),
    (11, "the scale is 1/sqrt(width / heads)", "tests/models/test_layout.py::test_head_dim_apart_from_width"),
    (
        13,
        "ALiBi counts positions from the first query",
        "tests/models/positions/test_alibi.py::test_bias_is_minus_slope_times_distance_at_any_offset",
    ),
    (14, "a full cache raises no error", "tests/models/test_decode.py::test_a_full_cache_is_an_error"),
    (
        15,
        "causal order counted from the first key",
        "tests/models/kernels/test_attend.py::test_last_query_stands_at_the_last_key",
    ),
    (
        16,
        "a window keeps one more key",
        "tests/models/kernels/test_attend.py::test_window_keeps_that_many_keys_itself_included",
    ),
    (17, "segments mask only padding", "tests/models/kernels/test_attend.py::test_documents_do_not_touch"),
    (
        18,
        "micro-batches averaged without weights",
        "tests/training/test_step.py::test_micro_batches_change_nothing_though_their_tokens_are_unequal",
    ),
    (
        19,
        "the decay starts after the warm-up",
        "tests/training/test_budget.py::test_decay_counts_from_the_first_step_warm_up_included",
    ),
    (20, "the scale of int8 has a floor of 1", "tests/models/test_storage.py::test_small_values_live"),
    (
        21,
        "restore targets without shardings",
        "tests/training/test_devices.py::test_saved_on_four_devices_and_restored_on_one",
    ),
    (22, "theta is not compared", "tests/models/positions/test_rope.py::test_theta_is_part_of_what_it_is"),
    (23, "a dropout rate of 1 allowed", "tests/configs/test_validate.py::test_dropout_rates_that_are_none_are_refused"),
    (24, "cuDNN accepts any head_dim", "tests/models/kernels/test_choice.py::test_refuses_by_name"),
    (26, "the loss is the mean of batches' means", "tests/eval/test_loss.py::test_the_batch_size_changes_nothing"),
    (
        27,
        "longer lengths are truncated to the training length",
        "tests/eval/test_loss.py::test_longer_lengths_use_longer_rows_and_score_the_same_tokens",
    ),
]

HEAD = """# Faults in published code

Each of these faults occurred in published code and has a test here (`pytest -m fault`). `python -m tests.faults` writes
this page from the tests' marks; a test checks that it is up to date.

| | fault | where | tests here |
|---|---|---|---|
"""
MIDDLE = """
## Broken on purpose

A test that cannot fail proves nothing. Each of these faults was put into the code, one at a time, and the test
beside it failed:

| fault | change | test |
|---|---|---|
"""


def numbers_of(node: ast.FunctionDef) -> set[int]:
    """Returns the faults that a test function's decorators name; none if it is marked slow."""
    results: set[int] = set()
    for decorator in node.decorator_list:
        text = ast.unparse(decorator)
        if text == "pytest.mark.slow":
            return set()
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.fault":
            results |= {ast.literal_eval(argument) for argument in decorator.args}
    return results


def marked(folder: Path = Path("tests")) -> dict[int, list[str]]:
    """Returns {number: tests that prove it in `make test`, as path::name}, from the sources below a folder."""
    results: dict[int, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for number in numbers_of(node):
                    results.setdefault(number, []).append(f"{path.relative_to(folder.parent).as_posix()}::{node.name}")
    return results


def page() -> str:
    """Returns docs/faults.md."""
    tests = marked()

    def name(test: str) -> str:
        return f"`{test.removeprefix('tests/')}`"

    rows = [
        f"| {number} | {what} | {where} | {'<br>'.join(map(name, tests.get(number, [])))} |"
        for number, (what, where) in FAULTS.items()
    ]
    broken = [f"| {number} | {what} | {name(test)} |" for number, what, test in BROKEN]
    return HEAD + "\n".join(rows) + "\n" + MIDDLE + "\n".join(broken) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
