"""The short version of the power cuts of `make proof`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.power import can_cut, endure
from tests.support.missing_programs import untried

pytestmark = [pytest.mark.slow, pytest.mark.engine]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if not can_cut():
        untried("power cuts: no C compiler")
    return tmp_path


async def test_power_cuts_lose_nothing_that_was_answered_202(folder: Path) -> None:
    books = await endure(folder, cuts=10, seed=1, fsync="always")
    print(books)
    assert books["cuts"] == 10
    assert books["cuts_that_lost"] > 0, "no cut met a write that was not synced"
    assert (books["lost"], books["wrong"], books["epochs"]) == (0, [], 1)


async def test_what_power_cuts_lose_without_sync_of_every_write_is_announced_by_a_new_epoch(folder: Path) -> None:
    books = await endure(folder, cuts=4, seed=2, fsync="everysec")
    print(books)
    assert books["cuts_that_lost"] > 0
    assert books["epochs"] > 1
    assert (books["lost"], books["wrong"]) == (0, [])
