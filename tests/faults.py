"""The faults others have shipped, and which tests prove them absent: `python -m tests.faults` writes docs/faults.md.

A test says what it proves by `@pytest.mark.fault(numbers)`; `pytest -m fault` runs them all.
"""

import ast
from pathlib import Path

PAGE = Path("docs/faults.md")

# number -> (what went wrong, where)
FAULTS: dict[int, tuple[str, str]] = {
    1: ("Angles in bfloat16: 257 becomes 256, 4095 becomes 4096, and neighbours turn alike", "transformers #29285"),
    2: ("Dynamic NTK under a KV cache: keys turned at one length serve another", "transformers #25104"),
    3: ("LongRoPE crossing its original length while decoding", "transformers #33129"),
    4: ("YaRN's explicit factor ignored where an original length is given", "transformers #38224"),
    5: ("The run's maximal length changes frequencies though factor and original length are given", "Megatron #1418"),
    6: ("Keys permuted with the queries' head count on conversion", "flash-attention #546"),
    7: ("Left padding shifts positions, in the forward pass or in decoding", "unsloth #3699"),
    8: ("A row that sees nothing gets the mean of all values, or NaN gradients", "jax.nn"),
    9: ("Query heads read KV heads in turn instead of in groups", "axlearn #842"),
    10: ("Fused QKV cut into three equal parts though there are fewer KV heads", "several"),
    11: ("head_dim taken for width / heads: in the scale, the output matrix, FLOP and memory counters",
         "transformers #32495, levanter, prime-rl #1246"),
    12: ("Masks added as numbers: finfo.min + bias shows hidden keys again; softmax below float32",
         "transformers #17437"),
    13: ("T5's bias and ALiBi count from 0 in every step of decoding", "candle #899"),
    14: ("Writing past a full cache moves back silently over older slots", "nanochat #520, Flax"),
    15: ("The causal mask is aligned top-left where there are fewer queries than keys", "jax.nn"),
    16: ("A window of W keeps W + 1 keys", "jax.nn"),
    17: ("Packed documents see one another, or a label crosses their boundary", "several"),
    18: ("Micro-batches of unequal token counts averaged without weights; padding changes the loss",
         "transformers #34191, optax.MultiSteps"),
    19: ("Warm-up taken as lying outside the steps of decay", "optax schedules"),
    20: ("An int8 cache whose scale has a floor kills small values; a flag that does nothing", "InfiniLM #553"),
    21: ("A checkpoint restores on the device count that saved it alone", "Orbax #648"),
    22: ("A RoPE table cached without theta in its key", "Equinox"),
    23: ("A dropout rate outside [0, 1) accepted", "Flax #5497"),
    24: ("cuDNN: dtypes, head dims, masks and bias gradients it does not have, taken silently", "JAX #28974, #30593"),
    25: ("Fewer KV heads than tensor-parallel shards: copies whose gradients are not summed", "torchtitan #2574"),
    26: ("The validation loss depends on the evaluation's batch size", "nanochat #286"),
    27: ("A longer evaluation length only warns, and the training length is evaluated", "nanodo"),
}  # fmt: skip

# Broken on purpose: (number, what was broken, the test that went red).
BROKEN: list[tuple[int, str, str]] = [
    (
        1,
        "angles of RoPE computed in bfloat16",
        "tests/models/positions/test_rope.py::test_angles_are_float32_in_bfloat16",
    ),
    (
        2,
        "a step trusts keys turned at another length",
        "tests/models/test_decode.py::test_token_by_token_equals_forward",
    ),
    (
        5,
        "the original length follows data.length though it is given",
        "tests/models/positions/test_rope_faults.py::test_the_runs_length_changes_nothing_where_factor_and_original_length_are_given",
    ),
    (
        6,
        "keys permuted with the queries' number of heads",
        "tests/convert/test_round_trip.py::test_interleaved_pairs_become_halves_with_the_same_scores",
    ),
    (
        7,
        "left padding counts as positions in generation",
        "tests/models/test_decode.py::test_generate_continues_greedily",
    ),
    (
        8,
        "a row that sees nothing is not told apart: the mask is the smallest float instead of -inf",
        "tests/models/kernels/test_attend.py::test_fully_masked_rows_are_zero_with_finite_gradients",
    ),
    (
        9,
        "query heads laid out as [H/G, G] in the reference core",
        "tests/models/kernels/test_attend.py::test_query_heads_read_their_group_in_order",
    ),
    (10, "values cut before keys from the fused matrix", "tests/models/test_layout.py::test_fused_equals_split"),
    (11, "the scale is 1/sqrt(width / heads)", "tests/models/test_layout.py::test_head_dim_apart_from_width"),
    (
        13,
        "ALiBi counts from the first query",
        "tests/models/positions/test_alibi.py::test_bias_is_minus_slope_times_distance_at_any_offset",
    ),
    (14, "a full cache refuses nothing", "tests/models/test_decode.py::test_a_full_cache_is_an_error"),
    (
        15,
        "causal order counted from the first key",
        "tests/models/kernels/test_attend.py::test_last_query_stands_at_the_last_key",
    ),
    (
        16,
        "a window keeps one key more",
        "tests/models/kernels/test_attend.py::test_window_keeps_that_many_keys_itself_included",
    ),
    (17, "segments tell padding alone", "tests/models/kernels/test_attend.py::test_documents_do_not_touch"),
    (
        18,
        "micro-batches averaged without weights",
        "tests/training/test_step.py::test_micro_batches_change_nothing_though_their_tokens_are_unequal",
    ),
    (
        19,
        "the decay begins after the warm-up",
        "tests/training/test_budget.py::test_decay_counts_from_the_first_step_warm_up_included",
    ),
    (20, "the scale of int8 has a floor of 1", "tests/models/test_storage.py::test_small_values_live"),
    (21, "targets without shardings", "tests/training/test_devices.py::test_saved_on_four_devices_and_restored_on_one"),
    (22, "theta is not compared", "tests/models/positions/test_rope.py::test_theta_is_part_of_what_it_is"),
    (23, "a dropout rate of 1 allowed", "tests/configs/test_validate.py::test_dropout_rates_that_are_none_are_refused"),
    (24, "cuDNN takes any head_dim", "tests/models/kernels/test_choice.py::test_refuses_by_name"),
    (26, "the loss is the mean of batches' means", "tests/eval/test_loss.py::test_the_batch_size_changes_nothing"),
    (
        27,
        "longer lengths are cut to the training length",
        "tests/eval/test_loss.py::test_longer_lengths_use_longer_rows_and_score_the_same_tokens",
    ),
]

HEAD = """# Faults others have shipped

Each of these was found in published code and is a test here (`pytest -m fault`). The page is written by
`python -m tests.faults` from the tests' marks, and a test holds it to them.

| | what went wrong | where | tests here |
|---|---|---|---|
"""
MIDDLE = """
## Broken on purpose

A test that cannot fail proves nothing. Each of these was put into the code, one at a time, and the test named went
red:

| fault | what was broken | test |
|---|---|---|
"""


def numbers_of(node: ast.FunctionDef) -> set[int]:
    """Returns the faults a test function's decorators name; none where it is marked slow."""
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
