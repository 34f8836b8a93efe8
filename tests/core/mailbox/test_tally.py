"""What is counted of each tenant."""

from __future__ import annotations

from engine.core.mailbox.tally import COUNTED, Tallies
from engine.core.model.bounded_names import OTHER, BoundedNames
from engine.core.wire.records import POLL, SSE, SSE_EXPLICIT


def test_a_tenants_mailboxes_share_a_tally_and_those_beyond_the_limit_another() -> None:
    tallies = Tallies(BoundedNames(1))
    assert tallies.of("acme:ann") is tallies.of("acme:bob")
    assert tallies.of("acme:ann") is not tallies.of("zoo:ann")
    assert tallies.of("zoo:ann") is tallies.of("yak:ann")
    tallies.of("acme:ann").acknowledged += 2
    tallies.of("zoo:ann").acknowledged += 1
    assert tallies.rows()["acknowledged"] == [("acme", 2), (OTHER, 1)]


def test_sends_are_told_apart_by_transport() -> None:
    tallies = Tallies()
    tally = tallies.of("acme:ann")
    for kind in (SSE, SSE_EXPLICIT, POLL):
        tally.sent[kind] += 1
    tally.repeated[SSE] += 1
    assert tallies.rows()["sent"] == [("acme", "sse", 2), ("acme", "poll", 1)]
    assert tallies.rows()["repeated"] == [("acme", "sse", 1)]


def test_what_was_never_counted_has_no_row() -> None:
    tallies = Tallies()
    tally = tallies.of("acme:ann")
    assert all(not rows for rows in tallies.rows().values())
    for event in COUNTED:
        tally.add(event)
    assert {name: rows for name, rows in tallies.rows().items() if rows} == {event: [("acme", 1)] for event in COUNTED}
