"""One connection of a user: what it was sent, what of it is unanswered, and when that goes out again.

`sent` is the last number the connection has passed. `flight` holds what it was sent and has not been settled, in sequence order; its size
is the in-flight window. A message that has used up its tries stalls the connection: nothing is in flight on it any more, so that all its
messages may leave memory, until the client acknowledges something or none of the messages that stalled it is left. Retries look at the
oldest message in flight only, as TCP does: later ones are checked when it is due."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.core.mailbox.retry import EdgeRoundTrip, RetryPolicy
from engine.core.model.message import Message
from engine.core.wire.records import POLL, SSE

Conn = tuple[str, int]
"""A connection, as its link session and the number the edge gave it."""


class Attachment:
    """What one connection of the user has been sent."""

    __slots__ = (
        "conn",
        "device",
        "exhausted",
        "first_sent_ms",
        "flight",
        "flight_bytes",
        "kind",
        "path",
        "retries",
        "rtt_ms",
        "sent",
        "session",
        "since_ms",
        "stalled",
        "topics",
    )

    def __init__(
        self,
        conn: Conn,
        kind: int,
        session: str,
        device: str,
        sent: int,
        now_ms: int,
        topics: Iterable[str] = (),
        path: EdgeRoundTrip | None = None,
    ) -> None:
        self.conn = conn
        self.path = path or EdgeRoundTrip()  # to its edge, shared with the others there
        self.kind = kind
        self.retries = kind not in (SSE, POLL)  # is a message sent again? Not on plain SSE, and a poll ends with its first batch
        self.session = session
        self.device = device
        self.sent = sent
        self.since_ms = now_ms
        self.topics = tuple(topics)  # of which the bearer's token makes it a member
        self.flight: dict[int, tuple[int, int]] = {}  # seq -> (sent at ms, tries), in sequence order
        self.flight_bytes = 0
        self.first_sent_ms: dict[int, int] = {}  # of messages in flight that were sent again
        self.rtt_ms = 0.0
        self.stalled = False
        self.exhausted: dict[int, int] = {}  # stalled by these: seq -> expires at ms

    def fly(self, message: Message, now_ms: int) -> None:
        """The message goes out for the first time on this connection."""
        self.flight[message.seq] = (now_ms, 1)
        self.flight_bytes += len(message.envelope.body)

    def land(self, message: Message) -> bool:
        """The message is settled or gone: it leaves the flight. Returns whether it was in it."""
        if self.exhausted:
            self.exhausted.pop(message.seq, None)
        if self.first_sent_ms:
            self.first_sent_ms.pop(message.seq, None)
        if self.flight.pop(message.seq, None) is None:
            return False
        self.flight_bytes -= len(message.envelope.body)
        return True

    def measure(self, seq: int, now_ms: int, policy: RetryPolicy) -> None:
        """One round trip per ACK, and none of a repeated message (Karn's algorithm)."""
        flown = self.flight.get(seq)
        if flown is not None:
            sent_ms, tries = flown
            if tries == 1:
                self.rtt_ms = policy.smooth(self.rtt_ms, now_ms - sent_ms)
                self.path.sample(now_ms - sent_ms, now_ms)
            else:
                self.rtt_ms = policy.backed_off(self.rtt_ms, tries)

    def overdue(self, hot: Mapping[int, Message], now_ms: int, policy: RetryPolicy) -> list[tuple[int, int, bytes]]:
        """Messages to send again now. May stall the connection instead."""
        if self.stalled or not self.retries:
            return []
        again: list[tuple[int, int, bytes]] = []
        waited_ms = 0
        path_ms = self.path.rtt_ms(now_ms)
        for seq, (sent_ms, tries) in self.flight.items():
            if sent_ms + policy.wait_ms(self.rtt_ms, tries, path_ms) > now_ms:
                continue
            if tries >= policy.tries:
                self._stall(hot, policy)
                return []
            message = hot[seq]
            if message.expires_ms > now_ms:
                again.append((seq, message.attempts + tries + 1, message.envelope.body))
                if tries == 1:
                    waited_ms = max(waited_ms, now_ms - sent_ms)
        if waited_ms:
            self.path.sample(min(waited_ms, policy.cap_ms), now_ms)
        for seq, _, _ in again:
            sent_ms, tries = self.flight[seq]
            self.first_sent_ms.setdefault(seq, sent_ms)
            self.flight[seq] = (now_ms, tries + 1)
        return again

    def _stall(self, hot: Mapping[int, Message], policy: RetryPolicy) -> None:
        self.stalled = True
        self.rtt_ms = policy.backed_off(self.rtt_ms, policy.tries)
        self.exhausted = {seq: hot[seq].expires_ms for seq, (_, tries) in self.flight.items() if tries >= policy.tries}
        self.spend(hot)

    def may_go_on(self, now_ms: int) -> bool:
        """It is stalled, and what stalled it was settled elsewhere, is gone, or has expired."""
        return self.stalled and all(expires_ms <= now_ms for expires_ms in self.exhausted.values())

    def next_retry_ms(self, now_ms: int, policy: RetryPolicy) -> int:
        """When the oldest message in flight is due again; 0 when nothing is."""
        if not self.flight or not self.retries or self.stalled:
            return 0
        sent_ms, tries = next(iter(self.flight.values()))
        return int(sent_ms + policy.wait_ms(self.rtt_ms, tries, self.path.rtt_ms(now_ms))) + 1

    def written(self, hot: Mapping[int, Message], seq: int) -> None:
        """The transport has taken everything up to `seq`: it makes room in the window, and acknowledges nothing.

        For transports that do not acknowledge as they go (plain SSE).
        """
        for number in [number for number in self.flight if number <= seq]:
            _, tries = self.flight.pop(number)
            self.first_sent_ms.pop(number, None)
            message = hot[number]
            message.attempts += tries
            self.flight_bytes -= len(message.envelope.body)

    def spend(self, hot: Mapping[int, Message]) -> None:
        """What is in flight is pending again; its tries count as attempts."""
        for seq, (_, tries) in self.flight.items():
            hot[seq].attempts += tries
        self.flight.clear()
        self.first_sent_ms.clear()
        self.flight_bytes = 0
