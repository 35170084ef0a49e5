"""The good files that are spoilt: a small trained run, its checkpoint for others, prompts, texts, sweeps."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import tokenizers

WORDS = "the of and to in is you that it he was for on are as with his they at be this from have or by one had".split()
SMALL: dict[str, Any] = {
    "model.width": 16,
    "model.num_layers": 1,
    "model.num_heads": 2,
    "data.length": 16,
    "data.batch_size": 4,
    "data.split": "first",
    "budget.amount": 2,
    "log.every_steps": 1,
    "log.tensorboard": False,
    "eval.batch_size": 4,
    "eval.tokens": 128,
    "eval.bootstrap": 20,
    "eval.multiples": (1,),
    "eval.heads.rows": 4,
    "eval.retrieval.examples": 4,
    "eval.throughput.repeats": 1,
    "eval.throughput.new_tokens": 2,
}
PRESET = """from configs import base


def get_config():
    config = base.get_config()
    config.model.width = 16
    config.model.num_heads = 2
    config.data.path = {path!r}
    config.budget.amount = 2.0
    return config
"""
SWEEP: dict[str, Any] = {
    "name": "small",
    "title": "Small",
    "question": "Does it hold?",
    "axes": [{"model.num_heads": [1, 2]}, {"optimizer.learning_rate": [0.001, 0.003]}],
    "arm": "h{model.num_heads}-lr{optimizer.learning_rate}",
    "fixed": {"budget.amount": 2, "model.num_layers": 1},
    "seeds": [0, 1],
    "baseline": "h1-lr0.001",
    "evals": ["loss"],
}


def flags(**more: Any) -> list[str]:
    """Returns the small settings as arguments."""
    return [f"--config.{name}={value}" for name, value in {**SMALL, **more}.items()]


def words(seed: int = 0, count: int = 1500) -> str:
    """Returns words drawn by a seed."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(count))


def make(folder: Path, trained: bool = True) -> Path:
    """Writes the material to a folder, made if absent; returns it.

    Args:
        folder: where.
        trained: whether a run is trained, evaluated and converted, by the real commands; else it has a config alone.
    """
    import train
    from configs import cli, fields, validate
    from convert import to_hf
    from eval import run as evaluations
    from tests.report import synthetic

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text").mkdir()
    (folder / "text" / "words.txt").write_text(words())
    lines = [json.dumps({"text": words(seed, 150), "id": seed}) for seed in range(12)]
    (folder / "text" / "lines.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "preset.py").write_text(PRESET.format(path=str(folder / "text" / "words.txt")))
    (folder / "sweep.json").write_text(json.dumps(SWEEP))
    learned = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    learned.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    learned.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["[UNK]", "<|endoftext|>"])
    learned.train_from_iterator([words(9, 400)], trainer)
    learned.save(str(folder / "tokenizer.json"))
    run = folder / "run"
    if not trained:
        resolved = validate.resolve(cli.load(folder / "preset.py"))
        synthetic.write_run(run, info=synthetic.run_json(), configuration=fields.to_dict(resolved))
        return folder
    arguments = [f"--config={folder / 'preset.py'}", f"--workdir={run}", "--quiet"]
    train.main([*arguments, *flags()])
    evaluations.evaluate(run, ["loss", "heads"])
    to_hf.export(run, folder / "hf")
    ids = np.random.default_rng(0).integers(0, 250, (2, 6)).astype(np.int64)
    mask = np.ones_like(ids)
    mask[0, :2] = 0
    safetensors.numpy.save_file({"input_ids": ids, "attention_mask": mask}, folder / "prompts.safetensors")
    return folder
