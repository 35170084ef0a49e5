"""Raw little-endian uint16 token ids without a header (.u16), as nanoGPT's prepare.py writes its train.bin."""

from pathlib import Path

from configs.errors import UserError
from data.formats.format import Layout, TokenFormat


def _recognises(name: str, head: bytes) -> bool:
    return name.endswith(".u16")


def _layout(path: Path, size: int, head: bytes) -> Layout:
    if size % 2:
        raise UserError(f"{path}: has an odd number of bytes, {size:,}; uint16 tokens take two each; it is truncated")
    return Layout("<u2", 0, size // 2)


FORMAT = TokenFormat("u16", _recognises, _layout)
