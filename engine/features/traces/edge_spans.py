"""The spans of an edge: what it sends, and what its clients acknowledge; see the package's text.

States of a sampled message on a connection

    sent --ACK---------------------------> `acknowledge`
         --nack--------------------------> `acknowledge`, an error
         --sent again, connection ended--> `acknowledge`, with `acknowledged` false

Streams and polls acknowledge by other connections, or not at all, so of their sends nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from engine.core.model.trace_context import TraceContext, trace_in
from engine.core.wire.records import TRANSPORTS, WEBSOCKET
from engine.features.traces.spans import OPEN_MAX, Attributes, Spans
from engine.gateway.ports import SentMessages


class _Named(Struct):
    id: str = ""


_named: Final = msgspec.json.Decoder(_Named)


class _Sent(Struct, gc=False):
    context: TraceContext
    id: str
    at_ns: int


class EdgeSpans:
    """The spans of one edge. A `ConnectionObserver`."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._sent: dict[int, dict[int, _Sent]] = {}  # by connection and sequence number
        self._count = 0

    def sent(self, connection: int, kind: int, messages: SentMessages, begun_ns: int) -> None:
        """A `send` for each message that is sampled."""
        end_ns = self._spans.now_ns()
        for seq, attempt, body in messages:
            context = trace_in(body)
            if context is None or not context.sampled:
                continue
            id = _named.decode(b"{%b}" % body).id
            attributes = {"messaging.message.id": id, "engine.transport": TRANSPORTS[kind], "engine.attempt": attempt}
            self._spans.add("send", context, begun_ns, attributes, end_ns=end_ns)
            if kind == WEBSOCKET:
                self._remember(connection, seq, _Sent(context, id, end_ns))

    def _remember(self, connection: int, seq: int, sent: _Sent) -> None:
        of_connection = self._sent.setdefault(connection, {})
        if (before := of_connection.pop(seq, None)) is not None:
            self._over(before, acknowledged=False)
        elif self._count >= OPEN_MAX:
            if not of_connection:
                del self._sent[connection]
            return
        else:
            self._count += 1
        of_connection[seq] = sent

    def acknowledged(self, connection: int, seq: int) -> None:
        """The client has handled everything up to `seq`."""
        of_connection = self._sent.get(connection)
        if of_connection is not None:
            self._settle(connection, [number for number in of_connection if number <= seq], "")

    def settled(self, connection: int, ids: Sequence[str], error: str = "") -> None:
        """The client has handled these messages, or refused them with a reason."""
        of_connection = self._sent.get(connection)
        if of_connection is not None:
            wanted = frozenset(ids)
            self._settle(connection, [number for number, sent in of_connection.items() if sent.id in wanted], error)
        elif error:
            self._spans.add("acknowledge", None, self._spans.now_ns(), {"messaging.message.id": ids[0] if ids else ""}, error=error)

    def _settle(self, connection: int, numbers: Sequence[int], error: str) -> None:
        of_connection = self._sent[connection]
        for number in numbers:
            self._over(of_connection.pop(number), acknowledged=not error, error=error)
        self._count -= len(numbers)
        if not of_connection:
            del self._sent[connection]

    def ended(self, connection: int) -> None:
        for sent in (of_connection := self._sent.pop(connection, {})).values():
            self._over(sent, acknowledged=False)
        self._count -= len(of_connection)

    def _over(self, sent: _Sent, *, acknowledged: bool, error: str = "") -> None:
        attributes: Attributes = {"messaging.message.id": sent.id, "engine.acknowledged": acknowledged}
        self._spans.add("acknowledge", sent.context, sent.at_ns, attributes, error=error)
