"""Users with profiles and categories with limits, in a shard without processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from engine.config import Config
from engine.core.commit.judge import Judge
from engine.core.journal import rebuild
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.memory import Memory
from engine.core.model.category import DAY_MS, Category, PolicyTerms
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.policy.profile import Profile, QuietHours
from engine.core.wire.records import Deliver, GetProfile, Posted, ProfileIs, SetProfile, Timer
from engine.features.policy.core.policy_step import PolicyJudge
from engine.features.policy.time_zones import zone
from tests.support.shard_world import World, of

NIGHT = Profile(zone="Europe/Berlin", level="vip", quiet=(QuietHours(22 * 60, 7 * 60),), muted_types=("promo.*",))


def put(world: World, profile: Profile | None = NIGHT, user: str = "u") -> int:
    world.refs += 1
    world.tell(SetProfile(world.refs, f"t:{user}", profile))
    return world.refs


def profile_of(world: World, user: str = "u") -> ProfileIs:
    world.refs += 1
    (answer,) = of(world.ask(GetProfile(world.refs, f"t:{user}")), ProfileIs)
    assert answer.ref == world.refs
    return answer


def later_core(world: World, how: str) -> None:
    """The shard is another process now, or the mailbox has left memory."""
    if how == "crash":
        world.crash()
    elif how == "checkpoint and crash":
        world.checkpoint()
        world.crash()
    elif how == "eviction":
        world.now_ms += world.config.ack_journal_ms
        world.persist()
        assert world.evict() == 1
    else:
        payloads = list(rebuild.payloads(world.core.mailboxes.values(), 1000))
        world.journal = [(-1, payload) for payload in payloads]
        world.pages.clear()
        world.crash()


NOON = int(datetime(2026, 6, 6, 10, tzinfo=UTC).timestamp() * 1000)  # in Berlin
HOUR_MS = 3_600_000
TEN_PM = NOON + 10 * HOUR_MS
SEVEN_AM = NOON + 19 * HOUR_MS
CAPPED = PolicyTerms("touch", Category(cap=2, cap_ms=DAY_MS))
ONCE = PolicyTerms("news", Category(same_type_ms=DAY_MS))
DIGEST_MS = Config().digest_ms
MANDATORY = PolicyTerms("law", Category(mandatory=True))


def at(now_ms: int, **changes: Any) -> World:
    world = World(**changes)
    world.now_ms = now_ms
    return world


def told(world: World, policy_terms: PolicyTerms | None = None, *, type: str = "a.b", **fields: Any) -> Posted:
    """Post one message; its answer."""
    target = fields.pop("target", "")
    more = b',"type":"%b","data":1' % type.encode() + (b',"target":"%b"' % target.encode() if target else b"")
    ref = world.post(policy_terms=policy_terms, more=more, **fields)
    (answer,) = [answer for answer in of(world.settle(), Posted) if answer.ref == ref]
    return answer


def wants(world: World, profile: Profile) -> None:
    put(world, profile)
    world.settle()


def fire(world: World, sid: str = "3-abc", *, due_ms: int = 0, policy_terms: PolicyTerms | None = None, **fields: Any) -> list[Any]:
    """A timer fires; what the schedulers are told."""
    due_ms = due_ms or world.now_ms
    timer = Timer(
        sid,
        "t:u",
        due_ms,
        5,
        HOUR_MS,
        Envelope("late", b"d" * 8, NORMAL, True, b'"id":"late","type":"a"', policy_terms=policy_terms),
        **fields,
    )
    world.fire([timer])
    said = [record for _, record in world.core.output.to_schedulers]
    world.core.output.to_schedulers.clear()
    return said


def later(world: World, ms: int = 300) -> list[dict[str, Any]]:
    """Time passes; what is delivered on connection 1."""
    world.now_ms += ms
    world.core.tick(world.now_ms)
    return shown(world.settle())


def shown(records: list[Any]) -> list[dict[str, Any]]:
    deliveries = [record for record in of(records, Deliver) if record.conn == 1]
    return [json.loads(b'{"seq":%d,%b}' % (seq, body)) for delivery in deliveries for seq, _, body in delivery.messages]


class WithoutWindows(World):
    """A shard that has the contact policy without the feature of windows."""

    def judge(self, mailboxes: Mapping[str, Mailbox], memory: Memory) -> Judge:
        return PolicyJudge(self.config, zone)
