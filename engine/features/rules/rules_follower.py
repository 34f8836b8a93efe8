"""Keeps an edge's rules as storage says: read before it serves, followed from then on.

    RulesStore (Redis) --stamp, every rules_poll_ms; state and texts when it has changed--> RulesFollower --StoredRules--> RuleBook

A version is parsed once, in a thread, while events go on with the versions of before; the new ones replace them as a whole. One that
cannot be used here is refused: what was in force stays in force, `/readyz` and `engine_edge_degraded` say `rules`, `GET /v1/rules` and the
log why. It is tried again when storage has another state.

An edge that cannot reach storage goes on with what it has: nothing can be stored meanwhile either. One that dies reads everything at its
next start. Who puts a version in force gets the answer when it is durable and in force on the edge that took it; the others follow within
`rules_poll_ms` and the time to parse it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from engine.config import Config
from engine.core.model.period import until_next
from engine.errors import CorruptRecord, RulesError, StorageUnavailable
from engine.features.rules.core.rules import Rules
from engine.features.rules.core.versions import VersionState
from engine.features.rules.rule_book import RuleBook, StoredRules, parse_version
from engine.features.rules.rules_store import RulesStore

log = logging.getLogger(__name__)


ParseVersion = Callable[[str, int, Config], Rules]
"""See `engine.features.rules.rule_book.parse_version`."""


async def follow(catch_up: Callable[[], Awaitable[None]], poll_ms: int) -> None:
    """Catch up with storage again and again, until cancelled. Storage that is away is reported by whoever needs it."""
    while True:
        await asyncio.sleep(until_next(time.monotonic(), poll_ms / 1000))
        try:
            await catch_up()
        except StorageUnavailable as error:
            log.debug("rules: %s", error)


class RulesFollower:
    """Puts what storage says in force.

    Args:
        parse: reads a version.
    """

    def __init__(self, config: Config, store: RulesStore, rule_book: RuleBook, parse: ParseVersion = parse_version) -> None:
        self._parse = parse
        self._config = config
        self._store = store
        self._rule_book = rule_book
        self._stamp: str | None = None
        self._followed = False  # what storage says has been in force here
        self._parsed: dict[tuple[int, str], Rules] = {}  # in use, by number and digest
        self._turn = asyncio.Lock()

    async def catch_up(self) -> None:
        """Put in force what storage says now. Raises StorageUnavailable."""
        async with self._turn:
            if await self._store.stamp() == self._stamp:
                return
            self._stamp = None  # what cannot be read may have changed between two reads: the next turn looks again
            try:
                stored = await self._store.read()
                self._stamp = stored.stamp  # what cannot be used stays so until storage has another state
                rules = await self._rules_of(stored.state)
            except CorruptRecord as error:
                self._stamp = None
                self._refuse(str(error))
                return
            except RulesError as error:
                self._refuse(str(error))
                return
            except StorageUnavailable:
                self._stamp = None
                raise
            self._followed = True
            self._rule_book.put_in_force(rules)
            self._rule_book.version_refused = ""
            if stored.stamp:
                log.info("rules: version %d is in force%s", rules.version, _staged(rules))

    async def run(self) -> None:
        """Follow storage until cancelled."""
        await follow(self.catch_up, self._config.rules_poll_ms)

    async def _rules_of(self, state: VersionState) -> StoredRules:
        """The versions that are in force by this state. Raises RulesError, CorruptRecord or StorageUnavailable."""
        parsed: dict[tuple[int, str], Rules] = {}
        wanted = [info for number in (state.active, state.staged) if number and (info := state.of(number)) is not None]
        texts = await self._store.texts(info.version for info in wanted if (info.version, info.digest) not in self._parsed)
        by_number: dict[int, Rules] = {}
        for info in wanted:
            key = info.version, info.digest
            if key not in self._parsed and info.version not in texts:
                raise CorruptRecord(f"version {info.version} is not in storage any more")
            rules = self._parsed.get(key)
            if rules is None:
                rules = await asyncio.to_thread(self._parse, texts[info.version], info.version, self._config)
            parsed[key] = by_number[info.version] = rules
        self._parsed = parsed
        if state.active and state.active not in by_number:
            raise CorruptRecord(f"version {state.active} is not in storage any more")
        active, staged = by_number.get(state.active), by_number.get(state.staged)
        return StoredRules(state.active, active, state.staged, staged, state.share, asked=state.asked)

    def _refuse(self, reason: str) -> None:
        if reason != self._rule_book.version_refused:
            log.error("rules that are stored cannot be used here, those of before stay in force: %s", reason)
        self._rule_book.version_refused = reason
        if not self._followed:  # without rules of before: an answer without a match would be taken for the rules' own
            self._rule_book.put_in_force(StoredRules(usable=False))


def _staged(rules: StoredRules) -> str:
    return f", version {rules.staged_version} for {rules.share:.1%} of the users" if rules.staged_version else ""
