"""JSON files that a user may have touched: read whole, or refused in one line that names the file and the place."""

import errno
import json
import os
from pathlib import Path
from typing import Any

from configs.errors import UserError


def ordinary(path: str | Path) -> Path:
    """Returns a path that can be opened without waiting for ever, as a pipe that nobody writes to is waited for.

    Raises:
        OSError: a pipe, a socket or a device lies there.
    """
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "is a pipe, a socket or a device, no file", str(path))
    return path


def read_json(path: str | Path) -> Any:
    """Returns a JSON file's value.

    Raises:
        UserError: the file is missing, cannot be read, or is no JSON; the place is named.
    """
    try:
        return json.loads(ordinary(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or os.strerror(error.errno or 0)}") from error
    except RecursionError:
        raise UserError(f"{path}: is not valid JSON: it is nested too deeply") from None
    except ValueError as error:  # no UTF-8, no JSON, or a whole number of thousands of digits
        raise UserError(f"{path}: is not valid JSON: {error}") from error
