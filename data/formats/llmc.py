"""Token shards of llm.c (dev/data/data_common.py) and modded-nanogpt: a header of 256 int32, then tokens.

The header begins with magic, version and the number of tokens. GPT-2's shards are uint16, Llama 3's uint32.
"""

from pathlib import Path

import numpy as np

from configs.errors import UserError
from data.formats.format import Layout, TokenFormat

HEADER = 256 * 4  # bytes
# (magic, version) -> dtype of the tokens
PUBLISHED = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
EVALUATION = 20240522  # llm.c's multiple-choice questions, HellaSwag and MMLU
MAGICS = {*(magic for magic, _ in PUBLISHED), EVALUATION}


def _recognises(name: str, head: bytes) -> bool:
    # A .bin that begins with zero bytes is not text either: it is refused with the message for shards.
    return _magic(head) in MAGICS or (name.endswith(".bin") and b"\0" in head)


def _magic(head: bytes) -> int | None:
    return int.from_bytes(head[:4], "little") if len(head) >= 4 else None


def _layout(path: Path, size: int, head: bytes) -> Layout:
    magic = _magic(head)
    if magic == EVALUATION:
        raise UserError(f"{path}: is an evaluation file of llm.c (magic {EVALUATION}), not tokens of text")
    if magic not in MAGICS:
        raise UserError(
            f"{path}: is not a token shard: it begins with {magic}; those of llm.c begin with 20240520 (uint16) "
            "or 20240801 (uint32); raw uint16 tokens without a header are read from files named .u16"
        )
    if size < HEADER:
        raise UserError(f"{path}: is truncated: a token shard's header has {HEADER:,} bytes, the file {size:,}")
    version, count = (int(number) for number in np.frombuffer(head[4:12], "<i4"))
    dtype = PUBLISHED.get((magic, version))
    if dtype is None:
        known = ", ".join(f"{one} version {number}" for one, number in PUBLISHED)
        raise UserError(f"{path}: is a token shard of magic {magic} version {version}; supported are {known}")
    there, odd = divmod(size - HEADER, np.dtype(dtype).itemsize)
    if count != there or odd:
        raise UserError(f"{path}: its header has {count:,} tokens, the file {there:,}; it is truncated or damaged")
    return Layout(dtype, HEADER, count)


FORMAT = TokenFormat("llm.c", _recognises, _layout)
