"""Rows of the history from the outcomes that processes record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from engine.core.model.routing import split_key, topic_of
from engine.core.wire.outcomes import AnyOutcome, is_erasure
from engine.features.history.tables import history
from engine.store.outcome_members import members_of, outcome_id

OutcomeRow = dict[str, Any]
"""By column; every row has all of them, so that many are one statement."""

_EMPTY: Final[OutcomeRow] = {column.name: None for column in history.columns}


def rows_of(outcomes: list[AnyOutcome], source: str, number: int) -> Iterator[OutcomeRow]:
    """The rows of a batch, except of erasures.

    Args:
        source: the process that recorded it.
        number: of the first outcome among those of the process.
    """
    for place, outcome in enumerate(outcomes, number):
        if is_erasure(outcome):
            continue
        tenant, user = split_key(outcome.key)
        row = _EMPTY | members_of(outcome)
        topic = topic_of(outcome.key)
        if topic is not None:
            user, row["reason"] = "", f"topic: {topic}" if topic else "everyone"
        row["id"] = outcome_id(outcome, source, place)
        row["at_ms"], row["tenant"], row["user_id"] = outcome.at_ms, tenant, user
        yield _storable(row)


def erasures_of(outcomes: list[AnyOutcome]) -> Iterator[tuple[str, int]]:
    """Mailbox keys of users who were erased, and when."""
    for outcome in outcomes:
        if is_erasure(outcome):
            yield outcome.key, outcome.at_ms


def _storable(row: OutcomeRow) -> OutcomeRow:
    """Without empty texts, and without what PostgreSQL cannot store: NUL, and halves of surrogate pairs."""
    for name, value in row.items():
        if type(value) is not str:
            continue
        if not value and name != "user_id":
            row[name] = None
        elif not value.isprintable():
            row[name] = value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    return row
