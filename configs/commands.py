"""The commands of `ablax`, a line each: the module that runs it, and where its options are declared. No JAX.

`ablax NAME` is `python -m MODULE` from any folder.
"""

import ast
import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from configs import cli
from configs.errors import UserError, nearest


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        module: whose `main(argv)` runs it.
        summary: what it does, in a line of `ablax --help`.
        options: `module:function` that gives the parser, of a command whose own module imports JAX or pandas; empty:
            the module is light, and its `main` makes the parser.
        fields: the config fields that `--config.` sets there begin with this; None: it sets none.
    """

    module: str
    summary: str
    options: str = ""
    fields: str | None = None

    def main(self) -> Callable[[list[str]], int | None]:
        """Returns what runs it."""
        return importlib.import_module(self.module).main

    def parser(self) -> cli.Parser:
        """Returns its parser, without JAX."""
        if not self.options:
            return cli.parser_of(self.main())
        module, _, function = self.options.partition(":")
        return getattr(importlib.import_module(module), function)(docstring(self.module))


COMMANDS: dict[str, Command] = {
    "train": Command("train", "trains one config into a run directory, or continues it", fields=""),
    "eval": Command("eval.run", "measures a run: loss, retrieval, throughput, memory", "eval.options:run", "eval."),
    "generate": Command("eval.generate", "continues a prompt, or token ids from a file", "eval.options:generate"),
    "sweep": Command("sweeps.launch", "runs a sweep file, or goes on with it; then the report", fields=""),
    "status": Command("sweeps.status", "a line for every run of a sweep"),
    "cancel": Command("sweeps.cancel", "saves the runs of a sweep and ends them"),
    "plan": Command("sweeps.plan", "what every arm of a sweep costs, before anything is trained", fields=""),
    "report": Command("report.build", "builds the report of a sweep or a run", "report.options:build"),
    "compare": Command("report.compare", "compares sweeps or runs from several folders", "report.options:compare"),
    "study": Command("studies.run", "runs a published comparison again, with its pages"),
    "ladder": Command("report.ladder", "gain in compute of every arm of a ladder"),
    "fields": Command("configs.fields.__main__", "every config field: default, allowed values, unit"),
    "inspect": Command("data.inspect", "shows the data of a config: documents, tokens, rows", fields=""),
    "profile": Command("eval.profile", "where the time of a step goes", "eval.options:profile", "eval.throughput."),
    "equivalence": Command(
        "eval.equivalence.__main__", "every attention kernel against the reference", "eval.options:equivalence", ""
    ),
    "harness": Command("eval.harness", "lm-evaluation-harness on a run", "eval.options:harness"),
    "coordinates": Command("eval.coordinates", "the coordinate check of muP", "eval.options:coordinates", ""),
    "kv_cache": Command("eval.kv_cache", "bytes of a KV cache, of a config or a published model", fields=""),
    "convert from_hf": Command("convert.from_hf", "a transformers checkpoint to a run", "convert.options:from_hf", ""),
    "convert to_hf": Command("convert.to_hf", "a run to a transformers checkpoint", "convert.options:to_hf"),
    "convert surgery": Command(
        "convert.surgery", "fewer KV heads, other positions, heads removed", "convert.options:surgery", ""
    ),
}
GROUPS = tuple(dict.fromkeys(name.split()[0] for name in COMMANDS if " " in name))
SHELLS = ("bash", "zsh", "fish")
COMPLETION = "completion"  # prints a shell's script, which asks `ablax complete WORDS...` at each tab
COMPLETE = "complete"


def docstring(module: str) -> str:
    """Returns a module's docstring, without importing it."""
    path = cli.CHECKOUT / f"{module.replace('.', '/')}.py"
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def spelled(module: str) -> str:
    """Returns how a command is written where this process was started: `ablax cancel`, or `python -m sweeps.cancel`."""
    name = next((name for name, command in COMMANDS.items() if command.module == module), "")
    return f"ablax {name}" if _console and name else f"python -m {module}"


_console = False  # whether this process was started as `ablax`


def main(argv: list[str]) -> int | None:
    """Runs `ablax ARGUMENTS`, but for completion, which knows all of these commands."""
    global _console
    _console = True
    if argv[:1] in (["--version"], ["-V"]):
        print(f"ablax {importlib.metadata.version('ablax')} in {cli.CHECKOUT}")
        return 0
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if argv else 2
    name, rest = split(argv)
    if name not in COMMANDS:
        raise UserError(_unknown(argv))
    sys.argv[0] = f"ablax {name}"  # which argparse names in its messages
    command = COMMANDS[name]
    if {"-h", "--help"} & {*rest} and command.options:
        command.parser().parse_args([word for word in rest if not word.startswith(("--config.", "--noconfig."))])
    return command.main()(rest)


def split(words: Sequence[str]) -> tuple[str, list[str]]:
    """Returns a command's name, of one word or of two (`convert from_hf`), and the words after it."""
    many = 2 if words[:1] and words[0] in GROUPS else 1
    return " ".join(words[:many]), list(words[many:])


def _unknown(argv: Sequence[str]) -> str:
    names = [*COMMANDS, COMPLETION]
    if argv[0] in GROUPS:
        inside = [name.split()[1] for name in names if name.startswith(f"{argv[0]} ")]
        given = argv[1] if len(argv) > 1 else ""
        return f"ablax {argv[0]}{' ' * bool(given)}{given}: must be one of {', '.join(inside)}{nearest(given, inside)}"
    modules = {command.module: name for name, command in COMMANDS.items()}
    guess = f"; did you mean {modules[argv[0]]}?" if argv[0] in modules else nearest(argv[0], names)
    return f"ablax {argv[0]}: no such command{guess} (ablax --help lists them)"


def overview() -> str:
    """Returns what `ablax --help` prints."""
    rows: Mapping[str, str] = {name: command.summary for name, command in COMMANDS.items()}
    rows = {**rows, f"{COMPLETION} SHELL": f"prints the completion script of {', '.join(SHELLS)}"}
    width = max(map(len, rows))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in rows.items()]
    return "\n".join(
        [
            "usage: ablax COMMAND [OPTIONS]   (ablax COMMAND --help says more)",
            "",
            "Fair, fast ablations of attention in JAX.",
            "",
            *lines,
            "",
            f"The checkout: {cli.CHECKOUT}. Paths are relative to this folder; configs also to the checkout.",
        ]
    )
