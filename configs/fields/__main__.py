"""python -m configs.fields [PREFIX]: every field with its default, what is allowed and its unit or meaning.

python -m configs.fields optimizer
python -m configs.fields model.position
"""

import shutil

from configs import cli
from configs.fields import listing


def main(argv: list[str]) -> int:
    """Runs the command."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument("prefix", nargs="?", default="", help="a field, a group such as model.attention, or its start")
    print(listing.table(parser.parse_args(argv).prefix, shutil.get_terminal_size((120, 24)).columns))
    return 0


if __name__ == "__main__":
    cli.main(main)
