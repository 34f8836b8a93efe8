"""What tenants have in storage is counted exactly: the figures are those of the pages and timers that are there, after every script and
any crash."""

from __future__ import annotations

from collections.abc import Iterable

from engine.core.journal.stored_formats import decode_timer
from engine.core.model.routing import TIMER_PARTITIONS, partition_of, slot_of, split_key, topic_of
from engine.store.keys import (
    SUBSCRIBERS_PREFIX,
    held_key,
    page_key,
    tenants_key,
    timer_key,
    timer_unpaged_key,
    topics_key,
)
from engine.store.timer_store import TIMER_BYTES
from tests.sim.known import Violation
from tests.sim.redis import MiniRedis
from tests.support.stored import decode_page


def check_tenants(server: MiniRedis, keys: Iterable[str]) -> None:
    """Compare the figures with what these users have, all that there are.

    Raises:
        Violation: a figure is wrong.
    """
    keys = sorted(keys)
    users: dict[str, int] = {}
    stored: dict[str, int] = {}
    subscribers: dict[str, dict[bytes, int]] = {}
    for key in keys:
        slot, tenant = slot_of(key), split_key(key)[0]
        name, held = key.encode(), held_key(slot).encode()
        page = server.cmd_hget(page_key(slot).encode(), name)
        topics = b"\n".join(sorted(topic.encode() for topic in decode_page(key, page).topics)) if page else b""
        if (server.cmd_hget(topics_key(slot).encode(), name) or b"") != topics:
            raise Violation(f"the subscriptions of {key} are not counted as its page has them", key)
        of_tenant = subscribers.setdefault(tenant, {})
        for topic in filter(None, topics.split(b"\n")):
            of_tenant[topic] = of_tenant.get(topic, 0) + 1
        users[tenant] = users.get(tenant, 0) + (page is not None)
        stored[tenant] = stored.get(tenant, 0) + len(page or b"") + int(server.cmd_hget(held, name) or 0)
    for key, timer_bytes in _check_partitions(server).items():
        tenant = split_key(key)[0]
        stored[tenant] = stored.get(tenant, 0) + timer_bytes
        users[tenant] = users.get(tenant, 0) + _check_unpaged(server, key)
    for tenant, of_tenant in subscribers.items():
        hash_key = (SUBSCRIBERS_PREFIX + tenant).encode()
        names = server.cmd_hkeys(hash_key)
        found = dict(zip(names, server.cmd_hmget(hash_key, *names), strict=True))
        if {topic: int(count or 0) for topic, count in found.items()} != of_tenant:
            raise Violation(f"{tenant} has {of_tenant} subscribers, and others are counted")
    for figure, wanted in (
        ("users", users),
        ("stored_bytes", stored),
        ("topics", {name: len(found) for name, found in subscribers.items()}),
    ):
        for tenant, amount in wanted.items():
            score = server.cmd_zscore(tenants_key(figure).encode(), tenant.encode())
            if int(score or 0) != amount:
                raise Violation(f"{tenant} has {amount} {figure} in storage, and {score!r} are counted")


def _check_partitions(server: MiniRedis) -> dict[str, int]:
    """The bytes of each mailbox key's timers. Raises Violation when users without timers are counted for some."""
    found: dict[str, int] = {}
    for partition in range(TIMER_PARTITIONS):
        there: dict[str, int] = {}
        for packed in server.cmd_hscan(timer_key(partition).encode(), b"0")[1][1::2]:
            key = decode_timer(packed).key
            there[key] = there.get(key, 0) + len(packed) + TIMER_BYTES
        unpaged = {key.decode() for key in server.cmd_smembers(timer_unpaged_key(partition).encode())}
        if unpaged - there.keys():
            raise Violation(f"{unpaged} are counted for timers, and there are only those of {there.keys()}")
        found |= there
    return found


def _check_unpaged(server: MiniRedis, key: str) -> bool:
    """Whether the user of these timers is counted for them. Raises Violation when there is a page that counts too, or none."""
    name, slot = key.encode(), slot_of(key)
    unpaged = name in server.cmd_smembers(timer_unpaged_key(partition_of(key)).encode())
    has_page = bool(server.cmd_hexists(page_key(slot).encode(), name))
    if unpaged and has_page:
        raise Violation(f"{key} is counted twice, for a page and for timers", key)
    if not unpaged and not has_page and topic_of(key) is None:
        raise Violation(f"{key} has timers, and is not counted as a user", key)
    return unpaged
