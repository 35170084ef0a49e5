"""The transformers side of `bench/hf_round_trip.py`; runs in that bench's environment, which has PyTorch.

    python hf_side.py make JOB.json     writes a random checkpoint for each case, and its outputs
    python hf_side.py load JOB.json     loads each checkpoint and writes its outputs

JOB.json has a list of cases: `name`, `folder` (of the checkpoint), `expected` (the file to write), `length`, `new`,
and for `make` `model_type`, `config` and `schema` (v4 or v5, of the rotary keys in config.json). Prints one JSON line
with the versions.
"""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

ROWS, PADDING = 2, 5  # the second row's padding in the padded batch
# transformers 4's names of the keys that version 5 has in rope_parameters.
OLD = {"rope_theta": "rope_theta", "partial_rotary_factor": "partial_rotary_factor"}
OLD_NEOX = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}


def make(case: dict[str, Any], seed: int) -> None:
    """Writes a random checkpoint; norms and biases, which start constant, are perturbed so that a mix-up shows."""
    torch.manual_seed(seed)
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = AutoConfig.for_model(case["model_type"], **{"initializer_range": 0.15, **ids, **case["config"]})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(case["folder"])
    if case["schema"] == "v4":
        path = Path(case["folder"]) / "config.json"
        path.write_text(json.dumps(as_v4(json.loads(path.read_text()))))


def as_v4(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a config.json as version 4 of transformers wrote it."""
    table = values.pop("rope_parameters")
    for new, old in (OLD_NEOX if values["model_type"] == "gpt_neox" else OLD).items():
        if new in table:
            values[old] = table.pop(new)
    kind = table.pop("rope_type")
    name = "rope_type" if kind in ("llama3", "yarn") else "type"  # the older of the two names
    values["rope_scaling"] = None if kind == "default" else {name: kind, **table}
    values.pop("layer_types", None)
    values["torch_dtype"] = values.pop("dtype")
    return values


@torch.no_grad()
def compute(case: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Returns the outputs of a checkpoint on disk, in float32.

    Each row is run separately, because some scalings use the longest row's length for all, and after a row of one
    token, because dynamic scaling keeps the base of the longest row so far until a short one comes. Continuations use
    whole forward passes, because keys cached before a scaling changed are not those of the whole sequence.
    """
    model = AutoModelForCausalLM.from_pretrained(case["folder"], dtype=torch.float32, attn_implementation="eager")
    model.eval()
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.config.vocab_size, (ROWS, case["length"]), generator=generator)
    mask = torch.ones_like(ids)
    mask[1:, :PADDING] = 0

    def logits(row: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        places = {"position_ids": (seen.cumsum(1) - 1).clamp(min=0)} if takes_positions else {}
        model(input_ids=row[:, :1], use_cache=False)
        return model(input_ids=row, attention_mask=seen, use_cache=False, **places).logits

    ones = torch.ones_like(ids)
    plain = torch.cat([logits(ids[i : i + 1], ones[i : i + 1]) for i in range(ROWS)])
    padded = torch.cat([logits(ids[i : i + 1], mask[i : i + 1]) for i in range(ROWS)])
    tokens = ids.clone()
    for _ in range(case["new"]):
        seen = torch.ones_like(tokens)
        last = [logits(tokens[i : i + 1], seen[i : i + 1])[:, -1].argmax(-1, keepdim=True) for i in range(ROWS)]
        tokens = torch.cat([tokens, torch.cat(last)], dim=1)
    results = {"input_ids": ids, "attention_mask": mask, "logits": plain, "logits_padded": padded, "tokens": tokens}
    return {name: x.contiguous() for name, x in results.items()}


def main(command: str, job: str) -> None:
    """The command."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for seed, case in enumerate(json.loads(Path(job).read_text())):
        if command == "make":
            make(case, seed)
        save_file(compute(case), case["expected"])
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__}))


if __name__ == "__main__":
    main(*sys.argv[1:])
