"""What terminals show: tables of at most 100 columns, and the number that an evaluation measured."""

from pathlib import Path

from configs.evaluations import EVALUATIONS
from report.page import table, terminal
from report.reading.directories import read
from tests.report import synthetic


def test_a_table_fits_whatever_its_names_and_keeps_them_apart(tmp_path: Path) -> None:
    names = [f"model.attention.num_kv_heads={kv},model.position.kind={'learned' * 6}_{kv}" for kv in (1, 2, 4)]
    values = {name: [1.7 + 0.01 * place, 1.71, 1.72] for place, name in enumerate(names)}
    (study,) = read(synthetic.losses(tmp_path / "sweep", values)).studies
    lines = terminal.lines(table.build(study))
    assert len(lines) == 4 and max(map(len, lines)) <= terminal.WIDTH
    assert len({line.split()[0] for line in lines[1:]}) == 3 and all("1.7" in line for line in lines[1:])
    assert max(map(len, terminal.lines(table.build(study), 400))) > terminal.WIDTH, "the control"


def test_evaluations_say_their_number_with_its_unit_and_nothing_that_is_not_there() -> None:
    assert EVALUATIONS["loss"].line(synthetic.loss_json(1.7)) == "loss 1.7000 [1.6900, 1.7100] nats/token"
    assert EVALUATIONS["loss"].line({"loss": None}) == "" and EVALUATIONS["heads"].line({"heads": []}) == ""
    assert EVALUATIONS["retrieval"].line({"accuracy": 0.875}) == "accuracy 87.5%"
    speeds = EVALUATIONS["throughput"].line(synthetic.throughput_json(30000.0, 900.0))
    assert speeds == "train 30,000 tokens/s; prefill 90,000 tokens/s; decode 900 tokens/s"
    assert EVALUATIONS["memory"].line(synthetic.memory_json(48 << 20)) == "train step 48.0 MiB"
