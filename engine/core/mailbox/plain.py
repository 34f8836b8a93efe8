"""The way of nearly every message through its mailbox, in one step each: sent at once on the connection that has room for it, and
acknowledged by the only connection there is.

Each does what the general function does that it names, or nothing: then that one is to be asked. Of a broadcast's 14 us per mailbox at the
shard, in process, they save 3.
"""

from __future__ import annotations

from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.retry import RetryPolicy
from engine.core.mailbox.send import SendLimits
from engine.core.model.constants import LOW
from engine.core.model.message import Message


def pump_newest(mailbox: Mailbox, connection: Attachment, now_ms: int, limits: SendLimits, *, hold_low: bool) -> Message | None:
    """`pump` where the mailbox's newest message is all there is to send, and nothing holds it up: that message. Marks it as sent."""
    seq = mailbox.head
    flight = connection.flight
    if connection.stalled or max(connection.sent, mailbox.floor) != seq - 1 or len(flight) >= limits.window:
        return None
    message = mailbox.hot.get(seq)
    if message is None or message.expires_ms <= now_ms or (hold_low and message.priority == LOW):
        return None
    size = connection.flight_bytes + len(message.body)
    if flight and size > limits.window_bytes:
        return None
    flight[seq] = (now_ms, 1)
    connection.flight_bytes = size
    connection.sent = seq
    return message


def settle_newest(mailbox: Mailbox, seq: int, by: Attachment, now_ms: int, policy: RetryPolicy) -> list[Message]:
    """`Mailbox.settle_through` where everything above the floor is in memory, and nobody else is to be told: the messages, oldest first."""
    first = mailbox.floor + 1
    if seq < first or by.stalled or len(mailbox.connections) != 1:
        return []
    if mailbox.cold or mailbox.acked or mailbox.gone or mailbox.dying:
        return []
    by.measure(seq, now_ms, policy)
    hot, flight = mailbox.hot, by.flight
    messages: list[Message] = []
    size = landed = 0
    for number in range(first, seq + 1):
        message = hot.pop(number)  # it is in no other state
        messages.append(message)
        length = len(message.body)
        if type(message.body) is bytes:  # as in `Message.size`
            size += length
        if flight.pop(number, None) is not None:
            landed += length
    by.flight_bytes -= landed
    mailbox.hot_bytes -= size
    mailbox.memory.remove(len(messages), size)
    mailbox.floor = seq
    return messages
