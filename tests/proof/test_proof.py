"""The short version of `make proof`."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.store.server_program import installed_servers
from tests.proof import damage
from tests.proof.__main__ import run
from tests.proof.damage import Proof

pytestmark = [pytest.mark.redis, pytest.mark.slow]


@pytest.fixture
async def proof(tmp_path: Path) -> Proof:
    made = Proof(tmp_path, installed_servers()[0], 5)
    await made.prepare()
    return made


async def test_damaged_data_are_refused_or_found_and_never_delivered() -> None:
    cases = await run(flips=60, blocks=12, seed=3)
    assert len(cases) == 72
    assert [case for case in cases if case.outcome in ("altered", "missed")] == []
    assert {case.outcome for case in cases} == {"refused", "found", "harmless"}


async def test_the_proof_notices_a_reader_without_checksums(proof: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof itself, on an engine that believes every stored byte."""
    monkeypatch.setattr("engine.core.journal.stored_formats.unsealed", lambda blob, owner=b"": blob[5:])
    monkeypatch.setattr(damage.Proof, "_in_name", lambda *_: False)
    await proof.damage_live(["bit"] * 60)
    assert "altered" in {case.outcome for case in proof.cases}
