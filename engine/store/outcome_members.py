"""What an outcome says, and its identity, as the database of the history and consumers of events have them."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

from engine.core.model.constants import PRIORITIES
from engine.core.wire.outcomes import (
    AcceptedOutcome,
    AcknowledgedOutcome,
    AnyOutcome,
    Outcome,
    SentOutcome,
    client_times,
    is_journalled,
)
from engine.core.wire.records import TRANSPORTS

_TIME_BYTES: Final = 6
_NUMBER_BYTES: Final = 5  # 10^12 outcomes of one process


def first_id(at_ms: int) -> bytes:
    """What the ids of all outcomes of this time begin with: it sorts before them, and behind those of earlier times."""
    return max(at_ms, 0).to_bytes(_TIME_BYTES, "big")


def outcome_id(outcome: AnyOutcome, source: str, number: int) -> bytes:
    """16 bytes, the same however often the outcome is recorded and read.

    Args:
        source: the process that recorded it.
        number: of the outcome among those of the process.
    """
    return first_id(outcome.at_ms) + (_journalled(outcome) if is_journalled(outcome) else _counted(source, number))


def _journalled(outcome: AnyOutcome) -> bytes:
    if type(outcome) is Outcome:
        identity = f"{outcome.event}\n{outcome.key}\n{outcome.id}\n{outcome.until_ms}\n{outcome.reason}"
    else:
        assert type(outcome) is AcceptedOutcome, "no other kind is journalled"
        identity = f"accepted\n{outcome.key}\n{outcome.id}\n{outcome.seq}"
    return b"\0" + blake2b(identity.encode(errors="surrogatepass"), digest_size=9).digest()


def _counted(source: str, number: int) -> bytes:
    return b"\1" + number.to_bytes(_NUMBER_BYTES, "big") + blake2b(source.encode(errors="surrogatepass"), digest_size=4).digest()


def members_of(outcome: AnyOutcome) -> dict[str, Any]:
    """What the outcome says, by column of the history; without its time, user and id. Members that do not apply may be there, empty."""
    if type(outcome) is SentOutcome:
        return {"event": "sent", "message": outcome.id, "seq": outcome.seq, "attempt": outcome.attempt, **_place(outcome)}
    if type(outcome) is AcceptedOutcome:
        return {
            "event": "accepted",
            "message": outcome.id,
            "seq": outcome.seq,
            "type": outcome.kind,
            "category": outcome.category,
            "priority": PRIORITIES[outcome.priority] if 0 <= outcome.priority < len(PRIORITIES) else None,
            "scheduled_id": outcome.timer,
        }
    if type(outcome) is AcknowledgedOutcome:
        row = {"event": "acknowledged", "message": outcome.id, "seq": outcome.seq, **_place(outcome)}
        sent_ms, client_ms = outcome.sent_ms, outcome.client_ms
        if client_ms:
            row["client_ms"] = client_ms
        if sent_ms:
            row |= {"sent_ms": sent_ms, "rtt_ms": max(outcome.at_ms - sent_ms, 0)}
            if client_ms:
                row["read_ms"], row["skew_ms"] = client_times(sent_ms, client_ms, outcome.at_ms)
        return row
    assert type(outcome) is Outcome, "the only kind left"
    return {
        "event": outcome.event,
        "message": outcome.id,
        "seq": outcome.seq or None,
        "type": outcome.kind,
        "rule": outcome.rule,
        "scheduled_id": outcome.timer,
        "reason": outcome.reason,
        "until_ms": outcome.until_ms or None,
        **_place(outcome),
    }


def _place(outcome: SentOutcome | AcknowledgedOutcome | Outcome) -> dict[str, Any]:
    transport = TRANSPORTS[outcome.transport] if 0 <= outcome.transport < len(TRANSPORTS) else None
    return {"session": outcome.session, "device": outcome.device, "transport": transport, "node": outcome.node}
