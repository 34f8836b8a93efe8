"""The tables of the history.

One row per outcome, one table: nearly every question is about one user or one message over time, and a row of any event answers it
alone. Columns that do not apply to an event are null, which costs a bit in either database.

A row's id is its time in milliseconds, 6 bytes, and what identifies the outcome: a 0 and a digest of the journal record that it follows
from, or a 1 with the number that its process gave it and a digest of the process. So the same outcome has the same id, whoever inserts it
and however often; outcomes of a process in the same millisecond are in their order, after what was journalled; new rows are at the end of
the index; and a range of ids is a range of times, by which old rows are deleted.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, String, Table, Text

metadata: Final = MetaData()

history: Final = Table(
    "history",
    metadata,
    Column("id", LargeBinary(16), primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("user_id", Text, nullable=False),  # "user" is a word of SQL
    Column("event", String(32), nullable=False),
    Column("message", Text),  # the message's id
    Column("seq", BigInteger),
    Column("type", Text),
    Column("category", Text),
    Column("priority", String(8)),
    Column("rule", Text),
    Column("scheduled_id", Text),
    Column("reason", Text),
    Column("until_ms", BigInteger),
    Column("attempt", Integer),
    Column("sent_ms", BigInteger),  # of what was acknowledged: when it was first sent there
    Column("client_ms", BigInteger),  # by the client's clock
    Column("rtt_ms", BigInteger),  # at_ms - sent_ms
    Column("read_ms", BigInteger),  # from sent_ms until the client acknowledged
    Column("skew_ms", BigInteger),  # of the client's clock, at least
    Column("device", Text),
    Column("transport", String(16)),
    Column("node", Text),
    Column("session", Text),
    Index("history_of_user", "tenant", "user_id", "id"),
    Index("history_of_message", "tenant", "message"),
)

erasures: Final = Table(
    "erasures",
    metadata,
    Column("user_digest", LargeBinary(16), primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
)
"""Users whose rows up to a time were deleted: rows of before that arrive later are not stored. Kept for a day, and only a digest."""
