"""Training, evaluating and reporting ask nothing of any network.

Proven by the kernel: the commands run in a network of their own with one interface that leads nowhere, and the packets
that leave by it are counted, name look-ups included.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.conftest import make_tiny, text

__all__ = ["make_tiny", "text"]
UP = """
set -e
ip link set lo up
ip link add out type veth peer name sink
for name in out sink; do sysctl -qw net.ipv6.conf.$name.disable_ipv6=1; done
ip link set sink up
ip addr add 10.99.99.1/24 dev out
ip link set out up
ip route add default via 10.99.99.2 dev out
ip neigh add 10.99.99.2 lladdr 02:00:00:00:00:01 dev out nud permanent
%s
awk '$1 == "out:" {print $11}' /proc/self/net/dev
"""
RUN = """
import sys
from configs import cli
from eval import run
from report import build
from training.loop import trainer
config = cli.load(sys.argv[1], {})
assert trainer.train(config, sys.argv[2], quiet=True)["status"] == "done"
run.evaluate(sys.argv[2], ["loss", "memory"])
build.build(sys.argv[2])
"""


def packets(command: list[str], env: dict[str, str]) -> int:
    """Runs a command in a network that leads nowhere; returns how many packets it sent."""
    script = UP % " ".join(f"'{part}'" for part in command)
    call = ["unshare", "-n", "bash", "-c", script]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, env=env, check=False)
    if done.returncode and any(words in done.stderr for words in ("not permitted", "not supported", "Unknown device")):
        pytest.skip(f"networks of one's own are not allowed here: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout.split()[-1])


@pytest.mark.skipif(not (shutil.which("unshare") and shutil.which("ip")), reason="needs unshare and ip (Linux)")
def test_no_packet_is_sent(make_tiny, tmp_path) -> None:
    from configs import fields
    from training.run_directory.files import write_json

    env = {**os.environ, "WANDB_API_KEY": "x" * 40, "HF_TOKEN": "x" * 40}
    look_up = "import socket\ntry: socket.create_connection(('192.0.2.1', 80), 0.2)\nexcept OSError: pass"
    assert packets([sys.executable, "-c", look_up.replace("'", '"')], env) >= 1  # so that one would be seen
    config = make_tiny(budget__amount=2, eval__multiples=(1,), eval__bootstrap=10, log__tensorboard=True)
    write_json(tmp_path / "config.json", fields.to_dict(config))
    (tmp_path / "all.py").write_text(RUN)
    env["PYTHONPATH"] = str(Path.cwd())
    command = [sys.executable, str(tmp_path / "all.py"), str(tmp_path / "config.json"), str(tmp_path / "run")]
    assert packets(command, env) == 0
    assert (tmp_path / "run" / "report" / "index.html").exists() and (tmp_path / "run" / "eval" / "loss.json").exists()
