"""What an operator may see of a user and of its connections: their state, no content. Read-only."""

from __future__ import annotations

from engine.core.mailbox.mailbox import Mailbox
from engine.core.shard.slow_connections import connection_state
from engine.core.shard.user_handlers import RequestContext
from engine.core.wire.records import ReadUser, Step, UserIs


def user_overview(mailbox: Mailbox, asked: ReadUser, context: RequestContext) -> UserIs:
    """The answer to a read. Bounded by the limits of the mailbox: connections, topics, windows, decisions and events of a user."""
    state, judged = mailbox.user_state, mailbox.judge_state
    decisions = [] if state is None else [(one.id, Step(one.at_ms, one.event, one.reason, one.until_ms)) for one in state.timeline]
    return UserIs(
        asked.ref,
        context.presence,
        mailbox.head,
        mailbox.floor,
        mailbox.pending_count(),
        len(mailbox.hot),
        mailbox.seen_ms,
        [connection_state(connection) for connection in mailbox.connections.values()],
        sorted(mailbox.topics),
        [] if judged is None else judged.listed(),
        None if state is None else state.profile,
        decisions,
        {} if state is None else dict(state.events),
    )
