"""run.json while a run goes on: progress is written once a second, everything else at once, and nothing is lost."""

from training.run_directory.files import read_json
from training.run_directory.record import Record


def test_progress_is_written_once_a_second_and_the_rest_at_once(tmp_path, monkeypatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("training.run_directory.record.time.monotonic", lambda: clock[0])
    record, seen = Record(tmp_path, {"status": "running", "step": 0}), []

    def on_disk(*names):
        values = read_json(tmp_path / "run.json")
        return [values[name] for name in names]

    record.progress(step=10)  # the first write is not put off
    assert on_disk("step") == [10]
    for step in range(20, 60, 10):
        clock[0] += 0.3
        record.progress(step=step)
        seen += on_disk("step")
    assert seen == [10, 10, 10, 50]
    record.progress(step=60)
    record.update(incidents=["damaged"])  # at once, with the progress that was put off
    assert on_disk("step", "incidents") == [60, ["damaged"]]
    record.progress(step=70)
    record.update(status="done")
    assert on_disk("step", "status") == [70, "done"] and record.values["step"] == 70
