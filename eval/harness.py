"""lm-evaluation-harness on a run directory: its tasks (RULER, NIAH, LAMBADA, ...) on our checkpoints.

    python -m eval.harness --workdir=RUN --tasks=lambada_openai,my_task --include_path=MY_TASKS

writes RUN/eval/harness.json. In Python: `lm_eval.simple_evaluate(model=AblaxLM("RUN"), tasks=[...])`, or by name,
`model="ablax", model_args="workdir=RUN"`, once this module is imported. Needs the extra `[lm-eval]`. Tasks that
download data sets do so through the harness, when they are used; tasks in local files read nothing else. RULER's tasks
generate their texts, at the lengths of `--max_lengths`, and need wonderwords, nltk and transformers.
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m eval.harness")

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tokenizers

from configs import cli
from configs.errors import UserError
from eval import options
from eval.progress import Reporter
from eval.quality import scoring
from eval.run import record
from models.declared import positions
from training.run_directory import files
from training.run_directory import run as runs
from training.runtime import compilation

try:
    from lm_eval import evaluator, tasks, utils
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
except ImportError as error:
    lacking = f"eval.harness needs lm-evaluation-harness: pip install lm_eval ({error})"
    if __name__ == "__main__":
        raise SystemExit(f"error: {lacking}") from None
    raise UserError(lacking) from error

STEP = 64  # lengths are padded to multiples of this, so that few programs are compiled
GENERATED = 256  # generated tokens if a task does not say
BOOTSTRAP = 1000  # resamples of a metric without a closed form of its error
OPTIONS = ("until", "max_gen_toks", "do_sample", "temperature", "top_p")


@register_model("ablax")
class AblaxLM(TemplateLM):
    """A run directory as a model of the harness: loglikelihood, loglikelihood_rolling, generate_until.

    Contexts are never truncated: a task with 16 times the training length gets it, because long contexts are what is
    measured. Only models with limited positions (a learned table) refuse. Rolling windows have the training length.
    """

    def __init__(self, workdir: str, batch_size: int | str = 8, seed: int = 0, **unknown: Any) -> None:
        """Loads a run.

        Args:
            workdir: the run directory.
            batch_size: rows at once.
            seed: for sampled tokens, if a task samples.
            unknown: what the harness passes to every model (device, max_batch_size); anything else is refused.

        Raises:
            UserError: no run, a run without a tokenizer, an unknown argument, or an invalid batch size.
        """
        super().__init__()
        strange = sorted(set(unknown) - {"device", "max_batch_size"})
        if strange:
            raise UserError(f"ablax: unknown model argument {strange[0]}; must be workdir, batch_size or seed")
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise UserError(f"ablax: batch_size = {batch_size!r}: must be a whole number, 1 or more")
        self.run = runs.load(workdir)
        if self.run.tokenizer is None:
            raise UserError(f"{workdir}: the run read no text and has no tokenizer, which the harness needs")
        self.rows, self.seed, self.drawn = int(batch_size), seed, 0

    @property
    def max_length(self) -> int:
        """Tokens of a rolling window: the training length."""
        return self.run.config.data.length

    @property
    def eot_token_id(self) -> int:
        """The id that ends documents, used before a text without context."""
        if self.run.tokenizer.separator is None:
            raise UserError("the run's tokenizer has no separator; texts without a context cannot be scored")
        return self.run.tokenizer.separator

    @property
    def tokenizer_name(self) -> str:
        """A name that identifies the tokenizer, for the harness's caches."""
        return "ablax-" + "-".join(f"{value}" for value in self.run.tokenizer.describe().values())

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Returns a text's ids; no special tokens are added."""
        return [int(i) for i in self.run.tokenizer.encode(string)]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        result = self._scored(requests, disable_tqdm)
        for request, answer in zip(requests, result, strict=True):
            self.cache_hook.add_partial("loglikelihood", request[0], answer)
        return result

    def _scored(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool
    ) -> list[tuple[float, bool]]:
        """Returns the log-probability in nats of each (_, context, continuation), and whether greedy matches it."""
        results: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        whole = [context + continuation for _, context, continuation in requests]
        lengths = [len(ids) - 1 for ids in whole]
        track = Reporter() if not disable_tqdm else None
        batches = list(self._batches(lengths))
        for places, length in track.track("harness: scoring", batches) if track else batches:
            batch = {name: np.zeros((self.rows, length), np.int32) for name in ("tokens", "targets", "segments")}
            batch["positions"] = np.tile(np.arange(length, dtype=np.int32), (self.rows, 1))
            for row, place in enumerate(places):
                here = lengths[place]
                batch["tokens"][row, :here], batch["targets"][row, :here] = whole[place][:-1], whole[place][1:]
                batch["segments"][row, :here] = 1
            losses, likeliest = scoring.score(self.run.config.model, self.run.params, batch)
            for row, place in enumerate(places):
                part = slice(lengths[place] - len(requests[place][2]), lengths[place])
                greedy = bool((likeliest[row, part] == batch["targets"][row, part]).all())
                results[place] = (-float(losses[row, part].sum(dtype=np.float64)), greedy)
        return results

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Returns each text's log-likelihood in nats, every token once, in windows of the training length."""
        pieces: list[tuple[Any, list[int], list[int]]] = []
        owners: list[int] = []
        for owner, request in enumerate(requests):
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.eot_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            made = [(None, *utils.make_disjoint_window(window)) for window in windows]
            pieces += made
            owners += [owner] * len(made)
        scores = self._scored(pieces, disable_tqdm)
        totals = [0.0] * len(requests)
        for owner, (score, _) in zip(owners, scores, strict=True):
            totals[owner] += score
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Returns each prompt's continuation through the KV cache, up to its first stop text."""
        result = [""] * len(requests)
        groups: dict[tuple[int, float, float], list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(_drawing(request.args[1]), []).append(place)
        for (most, temperature, top_p), members in groups.items():
            prompts = [self.tok_encode(requests[place].args[0]) or [self.eot_token_id] for place in members]
            batches = list(self._batches([len(ids) for ids in prompts]))
            for places, length in batches if disable_tqdm else Reporter().track("harness: generating", batches):
                # Rows after the last one repeat it: every row must have a token.
                chosen = [prompts[place] for place in places] + [prompts[places[-1]]] * (self.rows - len(places))
                tokens, mask = np.zeros((2, self.rows, length), np.int32)
                for row, ids in enumerate(chosen):
                    tokens[row, length - len(ids) :], mask[row, length - len(ids) :] = ids, 1
                key = jax.random.fold_in(jax.random.key(self.seed), self.drawn)
                self.drawn += temperature > 0
                new = scoring.answer(
                    self.run.config.model, self.run.params, tokens, max_new=most, mask_BT=mask,
                    temperature=temperature, top_p=top_p, key=key,
                )  # fmt: skip
                for row, place in enumerate(places):
                    request = requests[members[place]]
                    text = self._ended(new[row], request.args[1].get("until") or [])
                    result[members[place]] = text
                    self.cache_hook.add_partial("generate_until", request.args, text)
        return result

    def _ended(self, ids: np.ndarray, until: str | Sequence[str]) -> str:
        """Returns the text of new tokens up to the separator or the first stop text."""
        ends = np.flatnonzero(ids == self.run.tokenizer.separator)
        text = self.run.tokenizer.decode(ids[: ends[0]] if len(ends) else ids)
        stops = [until] if isinstance(until, str) else until
        return text[: min([at for stop in stops if stop and (at := text.find(stop)) >= 0], default=len(text))]

    def _batches(self, lengths: Sequence[int]) -> Iterator[tuple[list[int], int]]:
        """Yields (indices of up to `rows` requests, a length that fits them), the longest first."""
        order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
        for first in range(0, len(order), self.rows):
            places = order[first : first + self.rows]
            longest = lengths[places[0]]
            rounded = -(-max(longest, 1) // STEP) * STEP
            # A table that ends within the step is padded only to its end.
            yield places, longest if rounded > self._reach() >= longest else rounded

    def _reach(self) -> float:
        result = positions.reach(self.run.config.model)
        return float("inf") if result is None else result[0]


def _drawing(options: dict[str, Any]) -> tuple[int, float, float]:
    """Returns (tokens, temperature, top_p) of a request's options; refuses options that would be ignored."""
    strange = sorted(set(options) - set(OPTIONS))
    if strange:
        raise UserError(f"generation option {strange[0]} = {options[strange[0]]!r}: must be of {', '.join(OPTIONS)}")
    draws = options.get("do_sample", float(options.get("temperature") or 0.0) > 0)
    temperature = float(options.get("temperature") or 1.0) if draws else 0.0
    return int(options.get("max_gen_toks", GENERATED)), temperature, float(options.get("top_p") or 1.0)


def write_tokenizer(run: runs.Run, folder: str | Path) -> None:
    """Writes the run's tokenizer in the form of transformers, for tasks that generate texts of a number of tokens.

    For bytes and characters the ids differ from the run's; the number of tokens is the same.
    """
    kind, folder = run.tokenizer.describe()["kind"], Path(folder)
    if kind == "file":
        run.tokenizer.save(folder)
    elif kind == "byte":
        letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        made = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, []))
        made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.decoder = tokenizers.decoders.ByteLevel()
    else:
        letters = [run.tokenizer.decode([index]) for index in range(run.tokenizer.vocab_size)]
        vocabulary = {letter: index for index, letter in enumerate(letters)}
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=letters[0]))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
        made.decoder = tokenizers.decoders.Fuse()
    folder.mkdir(parents=True, exist_ok=True)
    if kind != "file":
        made.save(str(folder / "tokenizer.json"))
    files.write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def _manager(names: Sequence[str], folder: str | None, metadata: dict[str, Any]) -> Any:
    """Returns the harness's task manager: of the folder alone if it has all tasks, because the harness's own is slow.

    Args:
        metadata: for tasks that generate their texts: max_seq_lengths, tokenizer.

    Raises:
        UserError: an unknown task.
    """
    setting = {"include_path": folder, "metadata": metadata}
    managers = (tasks.TaskManager(include_defaults=own, **setting) for own in (not folder, True))
    for manager in managers:
        unknown = [name for name in names if not manager.match_tasks([name])]
        if not unknown:
            return manager
    raise UserError(f"--tasks: {unknown[0]!r} is not a task of the harness (nor in --include_path)")


def _lengths(given: str | None) -> dict[str, list[int]]:
    """Returns the lengths of generated texts.

    Raises:
        UserError: they are not numbers.
    """
    if not given:
        return {}
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--max_lengths={given}: must be whole numbers above 0, separated by commas")
    return {"max_seq_lengths": [int(part) for part in parts]}


def main(argv: Sequence[str]) -> None:
    """The command."""
    args = options.harness(__doc__ or "").parse_args(argv)
    # The harness forks, to read its task files and for its bootstrap; JAX's threads would not survive that.
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    began = time.perf_counter()
    names = [name.strip() for name in args.tasks.split(",") if name.strip()]
    folder = Path(args.workdir).resolve() / "eval" / "tokenizer"
    manager = _manager(names, args.include_path, {"tokenizer": str(folder), **_lengths(args.max_lengths)})
    compilation.enable_cache()
    model = AblaxLM(args.workdir, batch_size=args.batch_size)
    write_tokenizer(model.run, folder)
    result = evaluator.simple_evaluate(
        model,
        tasks=names,
        num_fewshot=args.num_fewshot,
        limit=args.limit,
        task_manager=manager,
        bootstrap_iters=BOOTSTRAP,
    )
    kept = {name: result[name] for name in ("results", "n-samples", "versions", "configs") if name in result}
    settings = {name: getattr(args, name) for name in ("tasks", "num_fewshot", "limit", "batch_size", "max_lengths")}
    print(utils.make_table(result))
    record(model.run, "harness", {**kept, "settings": settings}, time.perf_counter() - began, Reporter())


if __name__ == "__main__":
    cli.main(main)
