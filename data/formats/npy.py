"""A NumPy array of token ids (.npy), memory-mapped; arrays of Python objects are refused."""

from pathlib import Path

import numpy as np

from configs.errors import UserError
from data.formats.format import Layout, TokenFormat

MAGIC = b"\x93NUMPY"


def _recognises(name: str, head: bytes) -> bool:
    return head.startswith(MAGIC)


def _layout(path: Path, size: int, head: bytes) -> Layout:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError, RecursionError, MemoryError, OverflowError) as error:
        raise UserError(f"{path}: is not a NumPy array of tokens ({' '.join(str(error).split())[:160]})") from error
    if array.dtype.kind not in "ui" or array.ndim != 1:
        raise UserError(
            f"{path}: must be a 1-d array of whole numbers, is {array.dtype} of shape {'x'.join(map(str, array.shape))}"
        )
    return Layout(array.dtype.str, int(array.offset), len(array))


FORMAT = TokenFormat("npy", _recognises, _layout)
