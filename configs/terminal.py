"""Text from files, made safe to print: what would steer a terminal, or turn the text round, is shown as its code."""

import unicodedata

# Control characters, format characters (U+202E turns text round), surrogates, line and paragraph separators.
STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")


def plain(text: str, keep: str = "") -> str:
    r"""Returns the text with each character that is not shown as itself written as `\x1b` or `\u202e`.

    Args:
        text: from a file that may have come from elsewhere.
        keep: characters that stay, such as a newline.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in keep or not _steers(char) else _code(char) for char in text)


def _steers(char: str) -> bool:
    return unicodedata.category(char) in STEERING


def _code(char: str) -> str:
    return ascii(char)[1:-1]
