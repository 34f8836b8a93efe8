"""One connection of a user: its send position, its unacknowledged messages, and their retries.

`sent` is the last number that sending has passed on the connection. `flight` holds the sent messages that are not settled, in sequence
order; the in-flight window limits its size. A message that has used up its tries, or has expired when it would be repeated, is exhausted
here: it leaves the flight alone, may leave memory, and is not sent on this connection again. The next connection begins with it. It keeps
its place in the window until it is settled or has expired, so a client that acknowledges nothing gets no more than one window. `early` has
the messages sent ahead of their place (`engine.core.mailbox.send`); they are in neither flight nor exhausted. The retry timer follows only
the oldest message in flight, as in TCP: later ones are checked when it is due."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.core.mailbox.retry import EdgeRoundTrip, RetryPolicy
from engine.core.model.message import Message
from engine.core.wire.records import POLL, SSE

Conn = tuple[str, int]
"""Identifies a connection: its link session, and the number that the edge assigned to it."""


class Attachment:
    """The delivery state of one connection. Times in milliseconds."""

    __slots__ = (
        "announced_pos",
        "conn",
        "counts",
        "device",
        "early",
        "exhausted",
        "first_sent_ms",
        "flight",
        "flight_bytes",
        "kind",
        "looked",
        "path",
        "retries",
        "rtt_ms",
        "sent",
        "session",
        "since_ms",
        "topics",
        "untold",
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
        *,
        counts: bool = False,
        early: bool = False,
    ) -> None:
        self.conn = conn
        self.early: dict[int, tuple[int, str]] | None = {} if early else None  # early copies: seq -> (expires at ms, id); None: takes none
        self.untold = 0  # the highest number that was lost after sending had passed it: its gap is not sent here
        self.looked = 0  # numbers up to here were examined for early copies
        self.counts = counts  # it is sent the counts of the inbox
        self.path = path or EdgeRoundTrip()  # shared by all connections of the edge
        self.kind = kind
        self.retries = kind not in (SSE, POLL)  # plain SSE does not acknowledge, and a poll ends with its first batch
        self.session = session
        self.device = device
        self.sent = sent
        self.since_ms = now_ms
        self.topics = tuple(topics)  # memberships granted by the bearer token
        self.announced_pos = -1  # the position of the broadcast log at which it began, if it was announced again; -1: it was not
        self.flight: dict[int, tuple[int, int]] = {}  # seq -> (sent at ms, tries), in sequence order
        self.flight_bytes = 0
        self.first_sent_ms: dict[int, int] = {}  # first send time of retried messages in flight
        self.rtt_ms = 0.0
        self.exhausted: dict[int, tuple[int, str]] = {}  # messages that used up their tries here: seq -> (expires at ms, id)

    def fly(self, message: Message, now_ms: int) -> None:
        """Add the message to the flight: its first send on this connection."""
        self.flight[message.seq] = (now_ms, 1)
        self.flight_bytes += len(message.envelope.body)

    @property
    def silent(self) -> bool:
        """Whether everything that is unsettled here is exhausted: nothing is in flight, and its client has answered none of it."""
        return bool(self.exhausted) and not self.flight

    def land(self, message: Message) -> int | None:
        """Remove a settled or gone message from flight, exhausted and early. Returns when it was first sent; None if not in flight."""
        if self.exhausted:
            self.exhausted.pop(message.seq, None)
        if self.early:
            self.early.pop(message.seq, None)
        flown = self.flight.pop(message.seq, None)
        if flown is None:
            return None
        self.flight_bytes -= len(message.envelope.body)
        return self.first_sent_ms.pop(message.seq, flown[0])

    def measure(self, seq: int, now_ms: int, policy: RetryPolicy) -> None:
        """Update the estimate with one round trip per ACK; a retried message gives no sample (Karn's algorithm)."""
        flown = self.flight.get(seq)
        if flown is not None:
            sent_ms, tries = flown
            if tries == 1:
                self.rtt_ms = policy.smooth(self.rtt_ms, now_ms - sent_ms)
                self.path.sample(now_ms - sent_ms, now_ms)
            else:
                self.rtt_ms = policy.backed_off(self.rtt_ms, tries)

    def overdue(self, hot: Mapping[int, Message], now_ms: int, policy: RetryPolicy) -> list[tuple[int, int, bytes]]:
        """Return the messages to retry now, as (sequence number, attempt, body), and record the retry.

        An overdue message that has used up its tries, or has expired, is exhausted.
        """
        if not self.retries:
            return []
        used_up: list[int] = []
        again: list[tuple[int, int, bytes]] = []
        waited_ms = 0
        path_ms = self.path.rtt_ms(now_ms)
        for seq, (sent_ms, tries) in self.flight.items():
            if sent_ms + policy.wait_ms(self.rtt_ms, tries, path_ms) > now_ms:
                continue
            message = hot[seq]
            if tries >= policy.tries or message.expires_ms <= now_ms:
                used_up.append(seq)
                continue
            again.append((seq, message.attempts + tries + 1, message.envelope.body))
            if tries == 1:
                waited_ms = max(waited_ms, now_ms - sent_ms)
        if waited_ms:
            self.path.sample(min(waited_ms, policy.cap_ms), now_ms)
        for seq, _, _ in again:
            sent_ms, tries = self.flight[seq]
            self.first_sent_ms.setdefault(seq, sent_ms)
            self.flight[seq] = (now_ms, tries + 1)
        if used_up:
            self._exhaust(used_up, hot, policy)
        return again

    def _exhaust(self, used_up: list[int], hot: Mapping[int, Message], policy: RetryPolicy) -> None:
        self.rtt_ms = policy.backed_off(self.rtt_ms, policy.tries)
        for seq in used_up:
            message = hot[seq]
            message.attempts += self.flight.pop(seq)[1]
            self.first_sent_ms.pop(seq, None)
            self.flight_bytes -= len(message.envelope.body)
            self.exhausted[seq] = (message.expires_ms, message.envelope.id)

    def forget_expired(self, now_ms: int) -> None:
        """Exhausted messages that have expired take no place in the window any more."""
        self.exhausted = {seq: known for seq, known in self.exhausted.items() if known[0] > now_ms}

    def next_retry_ms(self, now_ms: int, policy: RetryPolicy) -> int:
        """Return the retry time of the oldest message in flight, in ms; 0 when no message is to be retried."""
        if not self.flight or not self.retries:
            return 0
        sent_ms, tries = next(iter(self.flight.values()))
        return int(sent_ms + policy.wait_ms(self.rtt_ms, tries, self.path.rtt_ms(now_ms))) + 1

    def written(self, hot: Mapping[int, Message], seq: int) -> None:
        """Remove everything up to `seq`, which the transport accepted, from the flight. Frees the window, and settles nothing.

        For transports without acknowledgements during delivery (plain SSE).
        """
        for number in [number for number in self.flight if number <= seq]:
            _, tries = self.flight.pop(number)
            self.first_sent_ms.pop(number, None)
            message = hot[number]
            message.attempts += tries
            self.flight_bytes -= len(message.envelope.body)

    def spend(self, hot: Mapping[int, Message]) -> None:
        """Empty the flight: its messages are pending again, and their tries are added to their attempts."""
        for seq, (_, tries) in self.flight.items():
            hot[seq].attempts += tries
        self.flight.clear()
        self.first_sent_ms.clear()
        self.flight_bytes = 0
