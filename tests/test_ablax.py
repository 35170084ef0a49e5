"""The command `ablax`: every command from any folder, --help and completion without JAX."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from configs import base, cli, commands, completion
from configs.errors import UserError
from configs.evaluations import EVALUATIONS
from sweeps.launchers.registry import LAUNCHERS

CHECKOUT = Path(__file__).resolve().parents[1]
# What the installed script does: the module is found by its file, and the checkout is not on the path.
SCRIPT = (
    "import importlib.util as u, sys; s = u.spec_from_file_location('ablax', {file!r}); m = u.module_from_spec(s); "
    "sys.modules['ablax'] = m; s.loader.exec_module(m); sys.argv[0] = 'ablax'; m.main()"
).format(file=str(CHECKOUT / "ablax.py"))


def ablax(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", SCRIPT, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def offered(*words: str) -> list[str]:
    return [name for name, _ in completion.candidates(words)]


def test_the_installed_script_is_this_module() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"ablax": "ablax:main"}
    assert project["tool"]["setuptools"]["py-modules"] == ["ablax"]


def test_a_run_from_another_folder_takes_its_files_there_and_presets_from_the_checkout(tmp_path) -> None:
    (tmp_path / "configs").mkdir()
    small = "from configs import tiny\n\ndef get_config():\n    config = tiny.get_config()\n"
    for path, seed in (("mine.py", 5), ("configs/lm.py", 6)):  # the second has the name of one of the checkout's
        (tmp_path / path).write_text(f"{small}    config.seed = {seed}\n    return config\n")
    (tmp_path / "corpus.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    few = [
        "--quiet", "--config.budget.amount=2", "--config.model.width=16", "--config.model.num_layers=1",
        "--config.data.path=corpus.txt", "--config.data.tokenizer=byte", "--config.model.vocab_size=256",
    ]  # fmt: skip
    done = ablax(tmp_path, "train", "--config=mine.py", "--workdir=out", *few)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["seed"] == 5 and config["data"]["path"] == "corpus.txt"
    for given, seed in (("configs/lm.py", 6), ("configs/tiny.py", base.SCHEMA["seed"].default)):
        probe = f"from configs import cli; print(cli.load({given!r}).seed)"
        env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        said = subprocess.run(
            [sys.executable, "-P", "-c", probe], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert said.stdout.strip() == str(seed), said.stderr


@pytest.mark.slow
def test_a_sweep_with_workers_from_another_folder(tmp_path) -> None:
    (tmp_path / "sweep.py").write_text(
        "def get_sweep():\n"
        "    return dict(base='configs/tiny.py', axes=[{'model.num_heads': [1, 2]}], evals=['loss'],\n"
        "                fixed={'budget.amount': 2, 'eval.tokens': 512})\n"
    )
    done = ablax(tmp_path, "sweep", "--sweep=sweep.py", "--out=swept")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "swept" / "report" / "index.html").is_file()
    said = ablax(tmp_path, "status", "swept")
    assert said.returncode == 0 and "2 done" in said.stdout, said.stdout


def test_a_mistake_in_the_command_is_one_line(tmp_path) -> None:
    for arguments, line in (
        (["trian"], "error: ablax trian: no such command; did you mean train? (ablax --help lists them)"),
        (["sweeps.launch"], "error: ablax sweeps.launch: no such command; did you mean sweep?"),
        (["convert"], "error: ablax convert: must be one of from_hf, to_hf, surgery"),
        (["completion", "fsh"], "error: ablax completion fsh: must be bash, zsh, fish; did you mean fish?"),
        (["train", "--config=configs/tiny.py", "--workdir=r", "model.num_heads=8"], "error: unrecognized arguments"),
        (["plan", "--sweep=x.py", "num_heads=8"], "error: unrecognized arguments: num_heads=8; a field is"),
    ):  # fmt: skip
        done = ablax(tmp_path, *arguments)
        assert done.returncode == 2 and done.stderr.startswith(line) and done.stderr.count("\n") == 1, done.stderr


def test_hints_name_the_command_as_it_was_started(monkeypatch) -> None:
    assert commands.spelled("sweeps.cancel") == "python -m sweeps.cancel"
    monkeypatch.setattr(commands, "_console", True)
    assert commands.spelled("sweeps.cancel") == "ablax cancel"
    assert commands.spelled("tests.torture") == "python -m tests.torture"


def test_help_and_completion_load_no_jax(tmp_path) -> None:
    code = (
        "import sys; from configs import commands, completion\n"
        "for name, command in commands.COMMANDS.items():\n"
        "    assert command.parser().format_help()\n"
        "    completion.candidates([*name.split(), '--'])\n"
        "    assert 'jax' not in sys.modules and 'orbax' not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=True)
    done = ablax(tmp_path, "fields", "optimizer")
    assert done.returncode == 0 and "optimizer.learning_rate" in done.stdout and "a number, above 0" in done.stdout


@pytest.mark.parametrize("name", [name for name, command in commands.COMMANDS.items() if command.options])
def test_options_declared_apart_are_those_that_the_command_takes(name: str) -> None:
    command = commands.COMMANDS[name]
    taken, declared = cli.parser_of(command.main()), command.parser()
    assert declared.format_help() == taken.format_help()


def test_every_command_of_the_rooms_is_listed() -> None:
    rooms = ("convert", "data", "eval", "report", "sweeps")
    found = [path for room in rooms for path in (CHECKOUT / room).glob("*.py") if "cli.main(main)" in path.read_text()]
    modules = {f"{path.parent.name}.{path.stem}" for path in found}
    assert modules <= {command.module for command in commands.COMMANDS.values()}


def test_completion_of_commands_options_and_values() -> None:
    assert {"train", "sweep", "convert", "completion"} <= {*offered("")}
    assert offered("sta") == ["status"] and offered("convert", "t") == ["to_hf"] and offered("nonsense", "") == []
    assert offered("completion", "") == ["bash", "zsh", "fish"]
    assert "--workdir=" in offered("train", "--") and "--quiet" in offered("train", "--q")
    assert offered("sweep", "--launcher=") == [f"--launcher={name}" for name in LAUNCHERS]
    assert offered("eval", "--evals", "") == list(EVALUATIONS)
    assert offered("convert", "surgery", "") == ["kv_heads", "rope", "drop_heads"]
    assert offered("convert", "surgery", "kv_heads", "--pool=f") == ["--pool=first", "--pool=fresh"]
    assert "--config=configs/tiny.py" in offered("train", "--config=configs/t")
    assert offered("train", "--workdir=") == []  # the shell offers files


def test_completion_of_fields_goes_level_by_level() -> None:
    assert "--config.model." in offered("train", "--config.") and "--config.seed=" in offered("train", "--config.s")
    inside = offered("train", "--config.model.")
    assert {"--config.model.num_heads=", "--config.model.position."} <= {*inside}
    assert all(name.startswith("--config.model.") and name.count(".") <= 3 for name in inside)
    assert offered("train", "--config.optimizer.schedule=") == [
        f"--config.optimizer.schedule={kind}" for kind in ("cosine", "wsd", "constant")
    ]
    assert offered("train", "--noconfig.log.") == ["--noconfig.log.tensorboard"]
    assert offered("eval", "--config.") == ["--config.eval."] and offered("status", "--config.") == []
    reached = {"--config."}
    for _ in range(6):
        reached |= {one for start in reached if start.endswith(".") for one in offered("train", start)}
    assert {f"--config.{name}=" for name in base.SCHEMA} <= reached


@pytest.fixture
def script(tmp_path) -> dict[str, str]:
    """The environment of a shell that finds `ablax`."""
    path = tmp_path / "ablax"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{CHECKOUT / "ablax.py"}" "$@"\n')
    path.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("ablax sta", ["status"]),
        ("ablax train --config.model.num_h", ["--config.model.num_heads="]),
        ("ablax train --config.optimizer.kind=lio", ["lion"]),  # bash replaces what stands behind `=`
    ],
)
def test_bash_completes(script, line: str, offers: list[str]) -> None:
    asked = (
        f"compopt() {{ :; }}\nsource <(ablax completion bash)\nCOMP_LINE={line!r}\nCOMP_POINT=${{#COMP_LINE}}\n_ablax\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", asked], env=script, capture_output=True, text=True)
    assert done.stdout.split() == offers, done.stderr


def test_an_unknown_shell_is_refused() -> None:
    with pytest.raises(UserError, match="must be bash, zsh, fish"):
        completion.main(["completion", "tcsh"])


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_completes(script) -> None:
    asked = 'ablax completion fish | source; complete -C "ablax train --config.model.num_h"'
    done = subprocess.run(["fish", "-c", asked], env=script, capture_output=True, text=True)
    assert done.stdout.split("\t")[0].strip() == "--config.model.num_heads=", done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
def test_zsh_completes(script) -> None:
    asked = (
        "compdef() { :; }\ncompset() { :; }\n_files() { print files; }\ncompadd() { print -r -- $@[-1]; }\n"
        "source <(ablax completion zsh)\n"
        "for line in 'ablax sta' 'ablax train --config.optimizer.kind=lio' 'ablax train --workdir='; do\n"
        "    words=(${(s: :)line}); CURRENT=$#words; _ablax\ndone"
    )
    done = subprocess.run(["zsh", "-f", "-c", asked], env=script, capture_output=True, text=True)
    assert done.stdout.split() == ["status", "--config.optimizer.kind=lion", "files"], done.stderr


@pytest.mark.parametrize("module", ["configs.cli", "configs.completion"])
def test_an_interrupt_while_modules_load_is_one_line(module: str) -> None:
    code = (
        "import os, signal, sys, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Finder:\n    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n            os.kill(os.getpid(), signal.SIGINT)\n            time.sleep(5)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    command = [sys.executable, "-P", "-c", code + SCRIPT, "completion", "bash"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
