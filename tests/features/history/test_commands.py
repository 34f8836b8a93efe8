"""`engine history` against a server that has one: a line per row, oldest first, fit for a terminal."""

from __future__ import annotations

import json
from pathlib import Path

from engine.features.history.commands import line_of
from tests.support.command_line import answering, engine, failure

ACKNOWLEDGED = {
    "at": 1_795_375_028_183, "user": "alice", "event": "acknowledged", "id": "a1", "seq": 1, "sent": 1_795_375_028_178, "rtt_ms": 5,
    "read_ms": 3, "skew_ms": 0, "device": "phone", "transport": "websocket", "node": "edge-0", "session": "e0-1", "client_ts": 1,
}  # fmt: skip


def test_a_line_has_what_a_person_wants_to_know_and_no_more() -> None:
    line = line_of(ACKNOWLEDGED)
    assert line[23:] == "  acknowledged   a1  #1  round trip 5 ms  read after 3 ms  phone  websocket  edge-0"
    assert line[10:19].count(":") == 2


def test_a_wrong_clock_is_told_and_control_characters_are_not_printed() -> None:
    assert "client clock off by -4000 ms" in line_of({**ACKNOWLEDGED, "skew_ms": -4000})
    refused = line_of({"at": 1, "user": "u", "event": "dead_lettered", "id": "a", "reason": "refused: \x1b[2J"})
    assert "\x1b" not in refused
    assert "refused: \\x1b[2J" in refused


def test_the_tenant_and_the_begin_of_the_epoch_are_asked_for(data_dir: Path) -> None:
    with answering(b'{"history":[]}') as (url, requests):
        assert engine("history", "alice", "--since", "30000d", "--tenant", "acme", "--url", url).exit_code == 0
    assert requests[0].startswith(b"GET /v1/history?user=alice&limit=100&tenant=acme&since=0 ")


def test_a_database_that_is_away_is_named_and_not_the_engine(data_dir: Path) -> None:
    said = "the archivist of the history gets no answer from its database"
    with answering(json.dumps({"detail": said}).encode(), b"503 Service Unavailable") as (url, _):
        assert failure(engine("history", "alice", "--url", url)) == said
