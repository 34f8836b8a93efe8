"""What all connections share: cursors, refusals that are not confirmed, a bounded queue of bytes, and the look at a stalled client."""

from __future__ import annotations

import asyncio

import pytest

from engine.core.wire.client_frames import SEQ_MAX
from engine.core.wire.records import Nack
from engine.gateway.connection import NO_CURSOR, UNKNOWN_EPOCH, Cursor, Outbox, PendingNacks, Progress, parse_cursor


@pytest.mark.parametrize(
    ("text", "cursor"),
    [
        ("", NO_CURSOR),
        ("e7-12", Cursor("e7", 12)),
        ("a-b-0", Cursor("a-b", 0)),
        (f"e-{SEQ_MAX}", Cursor("e", SEQ_MAX)),
        (f"e-{SEQ_MAX + 1}", Cursor(UNKNOWN_EPOCH, 0)),
        ("e7", Cursor(UNKNOWN_EPOCH, 0)),
        ("-12", Cursor(UNKNOWN_EPOCH, 0)),
        ("e7-", Cursor(UNKNOWN_EPOCH, 0)),
        ("e7--1", Cursor("e7-", 1)),
        ("e7-1.5", Cursor(UNKNOWN_EPOCH, 0)),
        ("e7-\u0661", Cursor(UNKNOWN_EPOCH, 0)),
        ("e" * 63 + "-1", Cursor(UNKNOWN_EPOCH, 0)),
    ],
)
def test_a_cursor_is_an_epoch_and_a_number_and_anything_else_is_of_an_unknown_epoch(text: str, cursor: Cursor) -> None:
    assert parse_cursor(text) == cursor


def test_unconfirmed_nacks_are_sent_again_by_reason_and_the_oldest_are_dropped() -> None:
    nacks = PendingNacks({}, 3)
    nacks.add(["a", "b"], "broken", 3)
    nacks.add(["c"], "late", 3)
    nacks.add(["d"], "broken", 3)
    assert nacks.records(7) == [Nack(7, ["b", "d"], "broken"), Nack(7, ["c"], "late")]


async def test_what_is_queued_while_a_send_is_under_way_goes_out_in_one_send_behind_it() -> None:
    outbox, sends, may_go_on = Outbox(100), list[list[bytes]](), asyncio.Event()

    async def send(chunks: list[bytes]) -> None:
        sends.append(chunks)
        await may_go_on.wait()

    outbox.push(b"a")
    pump = asyncio.ensure_future(outbox.pump(send))
    await asyncio.sleep(0)
    assert (sends, outbox.size, outbox.passes) == ([[b"a"]], 1, 0)
    outbox.push(b"b")
    outbox.push(b"c")
    outbox.finish()
    may_go_on.set()
    await pump
    assert (sends, outbox.size, outbox.passes) == ([[b"a"], [b"b", b"c"]], 0, 2)


def test_a_chunk_beyond_the_limit_is_not_queued() -> None:
    outbox = Outbox(10)
    assert outbox.push(b"x" * 10)
    assert not outbox.push(b"y")
    assert outbox.size == 10


def test_a_client_has_stalled_since_the_number_last_changed() -> None:
    progress = Progress(1, 1000)
    assert progress.stalled_ms(1, 1300) == 300
    assert progress.stalled_ms(2, 1400) == 0
    assert progress.stalled_ms(2, 1450) == 50
