"""The options of this room's commands, apart from what runs them: --help and completion read them without JAX."""

import argparse
from dataclasses import dataclass

from configs import cli
from configs.evaluations import EVALUATIONS
from configs.fields import listing

DEFAULT = tuple(name for name, evaluation in EVALUATIONS.items() if evaluation.default)
WIDTHS = (64, 128, 256, 512)  # of the coordinate check
# Options of the equivalence that go with --target alone, and what they say.
GRID = {
    "schemes": "kinds of positions in place of the config's, or all",
    "kernels": "which ones",
    "dtypes": "compute dtypes",
    "head_dims": "head dims",
    "lengths": "tokens a row",
}


@dataclass(frozen=True)
class Drawing:
    """How generated tokens are drawn, where nothing is said: temperature 0 takes the likeliest one."""

    max_new: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


def run(description: str) -> argparse.ArgumentParser:
    """Returns the parser of `eval.run`."""
    parser = cli.parser(description)
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the run directory")
    parser.add_argument(
        "--evals",
        default=",".join(DEFAULT),
        metavar="NAMES",
        help=f"comma-separated, of: {', '.join(EVALUATIONS)} (the default: %(default)s)",
    )
    parser.epilog = (
        f"{listing.overview('eval')}\n--config.mesh.context=N evaluates the loss with each row's tokens divided over N "
        "devices."
    )
    return parser


def generate(description: str) -> argparse.ArgumentParser:
    """Returns the parser of `eval.generate`."""
    parser = cli.parser(description)
    parser.add_argument("--workdir", required=True, metavar="RUN", help="the run directory")
    parser.add_argument("--tokens", metavar="IN", help="safetensors file with input_ids and maybe attention_mask")
    parser.add_argument("--out", metavar="OUT", help="with --tokens: the safetensors file to write, whole")
    parser.add_argument("--prompt", metavar="TEXT", help="instead of --tokens: print this text and its continuation")
    default = Drawing()
    parser.add_argument("--max_new", type=int, default=default.max_new, help="tokens to add (default: %(default)s)")
    parser.add_argument(
        "--temperature", type=float, default=default.temperature, help="0: the likeliest token (default); else draw"
    )
    parser.add_argument("--top_p", type=float, default=default.top_p, help="draw from this share of probability alone")
    parser.add_argument("--seed", type=int, default=default.seed, help="of drawing (default: %(default)s)")
    return parser


def profile(description: str) -> argparse.ArgumentParser:
    """Returns the parser of `eval.profile`."""
    parser = cli.parser(description)
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the run directory")
    parser.epilog = listing.overview("eval.throughput")
    return parser


def equivalence(description: str) -> argparse.ArgumentParser:
    """Returns the parser of `eval.equivalence`."""
    parser = cli.parser(description)
    parser.add_argument("--workdir", metavar="DIR", help="a run directory; its eval/equivalence.json is written")
    parser.add_argument("--config", help="a config file, in place of --workdir: its first parameters are tried")
    parser.add_argument("--out", help="with --config: where to write the JSON")
    parser.add_argument("--length", type=int, help="tokens a row; 0: data.length (eval.equivalence.length)")
    parser.add_argument("--batch", type=int, help="rows; 0: data.batch_size (eval.equivalence.batch_size)")
    parser.epilog = "--config.x=v changes a field: any with --config, those of eval with --workdir."
    parser.add_argument("--target", help="with --config: compile for it instead, such as h100:1 or v5e:1x1")
    for name, means in GRID.items():
        parser.add_argument(f"--{name}", help=f"with --target: {means}, separated by commas")
    return parser


def harness(description: str) -> argparse.ArgumentParser:
    """Returns the parser of `eval.harness`."""
    parser = cli.parser(description)
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the run directory")
    parser.add_argument("--tasks", required=True, help="comma-separated names of the harness's tasks")
    parser.add_argument("--include_path", help="a folder of further tasks in YAML files")
    parser.add_argument("--num_fewshot", type=int, help="examples before each question; by default the task's")
    parser.add_argument("--limit", type=int, help="examples a task; all by default")
    parser.add_argument("--batch_size", type=int, default=8, help="rows at once (default: %(default)s)")
    parser.add_argument(
        "--max_lengths", help="comma-separated lengths in tokens, for tasks (RULER) that make their own"
    )
    return parser


def coordinates(description: str) -> argparse.ArgumentParser:
    """Returns the parser of `eval.coordinates`."""
    parser = cli.parser(description)
    parser.add_argument("--config", required=True, metavar="FILE", help="a config file; --config.x=v changes a field")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)), help="two or more (%(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="of Adam, at optimizer.learning_rate (%(default)s)")
    parser.add_argument("--seeds", type=int, default=2, help="that are averaged over (%(default)s)")
    parser.add_argument(
        "--grow", choices=("num_heads", "head_dim"), default="num_heads", help="with width (%(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the numbers there")
    return parser
