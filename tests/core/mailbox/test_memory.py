"""What a shard counts of its memory: what a message takes, and totals that agree with sums over the mailboxes."""

import tracemalloc

import msgspec

from engine.core.journal.journal_records import StoredMessage, message_of
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.memory import MESSAGE_BYTES, Memory
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from tests.support.mailbox_states import mailboxes_after_two_events

MESSAGES = 10_000
BODY_BYTES = 88


def test_the_counted_memory_of_a_message_is_what_it_takes() -> None:
    mailboxes = [Mailbox(f"t:u{number}", 0) for number in range(1000)]
    decode = msgspec.msgpack.Decoder(StoredMessage).decode
    blobs = []
    for number in range(MESSAGES):
        envelope = Envelope(f"0192f6a0-5b9c-7000-8000-{number:012x}", b"%08d" % number, NORMAL, True, b"x" * BODY_BYTES)
        blobs.append(msgspec.msgpack.encode(StoredMessage("t:u", 1 + number // len(mailboxes), envelope, (1 << 40) + number, 1)))
    flights: list[dict[int, tuple[int, int]]] = [{} for _ in mailboxes]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number, blob in enumerate(blobs):
            stored = decode(blob)
            mailboxes[number % len(mailboxes)].append(message_of(stored), stored.envelope.digest, recent_max=1)
            flights[number % len(mailboxes)][stored.seq] = (stored.expires_ms, 1)
        taken = (tracemalloc.get_traced_memory()[0] - before) / MESSAGES - BODY_BYTES
    finally:
        tracemalloc.stop()
    assert 0.9 * MESSAGE_BYTES < taken < 1.1 * MESSAGE_BYTES


def test_the_totals_are_what_a_sum_over_the_messages_gives_whatever_happened() -> None:
    for mailbox in mailboxes_after_two_events():
        held = [*mailbox.hot.values(), *mailbox.dying.values()]
        assert mailbox.memory.messages == len(held)
        assert mailbox.memory.bytes == sum(message.size + MESSAGE_BYTES for message in held)


def test_a_removal_frees_the_bodies_and_the_overhead_of_each_message() -> None:
    memory = Memory()
    memory.messages_in, memory.bytes_in = 5, 10_000
    memory.remove(2, 100)
    assert (memory.messages, memory.bytes, memory.freed_bytes) == (3, 9_900 + 3 * MESSAGE_BYTES, 100 + 2 * MESSAGE_BYTES)


def test_only_what_a_mailbox_shrinks_by_counts_as_freed() -> None:
    memory = Memory()
    memory.resize(500)
    memory.resize(-200)
    memory.resize(100)
    assert (memory.bytes, memory.freed_bytes) == (400, 200)
