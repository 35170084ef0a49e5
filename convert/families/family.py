"""A family: the pairs between its config.json and our config, and the map between its tensors and ours."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs import base, cli, validate
from configs.errors import ConfigError
from convert.hf.keys import Keys, Ours, Pair, Theirs
from convert.hf.tensors import Params, Shape, Shapes, Tensor

LISTED = 6  # names listed per kind of mismatch


@dataclass(frozen=True)
class Family:
    """One `model_type`.

    Attributes:
        name: the model_type.
        architecture: the class in transformers.
        pairs: in reading order.
        tensors: names without `prefix`.
        prefix: of every tensor's name but `head`'s; checkpoints of the bare model lack it.
        head: the output matrix's name; absent where tied, or equal to the embedding.
        embedding: the embedding's name.
        renamed: other accepted names of tensors.
        ignored: patterns of names (without prefix) without parameters: tables saved by older versions.
    """

    name: str
    architecture: str
    pairs: tuple[Pair, ...]
    tensors: tuple[Tensor, ...]
    prefix: str
    head: str = "lm_head.weight"
    embedding: str = "embed_tokens.weight"
    renamed: Mapping[str, str] = field(default_factory=dict, hash=False)
    ignored: tuple[str, ...] = ()

    def read_config(self, keys: Keys, ignore: Iterable[str] = ()) -> Ours:
        """Returns our fields, dotted, as set by a config.json.

        Raises:
            UserError: a key is missing, wrong, or not understood.
        """
        ours: Ours = {}
        for pair in self.pairs:
            pair.read(keys, ours)
        keys.finish(ignore)
        return ours

    def write_config(self, config: ConfigDict) -> Theirs:
        """Returns config.json for our config, as far as the family can express it."""
        theirs: Theirs = {"model_type": self.name, "architectures": [self.architecture]}
        for pair in self.pairs:
            pair.write(config, theirs)
        return theirs

    def own_name(self, name: str) -> str:
        """Returns a tensor's current name without the prefix."""
        name = name.removeprefix(self.prefix)
        return self.renamed.get(name, name)

    def full_name(self, name: str) -> str:
        """Returns the name in a checkpoint of the whole model."""
        return name if name == self.head else f"{self.prefix}{name}"

    def wanted(self, shapes: Shapes, layers: int) -> dict[str, Shape]:
        """Returns {own name: shape} of the tensors of a model with our parameters of `shapes`."""
        return {
            name: tensor.layout.shape(tensor.parts(shapes))
            for tensor in self.tensors
            if tensor.there(shapes)
            for name in tensor.names(layers)
        }

    def read_tensors(
        self, names: Mapping[str, Shape], read: Callable[[str], np.ndarray], shapes: Shapes, heads: int, source: str
    ) -> Params:
        """Returns our parameters, float32, with q, k and v separate.

        Args:
            names: {name in the checkpoint: shape}.
            read: returns a tensor by that name, float32.
            shapes: of our parameters.
            heads: query heads.
            source: the checkpoint's name in messages.

        Raises:
            ConfigError: tensors are missing, unexpected, or have a wrong shape; with their names.
        """
        layers = next(shape[0] for name, shape in shapes.items() if name.startswith("blocks."))
        where = self._where(names, read, shapes, layers, source)
        result: Params = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
        for tensor in self.tensors:
            if not tensor.there(shapes):
                continue
            for layer, name in enumerate(tensor.names(layers)):
                pieces = tensor.layout.cut(read(where[name]), tensor.parts(shapes), heads)
                for ours, piece in zip(tensor.ours, pieces, strict=True):
                    result[ours][layer if tensor.stacked else ...] = piece
        return result

    def _where(
        self, names: Mapping[str, Shape], read: Callable[[str], np.ndarray], shapes: Shapes, layers: int, source: str
    ) -> dict[str, str]:
        """Returns {own name: name in the checkpoint} of the expected tensors, after checking presence and shapes."""
        expected = self.wanted(shapes, layers)
        own = {self.own_name(name): name for name in names}
        extra = [name for name in own if name not in expected and not self._ignored(name)]
        if self.head in extra and self._tied(own, names, read):
            extra.remove(self.head)
        problems = [
            f"{source}: {len(result)} tensors {words}: {', '.join(result[:LISTED])}{', ...' * (len(result) > LISTED)}"
            for words, result in (
                ("missing", [self.full_name(name) for name in expected if name not in own]),
                ("not known to this family with this config", [own[name] for name in extra]),
            )
            if result
        ]
        for name, shape in expected.items():
            if name in own and tuple(names[own[name]]) != tuple(shape):
                problems.append(f"{source}: {own[name]} has shape {tuple(names[own[name]])}, must be {tuple(shape)}")
        if problems:
            raise ConfigError(problems[: 2 + LISTED])
        return {name: own[name] for name in expected}

    def _ignored(self, name: str) -> bool:
        return any(re.search(pattern, name) for pattern in self.ignored)

    def _tied(self, own: Mapping[str, str], names: Mapping[str, Shape], read: Callable[[str], np.ndarray]) -> bool:
        """Whether a head that the config ties is a copy of the embedding, as in some checkpoints."""
        head, table = own[self.head], own.get(self.embedding)
        return table is not None and names[head] == names[table] and np.array_equal(read(head), read(table))

    def write_tensors(self, params: Params, heads: int) -> Iterator[tuple[str, np.ndarray]]:
        """Yields (name, tensor) for our parameters, with q, k and v separate.

        Raises:
            ConfigError: the family has no tensor for one of them.
        """
        shapes = {name: value.shape for name, value in params.items()}
        layers = next(shape[0] for name, shape in shapes.items() if name.startswith("blocks."))
        present = [tensor for tensor in self.tensors if tensor.there(shapes)]
        lost = sorted(shapes.keys() - {name for tensor in present for name in tensor.ours})
        if lost:
            raise ConfigError(f"{self.name} has no tensor for {', '.join(lost)}")
        for tensor in present:
            for layer, name in enumerate(tensor.names(layers)):
                parts = [params[ours][layer] if tensor.stacked else params[ours] for ours in tensor.ours]
                yield self.full_name(name), tensor.layout.join(parts, heads)


def resolved(ours: Ours, overrides: Mapping[str, Any] | None = None) -> ConfigDict:
    """Returns our complete config with the fields that a family read.

    Raises:
        ConfigError: a value or a combination is refused.
    """
    config = base.get_config()
    cli.apply(config, dict(ours) | dict(overrides or {}))
    return validate.resolve(config)
