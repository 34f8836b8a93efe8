"""Writes what all shards share, in the first store: actions of rules, broadcasts that are due, dead letters, session events.

In tasks of their own: nobody waits for pages because the first store is away, and no client waits for the session log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import redis.asyncio as redis

from engine.actors.actor_process import RETRY_S
from engine.actors.broadcast_follower import BroadcastFollower
from engine.config import Config
from engine.core.shard.shard import ShardCore
from engine.errors import StorageUnavailable
from engine.store.external_streams import trim_session_events, write_session_events
from engine.store.shard_feature import ShardFeature, drop_dead_letters, refuse_actions

log = logging.getLogger(__name__)

_SESSION_EVENTS_WRITTEN: Final = 50
"""Session events per write: some 1 ms of the shard's time, during which no message is delivered, when thousands lose their connection."""

_SESSION_EVENTS_TRIM: Final = 1000
"""After so many the stream is trimmed: ten of its nodes, of a million entries."""

_SESSION_EVENTS_PAUSE_S: Final = 0.01
"""Between two such writes while more events wait: nobody waits for them. Those of 10 000 lost connections take 5 s."""


class SharedStreams:
    """Writes for one shard.

    Args:
        client, first: of the store that has the shard's users, and of the first store.
        features: store actions and dead letters; without them timers with actions fail, and refused messages end.
        flush: carries out what the core wants.
    """

    def __init__(
        self,
        config: Config,
        client: redis.Redis,
        first: redis.Redis,
        core: ShardCore,
        follower: BroadcastFollower,
        features: Sequence[ShardFeature],
        *,
        flush: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._client = client
        self._first = first
        self._core = core
        self._follower = follower
        self._store_actions = next((feature.store_actions for feature in features if feature.store_actions), refuse_actions)
        self._store_dead_letters = next(
            (feature.store_dead_letters for feature in features if feature.store_dead_letters), drop_dead_letters
        )
        self._flush = flush
        self._now_ms = now_ms
        self._hand_on_wanted = asyncio.Event()
        self._session_events_wanted = asyncio.Event()

    def wake(self) -> None:
        """Begin when the core has something to write."""
        core = self._core
        if core.broadcast_audience.announcements or core.fired_timers.acting or core.mailbox_store.dead_letters:
            self._hand_on_wanted.set()
        if self._core.output.session_events:
            self._session_events_wanted.set()

    async def run(self) -> None:
        """Write actions, broadcasts and dead letters until cancelled."""
        while True:
            await self._hand_on_wanted.wait()
            self._hand_on_wanted.clear()
            try:
                await self._hand_on()
            except StorageUnavailable as error:
                log.warning("shard %d: %s", self._core.index, error)
                await asyncio.sleep(RETRY_S)
                self._hand_on_wanted.set()
            self._flush()

    async def _hand_on(self) -> None:
        """Try each of the three: actions that keep coming must not keep the others waiting while the store is away."""
        failures = []
        for write in (self._write_actions, self._follower.announce, self._write_dead_letters):
            try:
                await write()
            except StorageUnavailable as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def _write_actions(self) -> None:
        fired = self._core.fired_timers
        if acting := fired.take_acting():
            try:
                stored, full = await self._store_actions(acting)
            except StorageUnavailable:
                fired.failed([timer.sid for timer in acting])
                raise
            fired.done(stored)
            fired.failed(full)

    async def _write_dead_letters(self) -> None:
        core = self._core
        if letters := core.mailbox_store.take_dead_letters():
            try:
                await self._store_dead_letters(letters)
            except StorageUnavailable:
                core.mailbox_store.dead_letters_failed(letters)
                raise
            core.dead_lettered(letters, self._now_ms())

    async def run_session_events(self) -> None:
        """Write the session log until cancelled."""
        output, untrimmed = self._core.output, 0
        while True:
            await self._session_events_wanted.wait()
            self._session_events_wanted.clear()
            while events := output.take_session_events(_SESSION_EVENTS_WRITTEN):
                try:
                    if untrimmed >= _SESSION_EVENTS_TRIM:
                        await trim_session_events(self._first, self._config.session_stream_max, untrimmed)
                        untrimmed = 0
                    await write_session_events(self._first, events, own=self._client)
                    untrimmed += len(events)
                except StorageUnavailable as error:
                    log.warning("shard %d: %s", self._core.index, error)
                    output.return_session_events(events)
                    await asyncio.sleep(RETRY_S)
                if output.session_events:
                    await asyncio.sleep(_SESSION_EVENTS_PAUSE_S)
