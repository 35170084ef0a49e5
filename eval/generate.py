"""python -m eval.generate: a run's predictions for given tokens, and its continuation of them.

    python -m eval.generate --workdir=RUN --tokens=in.safetensors --max_new=32 --out=out.safetensors
    python -m eval.generate --workdir=RUN --prompt="def main(" --temperature=0.8 --top_p=0.95

IN has `input_ids` [batch, length] and optionally `attention_mask` of the same shape, 0 for padding, which is on the
left. OUT has `logits` [batch, length, vocab] of the prompt, float32, and `tokens` [batch, length + max_new], the prompt
and its continuation through the KV cache. Logits at padding are meaningless.
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m eval.generate")

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from configs import cli
from configs.documents import ordinary
from configs.errors import UserError, nearest
from eval import options
from eval.progress import Quiet, Reporter
from eval.quality.scoring import LOGITS
from models.decoding import decode
from models.initial import seed_key
from training.run_directory import files
from training.run_directory import run as runs
from training.runtime import compilation
from training.step import train_step as steps

KEYS = ("input_ids", "attention_mask")
INTEGERS = ("I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64")


@dataclass(frozen=True)
class Settings(options.Drawing):
    """Generation settings: temperature 0 takes the likeliest token; else tokens are sampled (see `decode.generate`)."""

    def check(self) -> None:
        """Refuses settings out of range.

        Raises:
            UserError: with the option.
        """
        if self.max_new < 0:
            raise UserError(f"--max_new={self.max_new}: must be 0 or more")
        if not 0 <= self.temperature < np.inf:
            raise UserError(f"--temperature={self.temperature}: must be 0 (the likeliest token) or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"--top_p={self.top_p}: must be in (0, 1]")
        if self.top_p < 1 and self.temperature == 0:
            raise UserError(f"--top_p={self.top_p}: needs --temperature above 0")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"--seed={self.seed}: must be in 0 .. 2**63 - 1")


@dataclass(frozen=True)
class Prompts:
    """Prompts [B, T] as given, and their mask, int32 [B, T]; None: all tokens."""

    given: np.ndarray
    mask: np.ndarray | None = None

    @property
    def tokens(self) -> np.ndarray:
        """The model's input, int32 [B, T]: 0 at padding, whatever the file has there."""
        return np.where(1 if self.mask is None else self.mask, self.given, 0).astype(np.int32)


def read(path: str | Path, vocab_size: int) -> Prompts:
    """Reads a safetensors file of prompts.

    Raises:
        UserError: no such file, no `input_ids`, an unexpected key, type or shape, or a token outside the vocabulary.
    """
    try:
        with safetensors.safe_open(ordinary(path), "np") as file:
            types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
            _keys(path, types)
            results = {name: file.get_tensor(name) for name in types}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{path}: is not a safetensors file ({error})") from None
    ids, mask = results["input_ids"], results.get("attention_mask")
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise UserError(f"{path}: input_ids is {list(ids.shape)}; must be [batch, length], with at least one token")
    if mask is not None:
        if mask.shape != ids.shape:
            raise UserError(f"{path}: attention_mask is {list(mask.shape)}, input_ids {list(ids.shape)}")
        if not ((mask == 0) | (mask == 1)).all():
            raise UserError(f"{path}: attention_mask: must have only 0 and 1")
        mask = mask.astype(np.int32)
        bad = (np.diff(mask, axis=1) < 0).any(axis=1) | (mask[:, -1] == 0)
        if bad.any():
            raise UserError(
                f"{path}: attention_mask, row {bad.argmax()}: must be 0 .. 0 1 .. 1, padding on the left and a token "
                "at least"
            )
    outside = (ids < 0) | (ids >= vocab_size)
    outside &= True if mask is None else mask == 1
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise UserError(
            f"{path}: input_ids[{row}, {column}] = {ids[row, column]}: the run's token ids are 0 .. {vocab_size - 1}"
        )
    return Prompts(ids, mask)


def _keys(path: str | Path, types: dict[str, str]) -> None:
    for name in types:
        if name not in KEYS:
            raise UserError(
                f"{path}: has {name}; must have input_ids and optionally attention_mask{nearest(name, KEYS)}"
            )
    if "input_ids" not in types:
        raise UserError(f"{path}: has no input_ids")
    if types["input_ids"] not in INTEGERS:
        raise UserError(f"{path}: input_ids is {types['input_ids']}; must be whole numbers, one of {INTEGERS}")
    if types.get("attention_mask", "BOOL") not in (*INTEGERS, "BOOL"):
        raise UserError(f"{path}: attention_mask is {types['attention_mask']}; must be whole numbers or BOOL")


@functools.partial(jax.jit, static_argnums=0)
def _forward(graphdef: Any, params: Any, tokens: Array, mask: Array | None) -> Array:
    places = None if mask is None else jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
    return nnx.merge(graphdef, params)(tokens, places, mask)


def logits(run: runs.Run, prompts: Prompts, progress: Quiet | None = None) -> np.ndarray:
    """Returns float32 [B, T, V], the run's logits after each token of the prompts, by one plain forward pass."""
    rows, length = prompts.given.shape
    vocab_size = run.config.model.vocab_size
    size = max(1, min(rows, LOGITS // (length * vocab_size)))  # rows at once
    out = np.empty((rows, length, vocab_size), np.float32)
    for start in (progress or Quiet()).track("logits", range(0, rows, size)):
        # The last piece is padded, so that one program serves all.
        chosen = np.minimum(np.arange(start, start + size), rows - 1)
        mask = None if prompts.mask is None else prompts.mask[chosen]
        result = _forward(run.graphdef, run.params, prompts.tokens[chosen], mask)
        out[start : start + size] = np.asarray(result)[: rows - start]
    return out


def continued(run: runs.Run, prompts: Prompts, settings: Settings) -> np.ndarray:
    """Returns the prompts with their continuation, [B, T + max_new], in the prompts' type, or int64 if it is too small.

    Raises:
        UserError: more tokens than the run's positions support.
    """
    new = decode.generate(
        run.graphdef,
        run.params,
        prompts.tokens,
        max_new=settings.max_new,
        mask_BT=prompts.mask,
        temperature=settings.temperature,
        top_p=settings.top_p,
        key=seed_key(settings.seed),
    )
    dtype = prompts.given.dtype
    dtype = dtype if np.iinfo(dtype).max >= run.config.model.vocab_size - 1 else np.dtype(np.int64)
    return np.concatenate([prompts.given.astype(dtype), np.asarray(new).astype(dtype)], axis=1)


def _fits(config: ConfigDict, prompts: Prompts, settings: Settings) -> None:
    """Refuses what the run's positions do not support, from its config alone."""
    shapes = steps.abstract(config)
    decode.check(shapes.graphdef, shapes.params, prompts.given.shape, settings.max_new, prompts.mask)


def from_tokens(workdir: str | Path, source: str | Path, out: str | Path, settings: Settings, message: Quiet) -> None:
    """Reads prompts from a safetensors file and writes their logits and continuations to another.

    Raises:
        UserError: no run, or from `read` and `decode.check`; nothing is written then.
    """
    settings.check()
    if Path(out).is_dir() or os.path.realpath(out) == os.path.realpath(source):
        raise UserError(f"--out={out}: must be a file other than --tokens")
    config = runs.load_config(workdir)
    prompts = read(source, config.model.vocab_size)
    _fits(config, prompts, settings)
    run = runs.load(workdir)
    message.say(f"{prompts.given.shape[0]} prompts of {prompts.given.shape[1]} tokens, {settings.max_new} more each")
    results = {"logits": logits(run, prompts, message), "tokens": continued(run, prompts, settings)}
    with files.replacing(out) as temporary:
        safetensors.numpy.save_file(results, temporary)
    message.say(f"{out}: logits {list(results['logits'].shape)}, tokens {list(results['tokens'].shape)}")


def from_text(workdir: str | Path, prompt: str, settings: Settings) -> str:
    """Returns a prompt and its continuation as text.

    Raises:
        UserError: no run, a run without a tokenizer, an empty prompt, or from `decode.check`.
    """
    settings.check()
    config = runs.load_config(workdir)
    tokenizer = runs.load_tokenizer(workdir)
    if tokenizer is None:
        raise UserError(f"--prompt: {workdir} has no tokenizer; use --tokens")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:  # invalid UTF-8 on the command line appears as surrogates
        raise UserError(f"--prompt: is not valid UTF-8 at character {error.start}") from None
    prompts = Prompts(tokenizer.encode(prompt)[None])
    if prompts.given.shape[1] == 0:
        raise UserError(f"--prompt={prompt!r}: encodes to no tokens; at least one is needed")
    _fits(config, prompts, settings)
    return tokenizer.decode(continued(runs.load(workdir), prompts, settings)[0])


def main(argv: Sequence[str]) -> None:
    """The command."""
    args = options.generate(__doc__ or "").parse_args(list(argv))
    settings = Settings(args.max_new, args.temperature, args.top_p, args.seed)
    if (args.tokens is None) == (args.prompt is None):
        raise UserError("set one of --tokens=IN and --prompt=TEXT (see --help)")
    if (args.tokens is None) != (args.out is None):
        raise UserError("--out: needs --tokens, and --tokens needs --out (see --help)")
    compilation.enable_cache()
    if args.prompt is None:
        from_tokens(args.workdir, args.tokens, args.out, settings, Reporter())
    else:
        print(from_text(args.workdir, args.prompt, settings))


if __name__ == "__main__":
    cli.main(main)
