"""Actions that fired and are not done yet, in Redis: one stream per target, and one consumer group, whose consumers are the edges.

    append    the shard of the user, once for a timer: the effect of the timer and the entry are one script
    read      an edge: the entry is pending for it then
    hold      that edge, again and again, while it works on the entry
    claim     another edge, when nobody has held the entry for `action_claim_ms`: the first one has died
    settle    whoever carried it out: the entry is deleted, or becomes a dead letter of its tenant, in one script

A stream has at most `actions_waiting_max` entries. Beyond it the timers fail, and wait in the storage of the schedulers. A target that is
in no rule any more keeps its empty stream, some hundred bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import redis.asyncio as redis
from msgspec import Struct
from redis.exceptions import RedisError, ResponseError

from engine.config import Config
from engine.core.commit.first_result import idempotency_value
from engine.core.model.action import ChannelCap
from engine.core.model.constants import NORMAL, PRIORITIES
from engine.core.model.members import message_bytes_max
from engine.core.model.message import timer_effect_id
from engine.core.model.routing import split_key
from engine.core.wire.records import Timer
from engine.errors import StorageUnavailable
from engine.store.external_streams import trim_external
from engine.store.keys import ACTION_TARGETS_KEY, action_stream_key, dead_letter_key, idempotency_key
from engine.store.lua import Replicas, Script
from engine.store.sealed_fields import is_whole, with_checksum
from engine.store.storage_calls import StorageCalls
from engine.store.stream_groups import read_group

_APPEND = Script.beside(__file__, "action_append")
_FORGET = Script.beside(__file__, "action_forget")
_HOLD = Script.beside(__file__, "action_hold")
_SETTLE = Script.beside(__file__, "action_settle")

GROUP: Final = "engine"

_cap: Final = msgspec.json.Decoder(ChannelCap)


class QueuedAction(Struct, frozen=True):
    """An action that waits for its target.

    Attributes:
        entry: its id in the stream, `<ms since the epoch>-<number>`, by the clock of Redis.
        target: `do` of the rule.
        tenant: of the user.
        user: whom it is about.
        id: of the message in whose place it is.
        key: the same in every try, and after a redrive.
        due_ms: when it fired.
        priority: HIGH, NORMAL or LOW.
        body: that message, a JSON object.
        ttl_ms: how long after `due_ms` it is of use.
        cap: of its channel; None: it has none.
    """

    entry: str
    target: str
    tenant: str
    user: str
    id: str
    key: str
    due_ms: int
    priority: int
    body: bytes
    ttl_ms: int = 0
    cap: ChannelCap | None = None
    damaged: bool = False  # in storage: it is not carried out

    @property
    def since_ms(self) -> int:
        """When it was appended, ms since the epoch."""
        return int(self.entry.partition("-")[0])


async def append_actions(client: redis.Redis, config: Config, timers: Sequence[Timer]) -> tuple[list[str], list[str]]:
    """Append the actions of fired timers, each once. Returns the ids of the timers that took effect, and of those without room.

    Raises StorageUnavailable: some may be appended, and repeating it changes nothing for those.
    """
    calls: list[tuple[list[str], list[Any]]] = []
    for timer in timers:
        assert timer.action is not None, "the timer has an action"
        tenant, user = split_key(timer.key)
        envelope, action = timer.envelope, timer.action
        fields = {
            "tenant": tenant, "user": user, "id": envelope.id, "key": action.key, "due": timer.due_ms, "ttl": timer.ttl_ms,
            "priority": PRIORITIES[envelope.priority], "body": b"{%b}" % envelope.body,
        }  # fmt: skip
        if action.cap is not None:
            fields["cap"] = msgspec.json.encode(action.cap)
        keys = [idempotency_key(timer.key, timer_effect_id(timer.sid)), action_stream_key(action.target), ACTION_TARGETS_KEY]
        effect = idempotency_value(envelope.digest, 0, timer.sid)
        calls.append(
            (keys, [effect, config.idempotency_caller_s, config.actions_waiting_max, action.target, *_flat(with_checksum(keys[1], fields))])
        )
    replies = await _APPEND.run_many(client, calls, Replicas.wanted(config))
    stored, full = list[str](), list[str]()
    for timer, reply in zip(timers, replies, strict=True):
        (stored if reply[0] == b"OK" else full).append(timer.sid)
    return stored, full


class ActionStreams:
    """The streams, for one edge.

    Args:
        consumer: the edge's name; its next process takes over what was pending for it.
    """

    def __init__(self, client: redis.Redis, config: Config, consumer: str) -> None:
        self._client = client
        self._config = config
        self._consumer = consumer
        self._looked_at: dict[str, bytes] = {}  # by target, up to where `claim` has looked; those that it has looked at all of are left out

    async def targets(self) -> set[str]:
        """All targets that have a stream. Raises StorageUnavailable."""
        with StorageCalls("targets of actions"):
            found: Any = await self._client.smembers(ACTION_TARGETS_KEY)
        return {target.decode() for target in found}

    async def forget(self, target: str) -> None:
        """Forget a target that no action waits for; the next action for it makes it known again. Raises StorageUnavailable."""
        await _FORGET.run(self._client, [action_stream_key(target), ACTION_TARGETS_KEY], [target])

    async def read(self, target: str, count: int, *, again: bool = False) -> list[QueuedAction]:
        """Up to `count` actions for this edge: new ones, or `again` those that were pending for it already. Raises StorageUnavailable."""
        with StorageCalls("actions"):
            found = await read_group(self._client, action_stream_key(target), GROUP, self._consumer, count, again=again, make_stream=False)
        return _actions(target, found)

    async def claim(self, target: str, count: int) -> list[QueuedAction]:
        """Up to `count` actions that no edge has held for `action_claim_ms`; they are this edge's now. Raises StorageUnavailable.

        Redis looks at ten times as many of those that are held, so each call goes on where the one before it stopped.
        """
        begin = self._looked_at.pop(target, b"0-0")
        try:
            found: Any = await self._client.xautoclaim(
                action_stream_key(target), GROUP, self._consumer, self._config.action_claim_ms, begin, count
            )
        except ResponseError as error:
            if str(error).startswith("NOGROUP"):
                return []
            raise StorageUnavailable(f"actions: {error}") from error
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"actions: {error}") from error
        if found[0] != b"0-0":
            self._looked_at[target] = found[0]
        return _actions(target, found[1])

    async def hold(self, target: str, entries: Sequence[str]) -> set[str]:
        """Keep these entries from being claimed; returns those that this edge still has. Raises StorageUnavailable."""
        reply = await _HOLD.run(self._client, [action_stream_key(target)], [GROUP, self._consumer, *entries])
        return {entry.decode() for entry in reply[1]}

    async def done(self, action: QueuedAction) -> None:
        """It was carried out. Idempotent. Raises StorageUnavailable."""
        await self._settle(action, [])

    async def give_up(self, action: QueuedAction, reason: str, tries: int) -> None:
        """It becomes a dead letter. Idempotent. Raises StorageUnavailable."""
        letter = {
            "user": action.user, "seq": 0, "id": action.id, "priority": PRIORITIES[action.priority], "reason": reason,
            "attempts": tries, "body": action.body, "action": action.target, "key": action.key,
        }  # fmt: skip
        limits, stream = self._config, dead_letter_key(action.tenant)
        await self._settle(action, _flat(with_checksum(stream, letter)))
        await trim_external(self._client, stream, limits.dead_letters_max, 1, limits.dead_letters_bytes_max, message_bytes_max(limits))

    async def _settle(self, action: QueuedAction, letter: list[Any]) -> None:
        keys = [action_stream_key(action.target), dead_letter_key(action.tenant)]
        await _SETTLE.run(self._client, keys, [GROUP, action.entry, *letter])


def _flat(fields: Mapping[Any, Any]) -> list[Any]:
    return [part for field in fields.items() for part in field]


def _actions(target: str, entries: Sequence[Any]) -> list[QueuedAction]:
    """The actions of these entries; one that was deleted while it was pending has no fields."""
    return [_action(target, entry.decode(), fields) for entry, fields in entries if fields]


def _action(target: str, entry: str, fields: Mapping[bytes, bytes]) -> QueuedAction:
    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="replace")

    damaged = not is_whole(action_stream_key(target).encode(), fields)
    priority = text(b"priority")
    return QueuedAction(
        entry=entry,
        target=target,
        tenant=text(b"tenant"),
        user=text(b"user"),
        id=text(b"id"),
        key=text(b"key"),
        due_ms=0 if damaged else int(text(b"due")),
        priority=PRIORITIES.index(priority) if priority in PRIORITIES else NORMAL,
        body=b"{}" if damaged else fields.get(b"body", b"{}"),
        ttl_ms=0 if damaged else int(fields.get(b"ttl", b"0")),
        cap=None if damaged or b"cap" not in fields else _cap.decode(fields[b"cap"]),
        damaged=damaged,
    )
