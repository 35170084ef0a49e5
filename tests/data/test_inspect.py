import re

from data import inspect
from tests.data.common import words, write


def test_a_row_of_each_source_is_shown(tmp_path, capsys):
    write(tmp_path / "in", {f"{i}.txt": words(i, 80) for i in range(8)})
    inspect.main(
        [
            "--config=configs/retrieval.py",
            "--config.data.weights.text=1.0",
            f"--config.data.path={tmp_path}/in/*.txt",
            f"--config.data.cache_dir={tmp_path}/cache",
        ]
    )
    message = capsys.readouterr().out
    assert re.search(r"fingerprint +[0-9a-f]{32}\n", message)
    assert re.search(r"bytes a token +0\.9\d\d", message), "but for separators, bytes"
    assert message.count("stage ") == message.count("  text: '") == message.count("  mqar: ") >= 2
    (row,) = re.findall(r"stage 0.*?mqar: (.*?)\n", message, re.DOTALL)
    told_pairs, requested = row[: row.index("=>")].split()[:-1], re.findall(r"(\d+)=>(\d+)", row)
    assert dict(requested) == dict(zip(told_pairs[::2], told_pairs[1::2], strict=True))
    (text,) = re.findall(r"stage 0.*?text: '(.*?)'\n", message, re.DOTALL)
    assert any(text[:10] in words(i, 80) for i in range(8))
