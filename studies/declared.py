"""The declarations of the studies: `studies/NAME/study.py` of each of studies.NAMES."""

import importlib

from configs.errors import UserError, nearest
from studies import NAMES
from studies.spec import Study


def study(name: str) -> Study:
    """Returns the declaration of a study.

    Raises:
        UserError: there is no study of that name.
    """
    if name not in NAMES:
        raise UserError(f"{name!r}: no study of that name; there are {', '.join(NAMES)}{nearest(name, NAMES)}")
    found = importlib.import_module(f"studies.{name}.study").STUDY
    assert isinstance(found, Study)
    return found
