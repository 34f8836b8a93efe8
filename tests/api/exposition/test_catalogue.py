"""Every metric follows the conventions, and docs/METRICS.md lists it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.api.exposition.catalogue import FAMILIES, SECTIONS, Family

DOCS = (Path(__file__).parents[3] / "docs" / "METRICS.md").read_text()


def row(family: Family) -> str:
    name = family.name + {"counter": "_total", "info": "_info"}.get(family.kind, "")
    return f"| `{name}` | {family.kind} | {', '.join(f'`{label}`' for label in family.labels)} | {family.help} |"


@pytest.mark.parametrize(("title", "families"), SECTIONS, ids=[title for title, _ in SECTIONS])
def test_the_document_lists_every_metric_as_it_is(title: str, families: tuple[Family, ...]) -> None:
    section = DOCS.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    listed = [line for line in section.splitlines() if line.startswith("| `")]
    assert listed == [row(family) for family in families]


def test_the_document_lists_nothing_else() -> None:
    assert re.findall(r"^## (.+)$", DOCS, re.MULTILINE) == [title for title, _ in SECTIONS]


def test_every_name_follows_the_conventions_and_says_what_it_is() -> None:
    assert len(FAMILIES) == sum(len(families) for _, families in SECTIONS), "a name is used once"
    for family in FAMILIES.values():
        assert re.fullmatch(r"engine(_[a-z]+)*", family.name)
        assert family.help.endswith(".")
        assert not family.name.endswith(("_ms", "_pct", "_count", "_total", "_sum", "_bucket", "_info"))
        assert family.kind != "histogram" or family.name.endswith("_seconds")
        assert len(set(family.labels)) == len(family.labels)
