"""The command line, the same for every command: `--config=FILE`, `--config.field=value`, one line per user's error."""

import argparse
import errno
import importlib.util
import io
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from configs import environment, fields, interrupt
from configs.documents import read_json
from configs.errors import ConfigError, UserError, nearest
from configs.redaction import redacted
from configs.terminal import plain

CHECKOUT = Path(__file__).resolve().parent.parent
OVERRIDE = re.compile(r"--(no)?config\.([^=]+)(?:=(.*))?", re.DOTALL)


def load_module(path: str | Path, near: Path | None = None) -> ModuleType:
    """Runs a config or sweep file and returns it as a module.

    Relative paths are tried from the working directory, from `near` (the folder of the file that names it) and from
    the checkout.

    Raises:
        UserError: no such file, or the file itself fails; then the file and line are named.
    """
    tried = [Path(path), *([near / path] if near else []), CHECKOUT / path]
    result = next((candidate.resolve() for candidate in tried if candidate.is_file()), None)
    if result is None and any(candidate.is_dir() for candidate in tried):
        raise UserError(f"{path}: is a folder without a config.json; give a file, or a run directory")
    if result is None:
        presets = sorted(p.relative_to(CHECKOUT).as_posix() for p in (CHECKOUT / "configs").rglob("*.py"))
        presets = [p for p in presets if "\ndef get_" in (CHECKOUT / p).read_text(encoding="utf-8")]
        named = [p for p in presets if Path(p).stem == Path(path).stem]
        hint = f"; did you mean {named[0]}?" if named else nearest(str(path), presets)
        raise UserError(f"no file {path}{hint or '; there are ' + ', '.join(presets)}")
    spec = importlib.util.spec_from_file_location(f"ablax_file_{result.stem}", result)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise failed(path, error, result) from error
    return module


def failed(path: str | Path, error: BaseException, file: Path) -> UserError:
    """Returns the message for a failure inside a config or sweep file, with its line if it is one of the file's."""
    return UserError(f"{path}: {_place(error, file)}{type(error).__name__}: {error}")


def _place(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f"line {error.lineno}: "
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f"line {lines[-1]}: " if lines else ""


def load(path: str | Path, overrides: dict[str, Any] | None = None, near: Path | None = None) -> ConfigDict:
    """Returns the config that a file's `get_config()` gives, with overrides (values, not text) applied.

    `FILE:argument` calls `get_config(argument)`. A run directory, or its config.json, gives that run's settings.

    Raises:
        UserError: the file is missing or fails; ConfigError: a field is unknown or has the wrong type.
    """
    written = _written(Path(path), near)
    if written is not None:
        apply(written, overrides or {})
        return written
    name, _, argument = str(path).partition(".py:")
    name = f"{name}.py" if argument else name
    module = load_module(name, near)
    if not hasattr(module, "get_config"):
        kind = " (it is a sweep: use python -m sweeps.launch --sweep)" if hasattr(module, "get_sweep") else ""
        raise UserError(f"{path}: has no get_config(){kind}")
    try:
        given = module.get_config(argument) if argument else module.get_config()
    except (Exception, SystemExit) as error:
        raise failed(path, error, Path(module.__file__ or name)) from error
    if not isinstance(given, ConfigDict):
        raise UserError(f"{path}: get_config() gave {type(given).__name__}, must be an ml_collections ConfigDict")
    config = fields.from_dict(given.to_dict(), source=str(path))
    apply(config, overrides or {})
    return config


def _written(path: Path, near: Path | None) -> ConfigDict | None:
    """Reads a config.json or the one of a run directory; None: the path is neither."""
    for candidate in [path, *([near / path] if near else []), CHECKOUT / path]:
        file = candidate / "config.json" if candidate.is_dir() else candidate
        if file.suffix == ".json" and file.is_file():
            values = read_json(file)
            if not isinstance(values, dict):
                raise UserError(f"{file}: must hold a JSON object")
            return fields.from_dict(values, source=str(file))
    return None


def apply(config: ConfigDict, overrides: dict[str, Any]) -> None:
    """Sets dotted fields in place; every problem is reported at once.

    Raises:
        ConfigError: unknown fields or wrong types.
    """
    problems = []
    for name, value in overrides.items():
        try:
            fields.set_field(config, name, value)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)


def split_overrides(argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Takes `--config.x=v`, `--config.x v`, `--config.flag` and `--noconfig.flag` out of a command line.

    Returns:
        ({dotted name: value of the field's type}, the other arguments).

    Raises:
        ConfigError: unknown fields or values that cannot be read, all of them.
    """
    kinds = fields.types()
    overrides: dict[str, Any] = {}
    problems: list[str] = []
    rest: list[str] = []
    pending = list(argv)
    while pending:
        item = pending.pop(0)
        match = OVERRIDE.fullmatch(item)
        if not match:
            rest.append(item)
            continue
        negated, name, text = match.groups()
        kind = kinds.get(name)
        try:
            if kind is None:
                if text is None and pending and not pending[0].startswith("--"):
                    text = pending.pop(0)
                fields.set_field(ConfigDict(), name, text)
            elif kind is bool and text is None:
                overrides[name] = not negated
            else:
                if text is None and not pending:
                    raise ConfigError(f"--config.{name}: needs a value, {fields.describe(kind)}")
                overrides[name] = fields.parse_text(name, pending.pop(0) if text is None else text, kind or str)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return overrides, rest


class _Captured(Exception):
    """Ends a command once its parser is made."""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake in one line and answers an unknown option with the nearest real one."""

    captured: "list[Parser] | None" = None  # where parsers go instead of parsing (`parser_of`)

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what was given and what is unknown; an empty text where a path or a name is needed is refused.

        It is a shell's variable that was not set; as a path it would be the folder one happens to be in.
        """
        if Parser.captured is not None:
            Parser.captured.append(self)
            raise _Captured
        arguments, unknown = super().parse_known_args(*args, **kwargs)
        for action in self._actions:
            value = getattr(arguments, action.dest, None)
            if action.default is None and "" in (value if isinstance(value, list) else [value]):
                self.error(f"{'/'.join(action.option_strings) or action.metavar or action.dest}: is empty")
            for text in value if isinstance(value, list) else [value]:
                bad = re.search("[\ud800-\udfff]", text) if isinstance(text, str) else None
                if bad:
                    name = "/".join(action.option_strings) or action.metavar or action.dest
                    self.error(f"{name}: is not valid UTF-8 at character {bad.start()}: {text!a}")
        return arguments, unknown

    def error(self, message: str) -> Any:
        """Raises the message as a user's error."""
        unknown = re.search(r"unrecognized arguments: (\S+)", message)
        if unknown:
            options = [option for action in self._actions for option in action.option_strings]
            name, separator, value = unknown.group(1).lstrip("-").removeprefix("config.").partition("=")
            named = [one for one in fields.types() if one == name or one.endswith(f".{name}")]
            if named:
                message += f"; a field is set by --config.{min(named, key=len)}{separator}{value}"
            else:
                message += nearest(unknown.group(1).split("=")[0], options)
        raise UserError(f"{message} (see --help)")


def parser(description: str) -> Parser:
    """Returns a parser for one command; `description` opens its --help."""
    return Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)


def parser_of(function: Callable[[list[str]], Any]) -> Parser:
    """Returns the parser of a command's `main`, which is called up to the point where it parses its arguments."""
    Parser.captured = []
    try:
        function([])
    except _Captured:
        return Parser.captured[0]
    finally:
        Parser.captured = None
    raise TypeError(f"{function.__module__}.{function.__qualname__} makes no parser by cli.parser")


# Failures of a disk, or of a path that was given, rather than of the program.
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE}
DISK |= {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}


def _answered(function: Callable[[list[str]], int | None]) -> int | None:
    """Calls a command; what fails because Ctrl-C came, an import say, counts as interrupted."""
    try:
        return function(sys.argv[1:])
    except Exception as error:
        if interrupt.answered():
            raise KeyboardInterrupt from error
        raise
    finally:
        interrupt.answered()


def main(function: Callable[[list[str]], int | None]) -> None:
    """Runs a command: `function(argv)`; a user's error becomes one line (each problem one) and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may have a name that the terminal cannot show
    environment.pin()
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if default and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt.handler)
    try:
        code = _answered(function)
    except UserError as error:
        for line in str(error).splitlines():
            print(f"error: {plain(redacted(line))}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # what reads the output has enough of it, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if error.errno not in DISK:
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"error: {where}{error.strerror}; nothing more was written", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(code or 0)
