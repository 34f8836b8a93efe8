"""Every metric follows the conventions, and docs/METRICS.md has it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from docs.metrics import sections
from tests.support.scrapes import FAMILIES

DOCS = Path(__file__).parents[3] / "docs"


def test_the_reference_of_metrics_is_what_its_script_writes() -> None:
    page = (DOCS / "METRICS.md").read_text()
    assert page == runpy.run_path(str(DOCS / "metrics.py"))["reference"](), "python docs/metrics.py"
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert [name.removesuffix("_total").removesuffix("_info") for name in listed] == [
        family.name for families in sections().values() for family in families
    ]


def test_every_name_follows_the_conventions_and_says_what_it_is() -> None:
    assert len(FAMILIES) == sum(len(families) for families in sections().values()), "a name is used once"
    for family in FAMILIES.values():
        assert re.fullmatch(r"engine(_[a-z]+)*", family.name)
        assert family.help.endswith(".")
        assert not family.name.endswith(("_ms", "_pct", "_count", "_total", "_sum", "_bucket", "_info"))
        assert family.kind != "histogram" or family.name.endswith("_seconds")
        assert len(set(family.labels)) == len(family.labels)
