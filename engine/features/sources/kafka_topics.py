"""Topics of Kafka as a source: the offsets of a consumer group say what is settled.

States of a record
    new       beyond what this reader has fetched
    held      fetched, and in its memory until it is settled; the others of its partition are read after it
    settled   accepted or dead, but an earlier record of its partition is held: its offset cannot be committed yet
    gone      below the committed offset of its partition; the topic's own retention says how long it stays there
    dead      in the topic `<topic>.dead` with the reason, written before the offset is committed; without its body where that is too large

Crash points. The reader dies: the next one begins at the committed offsets. What the engine had accepted beyond them is a duplicate, since
an id is made of topic, partition, offset and time: a topic that is made anew counts anew. A dead record beyond them may be in the dead
topic twice, under one id. A broker dies: as the topics' replication makes it. Two readers run at once: the group gives each partition to
one. A commit after the group took the partition away fails, and the reader begins anew. Records of transactions that were rolled back are
never read.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from engine.errors import StorageUnavailable
from engine.features.sources.core import KafkaSource, SourceRow
from engine.features.sources.readers import DeadRow, SourceLag

_BLOCK_S: Final = 1.0
_TIMEOUT_S: Final = 10.0
_REDRIVE_S: Final = 300.0
_FETCHED: Final = 500
_EMPTY_FETCH_MS: Final = 10
"""Of a fetch that finds no record. The next request on its connection waits as long."""
_ID: Final = "engine-id"  # headers of dead records
_REASON: Final = "engine-reason"


class KafkaTopics:
    """See `engine.features.sources.readers.SourceReader`."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._options = connection_options(source)
        self._consumer: Any = None  # of the group
        self._looker: Any = None  # of no group: it reads where it wants
        self._producer: Any = None
        self._admin: Any = None
        self._held: dict[TopicPartition, dict[int, Any]] = {}  # records by offset, and None for a settled one

    async def read(self, limit: int) -> list[SourceRow]:
        """The held records, then new ones of other partitions, for which it waits a second when none is held."""
        async with self._asked(_BLOCK_S + 3 * _TIMEOUT_S):
            if self._consumer is None:
                self._consumer = AIOKafkaConsumer(
                    *self._source.topics,
                    group_id=self._source.group,
                    enable_auto_commit=False,
                    auto_offset_reset="earliest",
                    isolation_level="read_committed",
                    **self._options,
                )
                await self._consumer.start()
            left = limit - sum(record is not None for records in self._held.values() for record in records.values())
            others = self._consumer.assignment() - self._held.keys()
            if left > 0 and (others or not self._held):
                wait_ms = 0 if self._held else int(_BLOCK_S * 1000)
                found = await self._consumer.getmany(*others, timeout_ms=wait_ms, max_records=left)
                self._held |= {place: {record.offset: record for record in records} for place, records in found.items() if records}
        return [
            SourceRow((place, offset), f"{place.topic}:{place.partition}:{offset}:{record.timestamp}", record.value or b"")
            for place, records in self._held.items()
            for offset, record in records.items()
            if record is not None
        ][:limit]

    async def settle(self, accepted: Sequence[SourceRow], dead: Sequence[tuple[SourceRow, str]]) -> None:
        """Write dead records to their topics, and commit the offsets below which all is settled."""
        async with self._asked():
            if dead:
                producer = await self._producing()
                await asyncio.gather(*(self._bury(producer, *letter) for letter in dead))  # one by one, each would wait for the broker
            for row in (*accepted, *(row for row, _ in dead)):
                place, offset = row.key
                self._held[place][offset] = None
            if offsets := {place: offset for place, records in self._held.items() if (offset := _committable(records)) > min(records)}:
                await self._consumer.commit(offsets)
        for place, offset in offsets.items():
            self._held[place] = {at: record for at, record in self._held[place].items() if at >= offset}
            if not self._held[place]:
                del self._held[place]

    async def _bury(self, producer: Any, row: SourceRow, reason: str) -> None:
        place, offset = row.key
        headers = [(_ID, row.id.encode()), (_REASON, reason.encode())]
        try:
            await producer.send_and_wait(f"{place.topic}.dead", row.body, key=self._held[place][offset].key, headers=headers)
        except MessageSizeTooLargeError:  # without body and key, or it would hold up those behind it for ever
            await producer.send_and_wait(f"{place.topic}.dead", b"", headers=headers)

    async def wait(self) -> None:
        """`read` has waited."""

    async def lag(self) -> SourceLag:
        """Offsets beyond the committed ones, and those in the dead topics."""
        async with self._asked():
            looker = await self._looking()
            committed = await (await self._administering()).list_consumer_group_offsets(self._source.group)
            places = await self._places(self._source.topics)
            begins, ends = await looker.beginning_offsets(places), await looker.end_offsets(places)
            nexts = {place: max(begins[place], committed[place].offset if place in committed else 0) for place in places}
            late = {place: offset for place, offset in nexts.items() if offset < ends[place]}
            oldest = [record.timestamp for record in await self._records(late, len(late))]
            dead = await self._dead_ends()
            return SourceLag(
                sum(ends[place] - offset for place, offset in late.items()),
                min(oldest, default=0),
                sum(end - begin for begin, end in dead.values()),
            )

    async def dead_rows(self, limit: int) -> list[DeadRow]:
        """Records of the dead topics, the oldest of each partition first."""
        async with self._asked():
            records = await self._records({place: begin for place, (begin, end) in (await self._dead_ends()).items() if end > begin}, limit)
        return [
            DeadRow(headers.get(_ID, b"").decode(), headers.get(_REASON, b"").decode(), (record.value or b"").decode("utf-8", "replace"))
            for record in records
            for headers in (dict(record.headers),)
        ]

    async def redrive(self) -> int:
        """Write the records that are dead now to their topics again, which gives them new offsets, then delete them."""
        moved = 0
        async with self._asked(_REDRIVE_S):
            producer = await self._producing()
            ends = {place: end for place, (_, end) in (await self._dead_ends()).items()}  # the engine may refuse them again meanwhile
            while places := {place: begin for place, (begin, _) in (await self._dead_ends()).items() if begin < ends.get(place, 0)}:
                done: dict[TopicPartition, RecordsToDelete] = {}
                for record in await self._records(places, _FETCHED):
                    place = TopicPartition(record.topic, record.partition)
                    if record.offset < ends[place]:
                        await producer.send_and_wait(record.topic.removesuffix(".dead"), record.value, key=record.key)
                        moved += 1
                    done[place] = RecordsToDelete(before_offset=min(record.offset + 1, ends[place]))
                await (await self._administering()).delete_records(done)
        return moved

    async def close(self) -> None:
        """Leave the group and close the connections."""
        made = (self._consumer, self._looker, self._producer, self._admin)
        self._consumer = self._looker = self._producer = self._admin = None
        self._held.clear()
        for client in made:
            if client is not None:
                try:
                    await (client.close() if client is made[-1] else client.stop())
                except (KafkaError, OSError):  # it is away: there is nothing to leave
                    continue

    async def _producing(self) -> Any:
        if self._producer is None:
            self._producer = AIOKafkaProducer(acks="all", **self._options)
            await self._producer.start()
        return self._producer

    async def _looking(self) -> Any:
        if self._looker is None:
            self._looker = AIOKafkaConsumer(
                group_id=None,
                enable_auto_commit=False,
                isolation_level="read_committed",
                fetch_max_wait_ms=_EMPTY_FETCH_MS,
                **self._options,
            )
            await self._looker.start()
        return self._looker

    async def _administering(self) -> Any:
        if self._admin is None:
            self._admin = AIOKafkaAdminClient(**self._options)
            await self._admin.start()
        return self._admin

    async def _places(self, topics: Sequence[str]) -> list[TopicPartition]:
        admin = await self._administering()
        found = set(await admin.list_topics()) & set(topics)  # a question about another one would make it
        described = await admin.describe_topics(sorted(found)) if found else []
        return [TopicPartition(topic["topic"], part["partition"]) for topic in described for part in topic["partitions"]]

    async def _dead_ends(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """First and next offset of each partition of the dead topics."""
        looker = await self._looking()
        places = await self._places([f"{topic}.dead" for topic in self._source.topics])
        if not places:
            return {}
        begins, ends = await looker.beginning_offsets(places), await looker.end_offsets(places)
        return {place: (begins[place], ends[place]) for place in places}

    async def _records(self, begins: Mapping[TopicPartition, int], limit: int) -> list[Any]:
        """Records from these offsets on, at most so many; none where a fetch takes too long."""
        if not begins:
            return []
        looker = await self._looking()
        looker.assign(list(begins))
        for place, offset in begins.items():
            looker.seek(place, offset)
        try:
            found = await looker.getmany(timeout_ms=int(_BLOCK_S * 1000), max_records=limit)
        finally:
            looker.unsubscribe()  # it would go on fetching
        return [record for records in found.values() for record in records]

    @asynccontextmanager
    async def _asked(self, timeout_s: float = _TIMEOUT_S) -> AsyncIterator[None]:
        """Raises StorageUnavailable for whatever goes wrong in the block."""
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except (KafkaError, OSError) as error:  # TimeoutError is an OSError
            raise StorageUnavailable(f"source {self._source.name}: {type(error).__name__} {error}".strip()) from error


def _committable(records: Mapping[int, Any]) -> int:
    """The offset below which all of these are settled."""
    return next((offset for offset, record in records.items() if record is not None), max(records) + 1)


def connection_options(source: KafkaSource) -> dict[str, Any]:
    """The arguments of a client: `kafka://` or `kafka+ssl://`, [USER:PASSWORD@], HOST:PORT with commas between several.

    Raises ValueError: a host or a port is malformed.
    """
    scheme, _, rest = source.connection.partition("://")
    login, _, hosts = rest.rstrip("/").rpartition("@")
    if not all(urlsplit(f"//{host}").hostname and urlsplit(f"//{host}").port != 0 for host in hosts.split(",")):
        raise ValueError("a broker has no host")
    secured = scheme == "kafka+ssl"
    options: dict[str, Any] = {"bootstrap_servers": hosts.split(","), "client_id": "notification-engine"}
    options["security_protocol"] = f"SASL_{'SSL' if secured else 'PLAINTEXT'}" if login else "SSL" if secured else "PLAINTEXT"
    if secured:
        options["ssl_context"] = ssl.create_default_context()
    if login:
        user, _, password = login.partition(":")
        options |= {"sasl_mechanism": source.sasl_mechanism}
        options |= {"sasl_plain_username": unquote(user), "sasl_plain_password": unquote(password)}
    return options
