"""Predict the outcome of a message, and report the outcome of an earlier one. Read-only: no mailbox is changed.

`explain` makes the checks that a group makes on a post, in the same order and with the same answers, for the time at
which the message would be decided. Storage may have ids that memory has evicted; they are not looked up.

`trace` returns what memory still has of a message: the last ids of the mailbox, pending messages with their sends, and the last
decisions against messages. Not stored: the time of an acknowledgement, the outcome of a message with an evicted id, and the sender.
"""

from __future__ import annotations

from engine.core.commit.group import NOBODY_CONNECTED
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.message import TIMER_EFFECT
from engine.core.shard.user_handlers import RequestContext
from engine.core.wire.records import Explain, Explained, Step, Trace, Traced
from engine.features.policy.core.contact_policy import Decision
from engine.features.policy.core.policy_step import PolicyJudge, facts_of, in_digest

_WORDS = {
    Decision.DELIVER: "deliver",
    Decision.DEFER: "defer",
    Decision.DIGEST: "digest",
    Decision.SUPPRESS: "suppress",
    Decision.INBOX: "inbox",
}


def explain(mailbox: Mailbox, asked: Explain, context: RequestContext) -> Explained:
    """Return the outcome that a post would have now, or at its own time if that is later, with the reasons."""
    config, now_ms = context.config, context.now_ms
    post, at_ms = asked.post, max(asked.at_ms, now_ms)
    envelope = post.envelope
    known = mailbox.recent.get(envelope.id) if post.idempotent else None
    if known is not None:
        if known[1] != envelope.digest:
            return Explained(asked.ref, "conflict", [("id", "the same id was used with a different payload")])
        return Explained(asked.ref, "duplicate", [("id", "this id was published before")], seq=known[0])
    reasons: list[tuple[str, str]] = []
    if asked.at_ms > now_ms:
        reasons.append(("delay", "it is due later; the rest is as things are now, and is decided again then"))
    if not envelope.retain and not mailbox.connections:
        return Explained(asked.ref, "suppress", [*reasons, ("nobody_connected", NOBODY_CONNECTED)])
    timeline = mailbox.user_state.timeline if mailbox.user_state is not None and post.idempotent else ()
    suppressed = next((entry.reason for entry in timeline if entry.id == envelope.id and entry.event == "suppressed"), None)
    if suppressed is not None:
        code, _, detail = suppressed.partition(": ")
        return Explained(asked.ref, "suppress", [*reasons, (code, f"{detail}; a repeat of this id gets the same answer")])
    judge = context.mailbox_store.judge
    assert isinstance(judge, PolicyJudge), "the feature brings both"
    step = judge.step([], {}, at_ms)
    verdict = step.message(mailbox, envelope, facts_of(envelope), post.expires_ms)
    word, until_ms = "deliver", 0
    if verdict is not None:
        word, until_ms = _WORDS[verdict.decision], verdict.until_ms
        reasons += [(reason.code, reason.detail) for reason in verdict.reasons]
        if verdict.decision is Decision.DIGEST:
            envelope = in_digest(envelope, config.digest_ms)
    closes_ms = step.waits_until(mailbox, envelope, post.expires_ms) if word in ("deliver", "digest") else 0
    if closes_ms:
        if word == "deliver":
            word = "merge"
            reasons.append(("window", "it counts in the window of its collapse key; what that sends is decided at its end"))
        until_ms = closes_ms
    elif word == "digest":
        word = "deliver"
        reasons.append(("no_digest", "no digest can take it; it is delivered at once"))
    if word == "deliver" and not mailbox.connections:
        reasons.append(("offline", "nobody is connected; it is kept until it expires"))
    return Explained(asked.ref, word, reasons, until_ms or (asked.at_ms if asked.at_ms > now_ms else 0))


def trace(mailbox: Mailbox, asked: Trace, _context: RequestContext) -> Traced:
    """Return the state of a message and the steps that memory has of it. The state is empty for an unknown id."""
    ref, id = asked.ref, asked.id
    entries = [] if mailbox.user_state is None else [entry for entry in mailbox.user_state.timeline if entry.id == id]
    steps = [Step(entry.at_ms, entry.event, entry.reason, entry.until_ms) for entry in entries]
    known = None if id.startswith(TIMER_EFFECT) else mailbox.recent.get(id)
    seq = known[0] if known is not None else next((message.seq for message in mailbox.hot.values() if message.envelope.id == id), 0)
    if not seq:
        own = [step.event for step in steps if step.event != "step_skipped"]
        state = "merged" if known is not None else own[-1] if own else ""
        return Traced(ref, state, 0, steps)
    message = mailbox.hot.get(seq) or mailbox.dying.get(seq)
    if message is not None:
        steps.append(Step(message.accepted_ms, "accepted"))
        flights = [flown for connection in mailbox.connections.values() if (flown := connection.flight.get(seq)) is not None]
        sends = message.attempts + sum(tries for _, tries in flights)
        if sends:
            steps.append(Step(max((sent_ms for sent_ms, _ in flights), default=0), "sent", f"attempts: {sends}"))
    state = _state(mailbox, seq)
    if state == "acknowledged" and any(step.event == "inboxed" for step in steps):
        return Traced(ref, "inboxed", seq, steps)
    if state in ("acknowledged", "gone", "refused"):
        steps.append(Step(0, state))
    return Traced(ref, state, seq, steps)


def _state(mailbox: Mailbox, seq: int) -> str:
    """The state of a sequence number, see `engine.core.mailbox.mailbox`."""
    if seq in mailbox.dying:
        return "refused"
    if seq in mailbox.hot:
        return "sent" if any(connection.sent >= seq for connection in mailbox.connections.values()) else "pending"
    if mailbox.gap_at(seq) is not None:
        return "gone"
    if mailbox.is_cold(seq):
        return "pending"
    return "acknowledged"
