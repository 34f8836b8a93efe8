"""A mailbox in every state that two events lead to: what fast paths are compared with general ones over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import product
from typing import Any

from engine.config import Config
from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.retry import RetryPolicy
from engine.core.mailbox.send import send
from engine.core.model.constants import HIGH, LOW
from engine.core.model.envelope import Envelope
from engine.core.model.message import Message, SharedBody
from engine.core.wire.records import WEBSOCKET

POLICY = RetryPolicy(100, 1.8, 100, 2000, 3)
CONFIG = Config(window=4, window_bytes=100, deliver_bytes_max=1000)
LATER_MS = 1_000_000


def first_connection(mailbox: Mailbox) -> Attachment:
    return next(iter(mailbox.connections.values()))


def connect(mailbox: Mailbox, number: int, *, early: bool = False) -> None:
    connection = Attachment(("edge-0/a", number), WEBSOCKET, "s", "d", mailbox.floor, 0, early=early)
    mailbox.connections[connection.conn] = connection
    _send(mailbox)


def _exhaust(mailbox: Mailbox) -> None:
    for tries in range(1, POLICY.tries + 2):
        first_connection(mailbox).overdue(mailbox.hot, 20_000 * tries, POLICY)


def _cool(mailbox: Mailbox) -> None:
    first_connection(mailbox).spend(mailbox.hot)
    mailbox.spilled = mailbox.head
    mailbox.cool()


def append(mailbox: Mailbox, priority: int, expires_ms: int, body: bytes) -> None:
    seq = mailbox.head + 1
    mailbox.append(Message(seq, Envelope(f"id-{seq}", b"", priority, True, body), expires_ms, 0), b"", 256)


def _send(mailbox: Mailbox) -> None:
    for connection in mailbox.connections.values():
        send(mailbox, connection, 5, CONFIG, hold_low=False)


def _append_and_send(mailbox: Mailbox) -> None:
    append(mailbox, HIGH, LATER_MS, b"z")
    _send(mailbox)


_EVENTS: dict[str, Callable[[Mailbox], object]] = {
    "nothing": lambda mailbox: None,
    "acknowledged": lambda mailbox: mailbox.settle_through(1, first_connection(mailbox), 30, POLICY),
    "acknowledged by id": lambda mailbox: mailbox.settle([2], first_connection(mailbox), 30, POLICY),
    "refused": lambda mailbox: mailbox.refuse([3]),
    "superseded": lambda mailbox: mailbox.supersede(2),
    "exhausted": lambda mailbox: [
        first_connection(mailbox).overdue(mailbox.hot, 20_000 * tries, POLICY) for tries in range(1, POLICY.tries + 2)
    ],
    "ended and cooled": _cool,
    "another connection": lambda mailbox: connect(mailbox, 1),
    "more, sent": _append_and_send,
    "more, low": lambda mailbox: append(mailbox, LOW, LATER_MS, b"z" * 20),
    "more, a broadcast": lambda mailbox: append(mailbox, LOW, LATER_MS, SharedBody.at(9, b"z" * 20)),
    "more, large": lambda mailbox: append(mailbox, HIGH, LATER_MS, b"z" * 60),
    "more, expired": lambda mailbox: append(mailbox, HIGH, 10, b"z"),
}


def mailboxes_after_two_events() -> Iterator[Mailbox]:
    """3 messages, sent on one connection; then two events, in every combination."""
    for events in product(_EVENTS, repeat=2):
        mailbox = Mailbox("t:u", 0)
        for _ in range(3):
            append(mailbox, HIGH, LATER_MS, b"x" * 15)
        connect(mailbox, 0)
        for event in events:
            _EVENTS[event](mailbox)
        yield mailbox


def state_of(of: Any) -> dict[str, object]:
    """Everything in a slotted object, and in the connections of a mailbox; not what is counted of its tenant."""
    state = {name: deepcopy(getattr(of, name)) for name in type(of).__slots__ if name not in ("memory", "tally", "connections", "path")}
    if isinstance(of, Mailbox):
        state["memory"] = (of.memory.messages, of.memory.bytes, of.memory.freed_bytes)
        state["connections"] = {conn: state_of(connection) for conn, connection in of.connections.items()}
    elif isinstance(of, Attachment):
        state["path"] = state_of(of.path)
    return state
