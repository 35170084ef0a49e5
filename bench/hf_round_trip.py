"""Checkpoints of transformers against ours, in both directions: `make bench-hf`.

Makes a separate environment with PyTorch and transformers (they are not dependencies of the project), and compares, for
every family of `convert`,

1. transformers' random checkpoint -> convert.from_hf -> eval.generate: logits (also of left-padded rows, at real
   tokens) and greedy tokens through our KV cache, against transformers' own;
2. that run, and random runs of our own -> convert.to_hf -> transformers' own load: the same.

Prints a table with the largest absolute error of each; exit code 1 if one exceeds the tolerance or a token differs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

import jax  # noqa: E402
import numpy as np  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402

from bench.environment import environment  # noqa: E402
from bench.hf_cases import OWN, THEIRS, VOCAB, Own  # noqa: E402
from configs import base, cli, validate  # noqa: E402
from convert import from_hf, to_hf  # noqa: E402
from convert.writing import write_run  # noqa: E402
from eval import generate  # noqa: E402
from eval.progress import Quiet, Reporter  # noqa: E402
from models import initialise  # noqa: E402
from training.runtime import compilation  # noqa: E402

TOLERANCE = 2e-4  # of logits, absolute, float32
LENGTH, NEW = 40, 8  # past the original length (32) of scalings that depend on it


def theirs(python: Path, command: str, cases: Sequence[dict[str, Any]], folder: Path) -> dict[str, str]:
    """Runs the transformers side on cases and returns its versions."""
    job = folder / f"{command}.json"
    job.write_text(json.dumps(cases))
    line: list[str | Path] = [python, Path(__file__).parent / "hf_side.py", command, job]
    done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def ours(run: Path, expected: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """Returns a run's outputs for the prompts of `expected`, as in `python -m eval.generate`."""
    source, out = folder / "in.safetensors", folder / "out.safetensors"

    def call(mask: np.ndarray, new: int) -> dict[str, np.ndarray]:
        save_file({"input_ids": expected["input_ids"], "attention_mask": mask}, source)
        generate.from_tokens(run, source, out, generate.Settings(max_new=new), Quiet())
        return load_file(out)

    padded = call(expected["attention_mask"], 0)["logits"]
    return {**call(np.ones_like(expected["attention_mask"]), NEW), "logits_padded": padded}


def error(results: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> tuple[float, float, bool]:
    """Returns the largest differences of logits, of padded rows' logits at real tokens, and whether tokens agree."""
    real = expected["attention_mask"].astype(bool)
    plain = np.abs(results["logits"] - expected["logits"]).max()
    padded = np.abs(results["logits_padded"] - expected["logits_padded"])[real].max()
    return float(plain), float(padded), bool((results["tokens"] == expected["tokens"]).all())


def own_run(case: Own, folder: Path) -> Path:
    """Writes a random run of ours, with norms and biases perturbed from their constant initial values."""
    values = {
        "model.vocab_size": VOCAB,
        "model.width": 32,
        "model.num_layers": 2,
        "model.num_heads": 4,
        "model.init_std": 0.15,
        "data.weights.text": 0.0,
        "data.weights.mqar": 1.0,
        "data.length": 64,
    }
    config = base.get_config()
    cli.apply(config, values | case.fields)
    config = validate.resolve(config)
    draw = np.random.default_rng(0)
    params = jax.tree.map(lambda x: x + 0.1 * draw.standard_normal(x.shape), initialise(config.model, 0)[1])
    return write_run(folder, config, params, origin={"kind": "bench"})


def rows(python: Path, folder: Path, message: Reporter) -> Iterator[tuple[str, str, str, float, float, bool]]:
    """Yields (direction, family, case, error, error of padded rows, whether tokens agree) for every case."""

    def case(name: str, **more: Any) -> dict[str, Any]:
        files = {"folder": str(folder / name / "checkpoint"), "expected": str(folder / name / "expected.safetensors")}
        (folder / name).mkdir()
        return {"name": name, "length": LENGTH, "new": NEW, **files, **more}

    made = [
        case(f"theirs{i}", model_type=one.model_type, config=one.config, schema=one.schema)
        for i, one in enumerate(THEIRS)
    ]
    message.say(f"transformers makes {len(made)} checkpoints")
    versions = theirs(python, "make", made, folder)
    exports, labels, results = [], [], []
    for one, job in message.track("cases", list(zip(THEIRS, made, strict=True))):
        expected = load_file(job["expected"])
        run = from_hf.convert(job["folder"], folder / job["name"] / "run")
        result = ours(run, expected, folder)
        label = f"{one.name} ({one.schema})"
        yield "from_hf", one.model_type, label, *error(result, expected)
        exports.append(case(f"back_{job['name']}"))
        to_hf.export(run, exports[-1]["folder"])
        labels.append((one.model_type, label))
        results.append(result)
    for i, own in message.track("own runs", list(enumerate(OWN))):
        run = own_run(own, folder / f"own{i}")
        exports.append(case(f"exported{i}"))
        to_hf.export(run, exports[-1]["folder"])
        family = json.loads((Path(exports[-1]["folder"]) / "config.json").read_text())["model_type"]
        if family != own.model_type:
            raise SystemExit(f"{own.name}: was exported as {family}, expected {own.model_type}")
        labels.append((family, f"{own.name} (own run)"))
        expected = load_file(made[0]["expected"])  # for its prompts, which are the same in all cases
        results.append(ours(run, expected, folder))
    message.say(f"transformers loads {len(exports)} exports")
    theirs(python, "load", exports, folder)
    for job, (family, label), result in zip(exports, labels, results, strict=True):
        yield "to_hf", family, label, *error(result, load_file(job["expected"]))
    message.say(", ".join(f"{name} {version}" for name, version in versions.items()))


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--environment", type=Path, default=CHECKOUT / "build" / "hf", help="its folder, created if absent"
    )
    parser.add_argument("--python", type=Path, help="an existing Python with the packages, instead")
    args = parser.parse_args(argv)
    began, message = time.perf_counter(), Reporter()
    compilation.enable_cache()
    python = args.python or environment(args.environment)
    with tempfile.TemporaryDirectory() as folder:
        result = list(rows(python, Path(folder), message))
    print("| direction | family | case | logits | left-padded | greedy tokens |\n|---|---|---|---|---|---|")
    for direction, family, label, plain, padded, same in result:
        print(f"| {direction} | {family} | {label} | {plain:.1e} | {padded:.1e} | {'equal' if same else 'DIFFER'} |")
    bad = [row for row in result if not (max(row[3:5]) <= TOLERANCE and row[5])]
    print(f"{len(result) - len(bad)} of {len(result)} within {TOLERANCE:g}; {time.perf_counter() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
