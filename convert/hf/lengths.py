"""max_position_embeddings and similar keys, and data.length: the maximum sequence length of a model."""

from dataclasses import dataclass

from ml_collections import ConfigDict

from convert.hf.keys import Keys, Ours, Theirs, typed

STRETCHED = (
    "yarn",
    "llama3",
    "longrope",
)  # for these max_position_embeddings is the stretched length, not the original
UNSTRETCHED = ("linear", "dynamic")


@dataclass(frozen=True)
class Length:
    """The maximum length that a checkpoint declares; read as data.length.

    A RoPE scaling that knows its original length sets data.length to that afterwards (`convert/hf/rope.py`).
    """

    key: str = "max_position_embeddings"
    default: int = 2048
    aliases: tuple[str, ...] = ()
    written: bool = True

    def read(self, keys: Keys, ours: Ours) -> None:
        """Sets data.length."""
        value = keys.get((self.key, *self.aliases), self.default)
        ours["data.length"] = typed(keys, self.key, self.default if value is None else value, int)
        if ours["data.length"] < 1:
            raise keys.error(self.key, "must be above 0")

    def write(self, config: ConfigDict, theirs: Theirs) -> None:
        """Sets the key."""
        scaling = config.model.position.rope.scaling
        length = config.data.length
        if scaling.kind in UNSTRETCHED:
            length = scaling.original_length
        elif scaling.kind in STRETCHED:
            length = max(round(scaling.original_length * scaling.factor), 1)
        if self.written:
            theirs[self.key] = length


@dataclass(frozen=True)
class TableLength(Length):
    """The rows of a learned table of positions."""

    def read(self, keys: Keys, ours: Ours) -> None:
        """Sets data.length and model.position.max_length."""
        super().read(keys, ours)
        ours["model.position.max_length"] = ours["data.length"]

    def write(self, config: ConfigDict, theirs: Theirs) -> None:
        """Sets the key."""
        theirs[self.key] = config.model.position.max_length
