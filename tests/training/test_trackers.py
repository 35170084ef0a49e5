"""Trackers take the lines of metrics.jsonl, go on with a resumed run, hold no secret, and never end a run."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from configs import cli, fields, validate
from configs.errors import ConfigError, UserError
from configs.redaction import redacted
from training.loop import trackers
from training.loop.metrics import MetricsLog
from training.loop.trainer import train
from training.run_directory.files import read_json, read_lines

KEY = "0123456789abcdef0123456789abcdef01234567"


def numbers(line: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in line.items() if name != "step" and isinstance(value, int | float)}


def scalars(workdir: Path) -> dict[int, dict[str, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(workdir / "tensorboard")).Reload()
    results: dict[int, dict[str, float]] = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            assert name not in results.setdefault(event.step, {}), "logged twice"
            results[event.step][name] = event.value
    return results


def hparams(workdir: Path) -> list[Any]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.plugins.hparams import plugin_data_pb2

    results = []
    for path in sorted((workdir / "tensorboard").iterdir()):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "hparams":
                    results.append(plugin_data_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content))
    return results


def records(workdir: Path) -> list[list[Any]]:
    """Reads wandb's transaction logs (LevelDB's log format after a header of 7 bytes), a list of records a process."""
    from wandb.proto.wandb_internal_pb2 import Record

    results = []
    for path in sorted(workdir.glob("wandb/offline-run-*/*.wandb")):
        raw, place, whole, own = path.read_bytes(), 7, b"", []
        while place + 7 <= len(raw):
            if 32768 - place % 32768 < 7:
                place += 32768 - place % 32768
                continue
            _, size, kind = struct.unpack_from("<IHB", raw, place)
            whole += raw[place + 7 : place + 7 + size]
            place += 7 + size
            if kind in (1, 4):
                own.append(Record.FromString(whole))
                whole = b""
        results.append(own)
    return results


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)


def test_a_run_in_two_parts_is_one_run_for_both_trackers_and_each_has_the_lines_of_metrics_jsonl(
    tiny, tmp_path, monkeypatch, offline
) -> None:
    from tests.training.test_trainer import stop_after

    workdir = tmp_path / "sweep" / "runs" / "h2" / "seed0"
    workdir.mkdir(parents=True)
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    config = tiny(tracker="wandb", log__tensorboard=True)
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        assert train(config, workdir, quiet=True)["status"] == "preempted"
    assert train(config, workdir, quiet=True)["status"] == "done"
    lines = {line["step"]: numbers(line) for line in read_lines(workdir / "metrics.jsonl")}
    assert sorted(lines) == [3, 6, 9, 12]

    board = scalars(workdir)
    assert {step: {name: pytest.approx(value) for name, value in line.items()} for step, line in lines.items()} == board
    said = hparams(workdir)
    table = next(one.session_start_info.hparams for one in said if one.HasField("session_start_info"))
    assert table["optimizer.learning_rate"].number_value == 1e-2 and table["data.packing"].string_value == "contiguous"
    assert len(table) == len(fields.types())
    watched = next(one.experiment.metric_infos for one in said if one.HasField("experiment"))
    assert [one.name.tag for one in watched] == ["train_loss", "val_loss"]
    assert sum(one.HasField("session_end_info") for one in said) == 1, "the stopped part did not end in success"

    parts = records(workdir)
    runs = [next(one.run for one in part if one.WhichOneof("record_type") == "run") for part in parts]
    assert len(runs) == 2 and {run.run_id for run in runs} == {read_json(workdir / "tracker.json")["wandb"]["id"]}
    assert {(run.display_name, run.run_group, run.project) for run in runs} == {("h2/seed0", "sweep", "ablax")}
    sent = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert sent["model"]["num_heads"] == 2 and sent["optimizer"]["learning_rate"] == 1e-2
    logged: dict[int, dict[str, float]] = {}
    for part in parts:
        for one in part:
            if one.WhichOneof("record_type") == "history":
                items = {"".join(one.nested_key) or one.key: json.loads(one.value_json) for one in one.history.item}
                logged[items["_step"]] = {name: value for name, value in items.items() if not name.startswith("_")}
    assert logged == lines
    exits = [one.exit.exit_code for part in parts for one in part if one.WhichOneof("record_type") == "exit"]
    assert exits == [1, 0]

    held = [path for path in workdir.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert held == []


def test_what_wandb_refuses_is_one_line_before_training_without_the_key(tiny, tmp_path, monkeypatch, offline) -> None:
    import wandb

    def refuse(**_: Any) -> None:
        raise wandb.errors.UsageError(f"key {KEY}\nis not known")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(UserError) as error:
        train(tiny(tracker="wandb"), tmp_path, quiet=True)
    message = "tracker = wandb: key [WANDB_API_KEY] is not known (WANDB_MODE=offline keeps it on this machine)"
    assert str(error.value) == message
    written = read_json(tmp_path / "run.json")
    assert written["error"] == message and written["step"] == 0


def test_without_the_package_the_message_names_the_extra(tiny, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(UserError, match="tracker = wandb: needs the package wandb, the extra `wandb`"):
        trackers.opened(tiny(tracker="wandb"), tmp_path, 0)


@pytest.fixture
def store(tmp_path, monkeypatch) -> str:
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ABLAX_CACHE", str(tmp_path / "cache"))
    address = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    return address


def test_a_run_in_two_parts_is_one_run_of_mlflow(tiny, tmp_path, store) -> None:
    workdir = tmp_path / "sweep" / "runs" / "h2" / "seed0"
    workdir.mkdir(parents=True)
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    (workdir / "tracker.json").write_text('{"wandb": {"id": "w"}}')
    config = validate.resolve(tiny(tracker="mlflow"))
    lines = [{"step": step, "train_loss": 3.0 / step, "stage": 0, "val_loss": None} for step in (3, 6, 9, 12)]
    (first,) = trackers.opened(config, workdir, 0)
    assert isinstance(first, trackers.MLflow)
    for line in lines[:3]:
        first.write(line)
    first.close("preempted")
    client = first.client
    run = client.get_run(first.id)
    assert run.info.status == "KILLED" and run.info.run_name == "h2/seed0"
    assert run.data.params["model.num_heads"] == "2" and run.data.params["optimizer.learning_rate"] == "0.01"
    assert {*run.data.params} == {*fields.types()}
    assert client.get_experiment(run.info.experiment_id).name == "sweep"
    kept = read_json(workdir / "tracker.json")
    assert kept["mlflow"]["id"] == first.id and kept["wandb"] == {"id": "w"}

    (second,) = trackers.opened(config, workdir, 6)  # its checkpoint is of step 6: step 9 comes again
    assert isinstance(second, trackers.MLflow) and second.id == first.id
    assert client.get_run(first.id).info.status == "RUNNING"
    for line in lines[2:]:
        second.write(line)
    second.close("done")
    logged = {(one.step, one.value) for one in client.get_metric_history(first.id, "train_loss")}
    assert logged == {(line["step"], line["train_loss"]) for line in lines}
    assert len(client.get_metric_history(first.id, "train_loss")) == 4, "step 9 was logged twice"
    assert "val_loss" not in client.get_run(first.id).data.metrics
    assert client.get_run(first.id).info.status == "FINISHED" and client.get_run(first.id).data.tags["status"] == "done"

    # Another store does not have the run: it begins one there.
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{tmp_path}/other.db"
    (third,) = trackers.opened(config, workdir, 6)
    assert isinstance(third, trackers.MLflow) and third.id != first.id


def test_a_server_of_mlflow_that_is_gone_ends_the_tracker_and_not_the_run(tiny, tmp_path, store, monkeypatch) -> None:
    config = validate.resolve(tiny(tracker="mlflow"))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secretsecret@127.0.0.1:9")
    with pytest.raises(UserError, match=r"tracker = mlflow: .*keeps it on this machine") as error:
        trackers.opened(config, tmp_path, 0)
    assert "secretsecret" not in str(error.value) and "\n" not in str(error.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    (opened,) = trackers.opened(config, tmp_path, 0)
    assert isinstance(opened, trackers.MLflow)

    def lost(*_: Any, **__: Any) -> None:
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(opened.client, "log_batch", lost)
    said: list[str] = []
    log = MetricsLog(tmp_path, 0, [trackers.Guarded(opened, said.append)])
    for step in (1, 2):
        log.write({"step": step, "train_loss": 1.0})
    log.close("done")
    assert said == ["MLflow stopped, the run continues: ConnectionError: the server is gone"]
    assert len([*read_lines(tmp_path / "metrics.jsonl")]) == 2


def test_no_tracker_is_required(tiny, tmp_path, monkeypatch) -> None:
    for name in ("wandb", "tensorboardX"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    assert trackers.opened(tiny(), tmp_path, 0) == []
    with pytest.raises(UserError, match=r"log\.tensorboard = True: needs the package tensorboardX"):
        trackers.opened(tiny(log__tensorboard=True), tmp_path, 0)


def test_a_tracker_that_fails_is_told_once_and_the_lines_go_on(tmp_path, monkeypatch) -> None:
    class Broken:
        def write(self, line: Any) -> None:
            raise OSError(f"no way through, {KEY}")

        def close(self, status: str) -> None:
            raise AssertionError("it has ended already")

    monkeypatch.setenv("SOME_TOKEN", KEY)
    said: list[str] = []
    log = MetricsLog(tmp_path, 0, [trackers.Guarded(Broken(), said.append)])
    for step in (1, 2):
        log.write({"step": step, "train_loss": float("nan")})
    log.close("done")
    assert said == ["Broken stopped, the run continues: OSError: no way through, [SOME_TOKEN]"]
    assert [line["train_loss"] for line in read_lines(tmp_path / "metrics.jsonl")] == [None, None]


def test_only_values_of_secret_variables_are_redacted() -> None:
    environment = {"HF_TOKEN": "abcdefgh12", "EMPTY_KEY": "", "SHORT_KEY": "a", "PATH": "abcdefgh12/bin"}
    assert redacted("a abcdefgh12 b /bin", environment) == "a [HF_TOKEN] b /bin"


def test_an_unknown_tracker_is_refused_and_another_tracker_is_the_same_run(tiny) -> None:
    config = tiny()
    cli.apply(config, {"tracker": "aim"})
    with pytest.raises(ConfigError, match="tracker = 'aim': must be none, wandb or mlflow"):
        validate.check(config)
    assert fields.resumable("tracker")
    assert ("none", *trackers.TRACKERS) == fields.choices("tracker")
    with pytest.raises(UserError, match=r"tracker = 'wandbb': must be none, wandb, mlflow; did you mean wandb\?"):
        trackers.tracker("wandbb")
