"""Every registered choice says which publication it comes from, or that there is none, and each has its BibTeX."""

import re
from typing import Any

import pytest

from configs import citations, fields


@pytest.mark.parametrize("field", citations.CITED)
def test_every_choice_has_an_entry(field: str) -> None:
    assert [*citations.CITED[field]] == [*fields.choices(field)]


def test_every_key_has_one_whole_bibtex_entry() -> None:
    entries = citations.entries()
    assert len(entries) == citations.BIBTEX.read_text().count("\n@") + 1
    used = {key for choices in citations.CITED.values() for keys in choices.values() for key in keys}
    used |= {citations.MULTI_HEAD, citations.MULTI_QUERY, *citations.STATISTICS.values(), *citations.SOFTWARE.values()}
    assert used == set(entries)
    for entry in entries.values():
        assert entry.count("{") == entry.count("}")
        for part in ("author", "title", "year"):
            assert re.search(rf"^  {part} = \{{.+\}},$", entry, re.M), entry


def test_heads_decide_what_attention_cites() -> None:
    def cited(heads: Any, groups: Any) -> tuple[str, ...]:
        model = {"num_heads": heads, "num_kv_heads": groups, "attention": {"kind": "gqa"}}
        return citations.keys({"model": model})["model.attention.kind"]

    assert cited(4, 4) == cited(1, 1) == (citations.MULTI_HEAD,)
    assert cited(4, 1) == (citations.MULTI_QUERY,) and cited(4, 2) == ("ainslie2023gqa",)
    assert citations.keys({"model": {"mlp": "what\\this"}, "optimizer": "text"}) == {}
