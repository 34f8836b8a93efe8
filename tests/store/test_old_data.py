"""A data directory written by 65fafe9 is read as that version read it (`data/65fafe9`: the directory, and its answers)."""

from __future__ import annotations

import difflib
import json
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.data_directory_observer import RECORDING, SETTINGS, PublicInterface, observe
from tests.support.running_engine import RunningEngine, running_engine

pytestmark = [pytest.mark.slow, pytest.mark.engine]


@pytest.fixture
def opened() -> Iterator[RunningEngine]:
    """An engine of this version on a copy of the recorded directory."""
    with tempfile.TemporaryDirectory(prefix="engine-test-") as folder:  # short: a socket path has 107 bytes
        with tarfile.open(RECORDING / "data.tar.gz") as archive:
            archive.extractall(Path(folder) / "data", filter="data")
        with running_engine(env=SETTINGS, folder=Path(folder)) as running:
            yield running


def lines(value: Any) -> list[str]:
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True).splitlines()


async def test_messages_timers_profiles_subscriptions_timelines_and_ids_of_the_old_version_are_answered_as_it_did(
    opened: RunningEngine,
) -> None:
    expected: dict[str, Any] = json.loads((RECORDING / "expected.json").read_text("utf-8"))
    secret = (opened.data_dir / "jwt-secret").read_text("ascii").strip()
    async with PublicInterface(opened.url, opened.state["redis_url"], secret) as engine:
        seen = await observe(engine, expected)
    difference = difflib.unified_diff(lines(expected), lines(seen), "65fafe9", "this version", n=12, lineterm="")
    assert seen == expected, "\n".join(difference)
