"""The dead letters of a tenant in Redis: a stream that shards append to, and that operators read and delete from.

An entry has the fields `user`, `seq`, `id`, `priority`, `reason`, `attempts` and `body`, the message as a JSON object; an action that was
given up also `action` and `key`, and 0 as `seq`. `crc32c` is the checksum of the others: the body of a damaged entry is never read. The
stream is bounded in entries and bytes, and the oldest entries go. A shard that dies between writing an entry and journalling that writes it
again, so a message may have two entries: same user, number and id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import redis.asyncio as redis
from msgspec import Struct

from engine.config import Config
from engine.core.model.constants import NORMAL, PRIORITIES
from engine.core.model.routing import split_key
from engine.core.shard.mailbox_store import DeadLetter
from engine.store.external_streams import trim_external
from engine.store.keys import dead_letter_key
from engine.store.sealed_fields import is_whole, with_checksum
from engine.store.storage_calls import StorageCalls

_PAGE: Final = 50
"""Entries read at once, up to 70 KB each: some 3 MB."""


class StoredLetter(Struct, frozen=True):
    """A dead letter as it is stored.

    Attributes:
        letter: its id in the stream, `<ms since the epoch>-<number>`, by the clock of Redis.
        user: whose message it was.
        seq: the number it had in the user's mailbox.
        id: the id of the message.
        priority: HIGH, NORMAL or LOW.
        reason: why it was refused.
        attempts: how often it had been sent on connections that have ended, or on which its tries were used up.
        body: the message, a JSON object; empty when the entry is damaged.
        action: what was to be called in its place (`engine.core.model.action`), "" for none.
        key: of that action.
    """

    letter: str
    user: str
    seq: int
    id: str
    priority: int
    reason: str
    attempts: int
    body: bytes
    action: str = ""
    key: str = ""

    @property
    def at_ms(self) -> int:
        """When it became a dead letter, ms since the epoch."""
        return int(self.letter.partition("-")[0])


class LetterPage(Struct, frozen=True):
    """Some of a tenant's dead letters. `after` is to be given for those that follow, "" at the end; `total` is the number of all."""

    letters: list[StoredLetter]
    after: str
    total: int


async def write_dead_letters(
    client: redis.Redis, letters: Sequence[DeadLetter], length_max: int, bytes_max: int = 0, letter_bytes_max: int = 1
) -> None:
    """Append messages that clients rejected to `dead:<tenant>`.

    At most `length_max` are kept, and about `bytes_max` bytes, 0 for no limit; the oldest go. One has at most `letter_bytes_max`.

    Raises StorageUnavailable; some may have been written, and a repeat writes those twice.
    """
    with StorageCalls("dead letters"):
        pipeline = client.pipeline(transaction=False)
        for letter in letters:
            tenant, user = split_key(letter.key)
            message = letter.message
            fields: dict[str, str | bytes | int] = {
                "user": user,
                "seq": message.seq,
                "id": message.envelope.id,
                "priority": PRIORITIES[message.envelope.priority],
                "reason": letter.reason,
                "attempts": message.attempts,
                "body": b"{%b}" % message.envelope.body,
            }
            stream = dead_letter_key(tenant)
            pipeline.xadd(stream, with_checksum(stream, fields))
        await pipeline.execute()
    for tenant, added in Counter(split_key(letter.key)[0] for letter in letters).items():
        await trim_external(client, dead_letter_key(tenant), length_max, added, bytes_max, letter_bytes_max)


class DeadLetterStream:
    """The dead letters, for edges."""

    def __init__(self, client: redis.Redis, config: Config) -> None:
        self._client = client
        self._looked_max = config.dead_letters_looked_max

    async def page(self, tenant: str, user: str = "", after: str = "", count: int = _PAGE, *, oldest_first: bool = False) -> LetterPage:
        """Up to `count` dead letters behind `after` ("" for the first), newest first, or oldest first; of one user, or of all ("").

        Looks at no more than `dead_letters_looked_max` entries, so a page for one user may have fewer than `count`, or none, and others
        follow: only an empty `after` is the end.

        Raises StorageUnavailable.
        """
        key, found, looked = dead_letter_key(tenant), list[StoredLetter](), 0
        with StorageCalls("dead letters"):
            total = int(await self._client.xlen(key))
            if after.strip("0") == "-" and not oldest_first:  # before 0-0 there is nothing, and Redis refuses to look there
                return LetterPage([], "", total)
            while True:
                wanted = min(count - len(found), _PAGE) if not user else _PAGE
                entries: Any
                if oldest_first:
                    entries = await self._client.xrange(key, f"({after}" if after else "-", "+", wanted)
                else:
                    entries = await self._client.xrevrange(key, f"({after}" if after else "+", "-", wanted)
                for letter, fields in entries:
                    after, looked = letter.decode(), looked + 1
                    if not user or fields.get(b"user") == user.encode():
                        found.append(stored_letter(tenant, after, fields))
                        if len(found) == count:
                            return LetterPage(found, after, total)
                if len(entries) < wanted:
                    return LetterPage(found, "", total)
                if looked >= self._looked_max:
                    return LetterPage(found, after, total)

    async def read(self, tenant: str, letters: Sequence[str]) -> list[StoredLetter | None]:
        """The dead letters of these ids, None for each that is there no more. Raises StorageUnavailable."""
        with StorageCalls("dead letters"):
            pipeline = self._client.pipeline(transaction=False)
            for letter in letters:
                pipeline.xrange(dead_letter_key(tenant), letter, letter)
            found: list[Any] = await pipeline.execute()
        return [stored_letter(tenant, letter, entries[0][1]) if entries else None for letter, entries in zip(letters, found, strict=True)]

    async def remove(self, tenant: str, letters: Sequence[str]) -> int:
        """Delete dead letters; returns how many there were. Idempotent. Raises StorageUnavailable: some may be deleted."""
        if not letters:
            return 0
        with StorageCalls("dead letters"):
            return int(await self._client.xdel(dead_letter_key(tenant), *letters))


def stored_letter(tenant: str, letter: str, fields: Mapping[bytes, bytes]) -> StoredLetter:
    """A dead letter of a tenant from the id and the fields of its entry."""

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="replace")

    priority = text(b"priority")
    return StoredLetter(
        letter=letter,
        user=text(b"user"),
        seq=_number(fields, b"seq"),
        id=text(b"id"),
        priority=PRIORITIES.index(priority) if priority in PRIORITIES else NORMAL,
        reason=text(b"reason"),
        attempts=_number(fields, b"attempts"),
        body=fields.get(b"body", b"{}") if is_whole(dead_letter_key(tenant).encode(), fields) else b"",
        action=text(b"action"),
        key=text(b"key"),
    )


def _number(fields: Mapping[bytes, bytes], name: bytes) -> int:
    """A number of an entry; 0 where it is damaged."""
    digits = fields.get(name, b"")
    return int(digits) if digits.isdigit() else 0
