"""The keys of this feature in Redis."""

from __future__ import annotations

from typing import Final

from engine.core.model.routing import slot_of


def questions_key(key: str) -> str:
    """Hash: id -> a question that this user was asked, as it was asked."""
    return f"s{slot_of(key)}:questions:{key}"


def answers_key(key: str) -> str:
    """Hash: id of a question -> its answer, which never changes."""
    return f"s{slot_of(key)}:answers:{key}"


def votes_key(key: str, id: str) -> str:
    """Hash: user -> what this member answered to a question that counts answers. `key` is an audience key, whose length is before it."""
    return f"s{slot_of(key)}:votes:{len(key)}:{key}:{id}"


QUESTIONS_DUE_KEY: Final = "questions:due"
"""Sorted set: `<mailbox key> LF <id>` of each question on this store, scored by when there is something to do about it, ms."""

INDEXES: Final = rb"questions:due"
"""Keys without bodies and numbers of messages (`engine.store.stored_kinds`)."""
