"""From a config to a task: which file makes it, which haystack it gets, and whether the tokenizer can write it."""

import numpy as np
from ml_collections import ConfigDict

from configs.errors import UserError, nearest
from configs.rules import tasks
from data.retrieval.draws import Dice
from data.retrieval.haystacks import NOISE, Distractors, Encoder, Haystack, Noise, Text
from data.retrieval.in_text import TextTask
from data.retrieval.induction import Induction
from data.retrieval.mqar_gaps import MqarGaps
from data.retrieval.niah import KINDS, Niah
from data.retrieval.pairs import Mqar
from data.retrieval.passkey import Passkey
from data.retrieval.rows import Task
from data.retrieval.selective_copy import SelectiveCopy
from data.retrieval.variable_tracking import VariableTracking
from data.streams import Stream
from data.tokenizers import Tokenizer


def make(name: str, config: ConfigDict, tokenizer: Tokenizer | None, text: Stream | None, haystack: str = "") -> Task:
    """Returns a task as `config.data.retrieval` (and `config.data.mqar`, for mqar_gaps) sets it.

    Args:
        name: of `configs.rules.tasks.SYNTHETIC`; `mqar` is for evaluation, `data/mqar.py` makes its training rows.
        config: resolved.
        tokenizer: the run's; tasks of bare tokens need none.
        text: the split that haystacks of text are cut from: train for training, validation for evaluation.
        haystack: instead of `data.retrieval.haystack`.

    Raises:
        UserError: an unknown name, no tokenizer or text where one is needed, or a tokenizer that cannot write the task.
    """
    settings = config.data.retrieval
    if name not in tasks.SYNTHETIC:
        raise UserError(f"{name!r} is no retrieval task{nearest(name, tasks.SYNTHETIC)}")
    mqar = config.data.mqar
    if name == "mqar":  # as many pairs as the training length holds
        return Mqar(max(1, min(mqar.pairs, (config.data.length + 1) // 4, mqar.vocab_size // 2)), mqar.vocab_size)
    if name == "mqar_gaps":
        return MqarGaps(mqar.pairs, mqar.vocab_size, mqar.power, mqar.filler == "random")
    if name == "selective_copy":
        return SelectiveCopy(settings.needles, settings.vocab_size)
    if name in tasks.IN_TOKENS:
        return Induction(name, 1 if name == "induction_complete" else settings.needles, settings.vocab_size)
    if tokenizer is None:
        raise UserError(f"{name}: the run has no tokenizer")
    task = _in_text(name, settings, tokenizer, text, tasks.haystack(name, haystack or settings.haystack))
    _check(task)
    return task


def _in_text(name: str, settings: ConfigDict, tokenizer: Tokenizer, text: Stream | None, haystack: str) -> TextTask:
    encode = Encoder(tokenizer)
    if haystack == "distractors" and name == "passkey":
        raise UserError("passkey: has no distractors; its haystack is noise or text")
    if haystack == "text" and text is None:
        raise UserError(f"{name}: its haystack is the run's text, and the run reads none")
    hay: Haystack
    if haystack == "text" and text is not None:
        hay = Text(text)
    else:
        hay = Distractors(encode) if haystack == "distractors" else Noise(encode)
    short = settings.form == "short"
    if name == "passkey":
        return Passkey(encode, hay, 1, short, digits=settings.digits or 5)
    if name == "variable_tracking":
        letters = settings.letters if short else 5
        return VariableTracking(encode, hay, settings.needles, short, digits=settings.digits or 5, letters=letters)
    needles = settings.needles if KINDS[name].several else 1
    return Niah(encode, hay, needles, short, kind=name, digits=settings.digits or 7, letters=settings.letters)


def _check(task: TextTask) -> None:
    """Refuses a tokenizer that does not give back the task's words.

    Raises:
        UserError: naming what it cannot write.
    """
    sample = task.sample(Dice(np.zeros(2, np.uint64), 0, 0), task.needles)
    pieces = [piece for needle in sample.needles for piece in needle]
    pieces += [sample.introduction, *sample.question, sample.between, *task.alphabet()]
    if task.haystack.kind != "text":
        pieces.append(NOISE)
    for piece in pieces:
        try:
            back = task.encode.tokenizer.decode(task.encode(piece))
        except UserError as error:
            raise UserError(f"{task.name}: the tokenizer cannot write {piece.strip()!r}: {error}") from error
        if _plain(back) != _plain(piece):
            raise UserError(f"{task.name}: the tokenizer gives back {back.strip()!r} for {piece.strip()!r}")


def _plain(text: str) -> str:
    """Without what tokenizers may change and answers do not depend on: spaces and case."""
    return "".join(text.split()).casefold()
