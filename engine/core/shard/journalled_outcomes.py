"""The outcomes that follow from journal records: at their commit, and again when a successor replays them.

Made from the record alone, so that both times the same ones come out (`engine.core.wire.outcomes.is_journalled`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.core.commit.broadcast_step import Adoption
from engine.core.journal.journal_records import Adopted, Decided, Record, StoredMessage
from engine.core.mailbox.broadcast_log import LOST
from engine.core.mailbox.judge_state import JudgeRecord
from engine.core.model.envelope import Envelope
from engine.core.shard.mailbox_store import MailboxStore
from engine.core.wire.outcomes import AcceptedOutcome, Outcome, type_of


def journalled_outcomes(records: Iterable[Record], store: MailboxStore) -> Iterator[AcceptedOutcome | Outcome]:
    """The outcomes of these records, in their order. Broadcasts that are gone from the log have none."""
    for record in records:
        if isinstance(record, StoredMessage):
            yield _accepted(record.key, record.accepted_ms, record.seq, record.envelope, record.timer)
        elif isinstance(record, Decided):
            entry = record.entry
            yield Outcome(record.key, entry.at_ms, entry.event, entry.id, reason=entry.reason, until_ms=entry.until_ms)
        elif isinstance(record, JudgeRecord):
            outcome = store.judge.outcome(record)
            if outcome is not None:
                yield outcome
        elif isinstance(record, Adopted):
            broadcast = store.log.get(record.pos)
            if broadcast is not None:
                for key, seq in record.numbers:
                    yield _accepted(key, record.accepted_ms, seq, broadcast.envelope)


def adopted_outcomes(adoptions: Iterable[Adoption]) -> Iterator[AcceptedOutcome]:
    """Those of `Adopted` records, from what the shard has of them before they are encoded."""
    for adoption in adoptions:
        for seq, broadcast in enumerate(adoption.broadcasts, adoption.first):
            if broadcast.envelope is not LOST:
                yield _accepted(adoption.mailbox.key, adoption.adopted_ms, seq, broadcast.envelope)


def _accepted(key: str, at_ms: int, seq: int, envelope: Envelope, timer: str = "") -> AcceptedOutcome:
    terms = envelope.policy_terms
    category = "" if terms is None else terms.category
    return AcceptedOutcome(key, at_ms, envelope.id, seq, type_of(envelope.body), category, envelope.priority, timer)
