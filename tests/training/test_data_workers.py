"""A run whose batches come from worker processes ends without anything left behind."""

import subprocess
import sys

from configs import fields
from training.run_directory.files import write_json


def test_no_batch_stays_in_shared_memory_at_the_end(tiny, tmp_path):
    write_json(tmp_path / "config.json", fields.to_dict(tiny(data__workers=1, budget__amount=3)))
    command = ["train.py", f"--config={tmp_path / 'config.json'}", f"--workdir={tmp_path / 'run'}", "--quiet"]
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "resource_tracker" not in ended.stderr, ended.stderr
