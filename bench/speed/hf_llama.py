"""A peer: transformers' Llama (or GPT-2) in PyTorch, attention by SDPA, fused AdamW; runs in a separate environment.

python -m bench.speed.hf_llama THREADS [compile]      with `compile`, through torch.compile
"""

import functools
import itertools
import sys
from typing import Any

from bench.speed.cases import Case
from bench.speed.serving import Work, cores, serve

if __name__ == "__main__":
    cores(int(sys.argv[1]))

import torch
import transformers
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def model_of(case: Case) -> Any:
    """Returns a random model of a case's shape."""
    torch.manual_seed(0)
    if case.family == "gpt2":
        return _gpt2(case)
    config = LlamaConfig(
        hidden_size=case.width,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        num_key_value_heads=case.kv_heads,
        intermediate_size=case.mlp,
        vocab_size=case.vocab,
        max_position_embeddings=case.length + case.new,
        tie_word_embeddings=True,
        pad_token_id=None,
        eos_token_id=None,
        bos_token_id=None,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).to(DEVICE)


def _gpt2(case: Case) -> Any:
    config = GPT2Config(
        n_embd=case.width,
        n_layer=case.layers,
        n_head=case.heads,
        n_inner=case.mlp,
        vocab_size=case.vocab,
        n_positions=case.length + case.new,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        eos_token_id=None,
        bos_token_id=None,
        attn_implementation="sdpa",
    )
    return GPT2LMHeadModel(config).to(DEVICE)


def training(case: Case, compiled: bool) -> Work:
    """Returns a training step: the loss of every token, gradient, clipping, AdamW."""
    model: Any = model_of(case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, case.vocab, (4, case.batch, case.length + 1), generator=generator).to(DEVICE)
    feed = itertools.cycle(list(rows))
    narrow = case.dtype != "float32"

    def loss_of(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=narrow):
            logits = model(input_ids=tokens, use_cache=False).logits  # no cache: training needs none
        return functional.cross_entropy(logits.float().view(-1, case.vocab), targets.reshape(-1))

    loss_function = torch.compile(loss_of) if compiled else loss_of

    def work() -> None:
        tokens = next(feed)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return work


def decoding(case: Case, compiled: bool) -> Work:
    """Returns greedy generation through the KV cache; with `compiled`, one that torch.compile can take (static)."""
    model: Any = model_of(case).eval().to(getattr(torch, case.dtype))
    prompts = torch.randint(0, case.vocab, (case.batch, case.length)).to(DEVICE)
    options: dict[str, Any] = dict(max_new_tokens=case.new, min_new_tokens=case.new, do_sample=False)
    if compiled:
        model.forward = torch.compile(model.forward)
        options["cache_implementation"] = "static"

    @torch.inference_mode()
    def work() -> None:
        model.generate(prompts, **options).cpu()

    return work


def prepare(case: Case, compiled: bool) -> Work:
    """Returns a case's work."""
    return (decoding if case.kind == "decode" else training)(case, compiled)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    transformers.logging.set_verbosity_error()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    serve(functools.partial(prepare, compiled="compile" in sys.argv[2:]), versions)
