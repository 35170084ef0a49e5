# ruff: noqa: E501 - tables of ways to spoil a file
"""Spoils files: bytes, JSON values, and what lies where a file should. Everything follows from a random.Random."""

import contextlib
import copy
import ctypes
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# What a field is set to that should hold something else.
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 0.5, -0.5, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**400, 1e308, 1e-320, float("nan"),
    float("inf"), float("-inf"), "", " ", "0", "1", "nan", "None", "\0", "\ud800", "../..", "/dev/null", "é" * 3, "a" * 3000, [], [[]],
    [1, 2], ["a"], {}, {"a": 1}, [None], "<script>", "%s%n", "a/b", "\r\n", "rope", "linear", "none", "auto",
)  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the paths of all values within a JSON value but itself."""
    results = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        results += [(*at, key), *places(inner, (*at, key))]
    return results


def json_value(draw: random.Random, value: Any, odd: tuple[Any, ...] = ODD) -> tuple[Any, str]:
    """Returns a spoilt copy of a JSON object or list, and how it was spoilt."""
    value = copy.deepcopy(value)
    said = []
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        paths = places(value)
        if not paths:
            break
        # Whole files have many more leaves than branches; near the root is where readers look first.
        path = draw.choice(paths) if draw.random() < 0.6 else draw.choice([p for p in paths if len(p) <= 3] or paths)
        node = value
        for key in path[:-1]:
            node = node[key]
        what = draw.choice(("set", "set", "set", "near", "remove", "rename", "nest", "swap"))
        old = node[path[-1]]
        if what == "set":
            node[path[-1]] = copy.deepcopy(draw.choice(odd))
        elif what == "near" and isinstance(old, (int, float)) and not isinstance(old, bool):
            node[path[-1]] = draw.choice(
                (old + 1, old - 1, -old, old * 2, old * 1000, old + 0.5, str(old), [old], 0 * old)
            )
        elif what == "remove":
            del node[path[-1]]
        elif what == "rename" and isinstance(node, dict):
            node[draw.choice((str(path[-1]) + "x", str(path[-1]).upper(), "", "a.b", "model"))] = node.pop(path[-1])
        elif what == "nest":
            node[path[-1]] = {"a": old} if draw.random() < 0.5 else [old]
        elif isinstance(node, dict):
            other = draw.choice(list(node))
            node[path[-1]], node[other] = node[other], node[path[-1]]
        said.append(
            f"{what} {'.'.join(map(str, path))}: {str(node.get(path[-1]) if isinstance(node, dict) else '')[:60]!r}"
        )
    return value, "; ".join(said)


def json_text(draw: random.Random, text: str) -> tuple[bytes, str]:
    """Returns a JSON document spoilt as a value or as text."""
    try:
        value = json.loads(text)
    except ValueError:  # lines of JSON
        lines = text.splitlines()
        at = draw.randrange(len(lines))
        corrupted, how = json_text(draw, lines[at])
        lines[at] = corrupted.decode("utf-8", "surrogateescape")
        return "\n".join([*lines, ""]).encode("utf-8", "surrogateescape"), f"line {at}: {how}"
    if draw.random() < 0.85 and places(value):
        value, how = json_value(draw, value)
        return json.dumps(value).encode(), how
    whole: list[tuple[str, Callable[[], str]]] = [
        ("root is a list", lambda: f"[{text}]"),
        ("root is a number", lambda: "7"),
        ("root is null", lambda: "null"),
        ("root is NaN", lambda: "NaN"),
        ("deep lists", lambda: "[" * 100_000),
        ("deep objects", lambda: '{"a":' * 50_000 + "1" + "}" * 50_000),
        ("a huge number", lambda: text.replace("1", "9" * 5000, 1)),
        ("all keys twice", lambda: text.rstrip()[:-1] + "," + text.lstrip()[1:] if text.strip() not in ("{}", "[]") else text),
        ("a trailing comma", lambda: text.rstrip()[:-1] + ",}"),
        ("a comment", lambda: "// hi\n" + text),
        ("two documents", lambda: text + text),
    ]  # fmt: skip
    name, make = draw.choice(whole)
    return make().encode(), name


def raw(draw: random.Random, content: bytes) -> tuple[bytes, str]:
    """Returns bytes spoilt as a disk, a transfer or an editor spoils them."""
    size = max(1, len(content))
    at = draw.randrange(size)
    text = content.decode("utf-8", "replace")
    ways: list[tuple[str, Callable[[], bytes]]] = [
        ("empty", lambda: b""),
        ("one byte", lambda: bytes([draw.randrange(256)])),
        (f"cut at {at}", lambda: content[:at]),
        (f"begun at {at}", lambda: content[at:]),
        (f"a bit of {at}", lambda: content[:at] + bytes([(content[at] if content else 0) ^ (1 << draw.randrange(8))]) + content[at + 1 :]),
        ("many bits", lambda: _bits(draw, content, 20)),
        (f"NUL at {at}", lambda: content[:at] + b"\0" + content[at:]),
        (f"a run of NULs at {at}", lambda: content[:at] + bytes(min(512, size - at)) + content[at + 512 :]),
        ("a BOM", lambda: b"\xef\xbb\xbf" + content),
        ("UTF-16", lambda: text.encode("utf-16")),
        ("Latin-1", lambda: b"\xe9\xff" + text.encode("latin-1", "replace")),
        (f"0xff at {at}", lambda: content[:at] + b"\xff\xfe" + content[at:]),
        (f"half of a character at {at}", lambda: content[:at] + b"\xe2\x82" + content[at:]),
        ("CRLF", lambda: content.replace(b"\n", b"\r\n")),
        ("twice", lambda: content + content),
        (f"a piece twice at {at}", lambda: content[:at] + content[max(0, at - 64) : at] + content[at:]),
        (f"a piece less at {at}", lambda: content[:at] + content[at + draw.randrange(1, 64) :]),
        ("noise", lambda: draw.randbytes(min(size, 4096))),
        ("blanks", lambda: b" \n\t" * 20),
        (f"noise behind {at}", lambda: content[:at] + draw.randbytes(64)),
    ]  # fmt: skip
    name, make = draw.choice(ways)
    return make(), name


TYPES = (
    "F64",
    "F16",
    "BF16",
    "I64",
    "I32",
    "U64",
    "U8",
    "BOOL",
    "F8_E4M3",
    "C64",
    [],
    [0],
    [0, 0],
    [1, 12],
    [2, 2, 3],
    [0, 8],
    [8, 0],
)


def tensors(draw: random.Random, content: bytes) -> tuple[bytes, str]:
    """Returns safetensors with another header before the same numbers, or other numbers behind the same header."""
    size = int.from_bytes(content[:8], "little")
    header, numbers = content[8 : 8 + size], content[8 + size :]
    if draw.random() < 0.75:
        value, how = json_value(draw, json.loads(header), (*ODD, *TYPES))
        header = json.dumps(value, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    else:
        at = draw.randrange(max(1, len(numbers) // 4)) * 4
        four = {"NaN": b"\0\0\xc0\x7f", "an infinity": b"\0\0\x80\xff", "3e38": b"\xff\xff\x7f\x7f", "-1": b"\xff" * 4}
        how = draw.choice([*four, "bits"])
        numbers = _bits(draw, numbers, 3) if how == "bits" else numbers[:at] + four[how] + numbers[at + 4 :]
        how = f"{how} at {at}"
    return len(header).to_bytes(8, "little") + header + numbers, how


def _bits(draw: random.Random, content: bytes, count: int) -> bytes:
    corrupted = bytearray(content)
    for _ in range(count if content else 0):
        corrupted[draw.randrange(len(corrupted))] ^= 1 << draw.randrange(8)
    return bytes(corrupted)


def place(draw: random.Random, path: Path) -> str:
    """Puts something else where a file should lie; says what."""
    what = draw.choice(("missing", "directory", "full directory", "loop", "dangling", "pipe", "forbidden"))
    if what == "forbidden":
        path.chmod(0)
        return "forbidden"
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if what.endswith("directory"):
        path.mkdir()
        if what.startswith("full"):
            (path / path.name).write_text("{}")
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "loop":
        path.symlink_to(path)
    elif what == "dangling":
        path.symlink_to(path.parent / "nowhere")
    return what


def file(draw: random.Random, path: Path) -> str:
    """Spoils one file in place; says how."""
    chance = draw.random()
    if chance < 0.06:
        return place(draw, path)
    content = path.read_bytes()
    structured = path.suffix in (".json", ".jsonl") and chance < 0.7
    if path.suffix == ".safetensors" and chance < 0.7:
        corrupted, how = tensors(draw, content)
    else:
        corrupted, how = json_text(draw, content.decode()) if structured and content else raw(draw, content)
    path.write_bytes(corrupted)
    return how


@contextlib.contextmanager
def obeying() -> Iterator[None]:
    """Makes file permissions count for root too, as for everybody else: its overrides are put away meanwhile."""
    if os.geteuid():
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this thread
    before = (ctypes.c_uint32 * 6)()
    if libc.capget(header, before):
        yield
        return
    without = (ctypes.c_uint32 * 6)(*before)
    without[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, of what is in effect
    libc.capset(header, without)
    try:
        yield
    finally:
        libc.capset(header, before)
