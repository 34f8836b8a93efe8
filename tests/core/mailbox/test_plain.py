"""The short ways through a mailbox do what the general ones do, or nothing: over every pair of things that may have happened before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import product
from typing import Any

import pytest

from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.plain import pump_newest, settle_newest
from engine.core.mailbox.retry import RetryPolicy
from engine.core.mailbox.send import SendLimits, pump
from engine.core.model.constants import HIGH, LOW
from engine.core.model.message import Message, SharedBody
from engine.core.wire.records import WEBSOCKET

POLICY = RetryPolicy(100, 1.8, 100, 2000, 3)
LIMITS = SendLimits(window=4, window_bytes=100, batch_bytes=1000)
LATER_MS = 1_000_000


def _first(mailbox: Mailbox) -> Attachment:
    return next(iter(mailbox.connections.values()))


def _connect(mailbox: Mailbox, number: int) -> None:
    connection = Attachment(("edge-0/a", number), WEBSOCKET, "s", "d", mailbox.floor, 0)
    mailbox.connections[connection.conn] = connection
    _pump(mailbox)


def _cool(mailbox: Mailbox) -> None:
    _first(mailbox).spend(mailbox.hot)
    mailbox.spilled = mailbox.head
    mailbox.cool()


def _append(mailbox: Mailbox, priority: int, expires_ms: int, body: bytes) -> None:
    seq = mailbox.head + 1
    mailbox.append(Message(seq, f"id-{seq}", priority, expires_ms, True, 0, body), b"", 256)


def _pump(mailbox: Mailbox) -> None:
    for connection in mailbox.connections.values():
        pump(mailbox, connection, 5, LIMITS, hold_low=False)


def _append_and_pump(mailbox: Mailbox) -> None:
    _append(mailbox, HIGH, LATER_MS, b"z")
    _pump(mailbox)


_HAPPENINGS: dict[str, Callable[[Mailbox], object]] = {
    "nothing": lambda mailbox: None,
    "acknowledged": lambda mailbox: mailbox.settle_through(1, _first(mailbox), 30, POLICY),
    "acknowledged by id": lambda mailbox: mailbox.settle([2], _first(mailbox), 30, POLICY),
    "refused": lambda mailbox: mailbox.refuse([3]),
    "superseded": lambda mailbox: mailbox.supersede(2),
    "stalled": lambda mailbox: [_first(mailbox).overdue(mailbox.hot, 20_000 * tries, POLICY) for tries in range(1, POLICY.tries + 2)],
    "ended and cooled": _cool,
    "another connection": lambda mailbox: _connect(mailbox, 1),
    "more, sent": _append_and_pump,
    "more, low": lambda mailbox: _append(mailbox, LOW, LATER_MS, b"z" * 20),
    "more, a broadcast": lambda mailbox: _append(mailbox, LOW, LATER_MS, SharedBody.at(9, b"z" * 20)),
    "more, large": lambda mailbox: _append(mailbox, HIGH, LATER_MS, b"z" * 60),
    "more, expired": lambda mailbox: _append(mailbox, HIGH, 10, b"z"),
}


def _mailboxes() -> Iterator[Mailbox]:
    """With 3 messages, sent on one connection; then two things happen."""
    for happenings in product(_HAPPENINGS, repeat=2):
        mailbox = Mailbox("t:u", 0)
        for _ in range(3):
            _append(mailbox, HIGH, LATER_MS, b"x" * 15)
        _connect(mailbox, 0)
        for happening in happenings:
            _HAPPENINGS[happening](mailbox)
        yield mailbox


def _state(of: Any) -> dict[str, object]:
    """Everything in a slotted object, and in the connections of a mailbox."""
    state = {name: deepcopy(getattr(of, name)) for name in type(of).__slots__ if name not in ("memory", "connections")}
    if isinstance(of, Mailbox):
        state["memory"] = (of.memory.messages, of.memory.bytes, of.memory.freed_bytes)
        state["connections"] = {conn: _state(connection) for conn, connection in of.connections.items()}
    return state


def test_an_acknowledgement_settles_the_same_on_the_short_way() -> None:
    short = 0
    for mailbox in _mailboxes():
        for seq in range(mailbox.head + 1):
            general, quick = deepcopy(mailbox), deepcopy(mailbox)
            settled = settle_newest(quick, seq, _first(quick), 40, POLICY)
            if settled:
                through = general.settle_through(seq, _first(general), 40, POLICY)
                assert (through.messages, through.revoked) == (settled, {})
                short += 1
            assert _state(quick) == _state(general)
    assert short > 100


@pytest.mark.parametrize("hold_low", [False, True])
def test_a_message_is_sent_the_same_on_the_short_way(hold_low: bool) -> None:
    short = 0
    for mailbox in _mailboxes():
        general, quick = deepcopy(mailbox), deepcopy(mailbox)
        newest = pump_newest(quick, _first(quick), 20, LIMITS, hold_low=hold_low)
        if newest is not None:
            pumped = pump(general, _first(general), 20, LIMITS, hold_low=hold_low)
            assert pumped is not None
            assert pumped.parts == [[(newest.seq, newest.attempts + 1, newest.body)]]
            assert (pumped.load_from, pumped.expired, pumped.held) == (0, 0, False)
            short += 1
        assert _state(quick) == _state(general)
    assert short > 5


def test_the_only_connection_acknowledges_on_the_short_way() -> None:
    mailbox = Mailbox("t:u", 0)
    _connect(mailbox, 0)
    for _ in range(2):
        _append(mailbox, HIGH, LATER_MS, b"x")
        assert pump_newest(mailbox, _first(mailbox), 0, LIMITS, hold_low=False) is mailbox.hot[mailbox.head]
    assert [message.seq for message in settle_newest(mailbox, 2, _first(mailbox), 5, POLICY)] == [1, 2]
    assert (mailbox.floor, mailbox.hot, _first(mailbox).flight, _first(mailbox).flight_bytes) == (2, {}, {}, 0)
