"""Shell completion of `ablax`: `source <(ablax completion bash)`; zsh likewise; fish `ablax completion fish | source`.

The scripts ask `ablax complete WORDS...` what could stand in place of the last word: commands, options, config fields
(`--config.model.`), and the values of options and fields that have choices. Where that gives nothing, the shell offers
files. No JAX.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from configs import base, cli, commands
from configs.errors import UserError, nearest
from configs.evaluations import EVALUATIONS

FILES = ("config", "sweep")  # options whose file may be one of the checkout's

BASH = r"""# ablax completion bash
_ablax() {
    local line="${COMP_LINE:0:COMP_POINT}" current="" IFS=$' \t\n'
    local -a words
    read -r -a words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    current="${words[-1]}"
    IFS=$'\n'
    COMPREPLY=($(ablax complete "${words[@]:1}" 2>/dev/null | cut -f1))
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *[=.] ]] && compopt -o nospace
    # bash completes the part behind the last of these characters alone
    local before="${current%"${current##*[=:]}"}"
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
}
complete -o default -F _ablax ablax
"""
ZSH = r"""#compdef ablax
_ablax() {
    local -a found plain open
    local line
    found=("${(@f)$(ablax complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    for line in $found; do
        line="${line%%$'\t'*}"
        if [[ "$line" == *[=.] ]]; then open+=("$line"); elif [[ -n "$line" ]]; then plain+=("$line"); fi
    done
    (( $#plain )) && compadd -- $plain
    (( $#open )) && compadd -S '' -- $open
    if (( ! $#plain && ! $#open )); then
        compset -P '*='
        _files
    fi
}
if [[ "$funcstack[1]" == "_ablax" ]]; then _ablax "$@"; else compdef _ablax ablax; fi
"""
FISH = r"""# ablax completion fish
function __ablax_complete
    set -l words (commandline -opc) (commandline -ct)
    ablax complete $words[2..-1] 2>/dev/null
end
complete -c ablax -a '(__ablax_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def main(argv: Sequence[str]) -> int:
    """Runs `ablax completion SHELL` and `ablax complete WORDS...`."""
    if argv[0] == commands.COMPLETE:
        for candidate, description in candidates(argv[1:]):
            print(f"{candidate}\t{description}" if description else candidate)
        return 0
    shell = argv[1] if len(argv) > 1 else ""
    if shell in ("-h", "--help"):
        print(__doc__)
        return 0
    if shell not in SCRIPTS:
        raise UserError(f"ablax completion {shell}: must be {', '.join(SCRIPTS)}{nearest(shell, SCRIPTS)}")
    print(SCRIPTS[shell], end="")
    return 0


def candidates(words: Sequence[str]) -> list[tuple[str, str]]:
    """Returns what could stand in place of the last word of a command line, each with a description.

    Args:
        words: those behind `ablax`; the last one, which may be empty, is being typed.
    """
    *before, current = words or [""]
    name, rest = commands.split(before)
    if name not in commands.COMMANDS:
        return _starting(_names(before), current)
    command = commands.COMMANDS[name]
    if current.startswith(("--config.", "--noconfig.")):
        return [] if command.fields is None else _fields(current, command.fields)
    parser = command.parser()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            if not rest:
                return _starting([(choice, "") for choice in action.choices], current)
            parser = action.choices.get(rest[0], parser)
    option, separator, value = current.partition("=")
    if separator:
        return [(f"{option}={found}", "") for found in _values(parser, option) if found.startswith(value)]
    if rest and rest[-1].startswith("--") and "=" not in rest[-1] and _takes_value(parser, rest[-1]):
        return _starting([(found, "") for found in _values(parser, rest[-1])], current)
    if not current.startswith("-"):
        return []
    options = [(_spelled(action), _described(action)) for action in parser._actions if action.option_strings]
    if command.fields is not None:
        options.append(("--config.", "sets a config field"))
    return _starting(options, current)


def _names(before: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the commands that could follow: those of one word, or a group's."""
    if not before:
        single = [(name, one.summary) for name, one in commands.COMMANDS.items() if " " not in name]
        return [*single, *((group, "") for group in commands.GROUPS), (commands.COMPLETION, "")]
    if list(before) == [commands.COMPLETION]:
        return [(shell, "") for shell in commands.SHELLS]
    if len(before) > 1:
        return []
    inside = [(name.split(), one.summary) for name, one in commands.COMMANDS.items() if " " in name]
    return [(name, summary) for (group, name), summary in inside if group == before[0]]


def _starting(found: Iterable[tuple[str, str]], current: str) -> list[tuple[str, str]]:
    return [(name, description) for name, description in found if name.startswith(current)]


def _spelled(action: argparse.Action) -> str:
    name = next((one for one in action.option_strings if one.startswith("--")), action.option_strings[0])
    return f"{name}=" if action.nargs is None else name


def _described(action: argparse.Action) -> str:
    if not action.help:
        return ""
    shown = {key: value for key, value in vars(action).items() if not callable(value)}
    return " ".join((action.help % shown).split())


def _takes_value(parser: argparse.ArgumentParser, option: str) -> bool:
    return any(option in action.option_strings and action.nargs is None for action in parser._actions)


def _values(parser: argparse.ArgumentParser, option: str) -> list[str]:
    """Returns the values of an option that has choices; none: the shell offers files."""
    action = next((one for one in parser._actions if option in one.option_strings), None)
    if action is None:
        return []
    if choices := action.choices or getattr(action, "values", None):
        return [str(choice) for choice in choices]
    if action.dest == "evals":
        return list(EVALUATIONS)
    if action.dest in FILES:
        return _files(action.dest)
    return []


def _files(option: str) -> list[str]:
    """Returns the checkout's configs or sweeps, and what lies in the user's folder under such a name."""
    needle = f"\ndef get_{option}("
    presets = sorted((cli.CHECKOUT / "configs").rglob("*.py"))
    found = [path.relative_to(cli.CHECKOUT) for path in presets if needle in path.read_text(encoding="utf-8")]
    here = [path for path in sorted(Path().glob("*.py")) if needle in path.read_text(encoding="utf-8", errors="ignore")]
    return list(dict.fromkeys(path.as_posix() for path in [*here, *found]))


def _fields(current: str, within: str) -> list[tuple[str, str]]:
    """Returns the config fields or groups that a word could become, one level at a time; behind `=` its choices."""
    dashes, _, typed = current.partition("config.")
    name, separator, value = typed.partition("=")
    if separator:
        return [(f"{dashes}config.{name}={choice}", "") for choice in _choices(name) if choice.startswith(value)]
    found: dict[str, str] = {}
    for full, field in base.SCHEMA.items():
        if not (full.startswith(name) and full.startswith(within)) or (dashes == "--no" and field.type is not bool):
            continue
        level, dot, _ = full[len(name) :].partition(".")
        if dot:
            found.setdefault(f"{dashes}config.{name}{level}.", "")
        else:
            found[f"{dashes}config.{full}{'=' if dashes == '--' else ''}"] = field.meaning
    return list(found.items())


def _choices(name: str) -> list[str]:
    field = base.SCHEMA.get(name)
    if field is None:
        return []
    if field.type is bool:
        return ["true", "false"]
    return list(field.allowed.names) if field.allowed is not None and field.type is str else []
