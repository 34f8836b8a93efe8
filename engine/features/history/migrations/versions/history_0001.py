"""The first schema. Stated in full, not by the tables of the engine, which go on changing."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision: Final = "0001"
down_revision: Final = None

_TEXTS: Final = ("message", "type", "category", "rule", "scheduled_id", "reason", "device", "node", "session")
_TIMES: Final = ("seq", "until_ms", "sent_ms", "client_ms", "rtt_ms", "read_ms", "skew_ms")


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "history",
        sa.Column("id", sa.LargeBinary(16), primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("priority", sa.String(8)),
        sa.Column("attempt", sa.Integer),
        sa.Column("transport", sa.String(16)),
        *(sa.Column(name, sa.Text) for name in _TEXTS),
        *(sa.Column(name, sa.BigInteger) for name in _TIMES),
    )
    op.create_index("history_of_user", "history", ["tenant", "user_id", "id"])
    op.create_index("history_of_message", "history", ["tenant", "message"])
    op.create_table(
        "erasures",
        sa.Column("user_digest", sa.LargeBinary(16), primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Delete them, and everything in them."""
    op.drop_table("erasures")
    op.drop_table("history")
