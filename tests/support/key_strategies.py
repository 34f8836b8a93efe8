"""Hypothesis strategies of everything that keys are made of, rich in what separates their parts."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st

from engine.core.model.names import is_id, is_topic, is_user
from engine.core.model.routing import audience_key, mailbox_key, slot_of

CHARS_MAX = 200
TENANTS = st.from_regex(r"[A-Za-z0-9_.-]{1,8}", fullmatch=True)
TEXTS = st.text(st.sampled_from("g:x1|\n\0{} é😀"), min_size=1, max_size=8) | st.text(min_size=1, max_size=20)
USERS = TEXTS.filter(lambda text: is_user(text, CHARS_MAX))
IDS = TEXTS.filter(lambda text: is_id(text, CHARS_MAX))
TOPICS = st.just("") | TEXTS.filter(lambda text: is_topic(text, CHARS_MAX))
MAILBOXES = st.builds(mailbox_key, TENANTS, USERS)
AUDIENCES = st.builds(audience_key, TENANTS, TOPICS)


def colliding_users(prefix: str, tenant: str = "default") -> tuple[str, str]:
    """Two users in one slot, the second of which is the first with `:x` behind it."""
    for number in count():
        user = f"{prefix}{number}"
        if slot_of(mailbox_key(tenant, user)) == slot_of(mailbox_key(tenant, f"{user}:x")):
            return user, f"{user}:x"
    raise AssertionError
