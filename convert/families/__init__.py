"""Families of Hugging Face checkpoints, by `model_type`. To add one, add a file here and a line below."""

from convert.families.bloom import BLOOM
from convert.families.family import Family
from convert.families.gpt2 import GPT2
from convert.families.gpt_neox import GPT_NEOX
from convert.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3
from convert.families.phi3 import PHI3

__all__ = ["FAMILIES", "Family"]

# In the order in which `to_hf` tries them.
FAMILIES: dict[str, Family] = {
    family.name: family for family in (LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3, PHI3, GPT_NEOX, GPT2, BLOOM)
}
