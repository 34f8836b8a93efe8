"""A data directory written by 65fafe9 is read as that version read it (`data/65fafe9`: the directory, and its answers)."""

from __future__ import annotations

import difflib
import json
from typing import Any

import pytest

from tests.support.data_directory_observer import RECORDING, PublicInterface, observe
from tests.support.running_engine import RunningEngine

pytestmark = [pytest.mark.slow, pytest.mark.engine]


def lines(value: Any) -> list[str]:
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True).splitlines()


async def test_messages_timers_profiles_subscriptions_timelines_and_ids_of_the_old_version_are_answered_as_it_did(
    upgraded: RunningEngine,
) -> None:
    expected: dict[str, Any] = json.loads((RECORDING / "expected.json").read_text("utf-8"))
    secret = (upgraded.data_dir / "jwt-secret").read_text("ascii").strip()
    async with PublicInterface(upgraded.url, upgraded.state["redis_url"], secret) as engine:
        seen = await observe(engine, expected)
    difference = difflib.unified_diff(lines(expected), lines(seen), "65fafe9", "this version", n=12, lineterm="")
    assert seen == expected, "\n".join(difference)
