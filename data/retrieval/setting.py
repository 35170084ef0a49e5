"""What a retrieval task is built from: the config, its tokenizer, and the text for its haystack."""

from dataclasses import dataclass
from functools import cached_property

from ml_collections import ConfigDict

from configs.errors import UserError
from configs.rules import tasks
from data.retrieval.haystacks import Distractors, Encoder, Haystack, Noise, Text
from data.streams import Stream
from data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Setting:
    """The argument of each task's `make`.

    Attributes:
        name: of the task, since a file may hold several.
        config: resolved.
        tokenizer: the run's; tasks in bare tokens need none.
        text: for haystacks of text.
        haystack: noise, text or distractors; empty for tasks without one.
    """

    name: str
    config: ConfigDict
    tokenizer: Tokenizer | None = None
    text: Stream | None = None
    haystack: str = ""

    @property
    def retrieval(self) -> ConfigDict:
        """The fields of `data.retrieval`."""
        return self.config.data.retrieval

    @property
    def mqar(self) -> ConfigDict:
        """The fields of `data.mqar`."""
        return self.config.data.mqar

    @property
    def short(self) -> bool:
        """Whether needles have the short form."""
        return bool(self.retrieval.form == "short")

    @cached_property
    def encode(self) -> Encoder:
        """The tokenizer, for pieces of text.

        Raises:
            UserError: there is none.
        """
        if self.tokenizer is None:
            raise UserError(f"{self.name}: the run has no tokenizer")
        return Encoder(self.tokenizer)

    def hay(self) -> Haystack:
        """Returns the haystack.

        Raises:
            UserError: the task does not support it, or the run reads no text to cut it from.
        """
        if self.haystack not in tasks.RETRIEVAL[self.name].haystacks:
            allowed = " or ".join(tasks.RETRIEVAL[self.name].haystacks)
            raise UserError(f"{self.name}: does not support a haystack of {self.haystack}; allowed: {allowed}")
        if self.haystack == "text":
            if self.text is None:
                raise UserError(f"{self.name}: its haystack is the run's text, but the run reads no text")
            return Text(self.text)
        return Distractors(self.encode) if self.haystack == "distractors" else Noise(self.encode)
