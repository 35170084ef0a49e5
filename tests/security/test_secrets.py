"""Keys of the environment reach no file that is written for others to read, whoever raises with them in a message."""

import pytest

from configs.errors import UserError
from report.build import build
from sweeps.execution import worker
from sweeps.store import state
from tests.training.conftest import make_tiny, text
from training.loop import trainer
from training.run_directory.files import read_json
from training.step import train_step

__all__ = ["make_tiny", "text"]
KEY = "0123456789abcdef0123456789abcdef01234567"


def everything(folder) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def secret(monkeypatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("HF_TOKEN", f"hf_{KEY[:20]}")


def test_run_json_and_the_report_do_not_have_them(make_tiny, tmp_path, monkeypatch, secret) -> None:
    def broken(*_):
        raise RuntimeError(f"401 for https://user:{KEY}@host, token hf_{KEY[:20]}")

    config = make_tiny(name=f"key {KEY}")
    with monkeypatch.context() as patch:
        patch.setattr(train_step, "compiled", broken)
        with pytest.raises(RuntimeError):
            trainer.train(config, tmp_path / "run", quiet=True)
    written = read_json(tmp_path / "run" / "run.json")
    assert written["error"] == "RuntimeError: 401 for https://user:[WANDB_API_KEY]@host, token [HF_TOKEN]"
    assert written["name"] == "key [WANDB_API_KEY]"
    build(tmp_path / "run")
    texts = [
        p for p in (tmp_path / "run" / "report").glob("*") if p.suffix in (".html", ".md", ".csv", ".tex", ".json")
    ]
    assert len(texts) >= 5
    assert not [path for path in texts if KEY in path.read_text() or KEY[:20] in path.read_text()]


def test_a_workers_log_and_its_marks_do_not_have_them(tmp_path, monkeypatch, secret, capsys) -> None:
    def broken(*_):
        raise RuntimeError(f"no access with {KEY}")

    monkeypatch.setattr(worker, "function", lambda name: broken)
    job = worker.Job(str(tmp_path), "s", "arm", 0, {}, ("loss",))
    outcome = worker.train(job, worker.Deadline(None))
    worker.evaluate(job, worker.Deadline(None))
    assert outcome.status == "failed"
    message = capsys.readouterr()
    assert "no access with [WANDB_API_KEY]" in message.err and KEY not in message.err + message.out
    assert "[WANDB_API_KEY]" in everything(tmp_path) and KEY not in everything(tmp_path)


def test_a_users_error_does_not_have_them(monkeypatch, secret, capsys) -> None:
    from configs import cli

    def broken(_):
        raise UserError(f"cannot reach https://{KEY}@host")

    with pytest.raises(SystemExit):
        cli.main(broken)
    assert capsys.readouterr().err == "error: cannot reach https://[WANDB_API_KEY]@host\n"


def test_marks_keep_what_is_no_secret(tmp_path) -> None:
    state.mark(tmp_path, error="plain", values={"a": [1, "b"]})
    assert read_json(tmp_path / "run.json")["values"] == {"a": [1, "b"]}
