"""The comparison with transformers needs PyTorch and is run by `make bench-hf`; that it leaves no family out is not."""

from bench.hf_cases import OWN, THEIRS
from convert.families import FAMILIES


def test_every_family_is_compared_in_both_directions() -> None:
    assert {case.model_type for case in THEIRS} == set(FAMILIES)
    assert {case.schema for case in THEIRS} == {"v4", "v5"}
    # Runs of our own cannot say Phi-3 or Qwen2 before Llama says them; those go back from their imports.
    assert {case.model_type for case in OWN} >= set(FAMILIES) - {"phi3", "qwen2"}
    assert len({(case.name, case.model_type, case.schema) for case in THEIRS}) == len(THEIRS)
