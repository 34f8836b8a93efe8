"""`/v1/rules`: versions of the rules are stored, tried on recorded events, staged to a share of the users, put in force and rolled back.

    operator --PUT, stage, rollback--> check --> RulesStore (durable, or refused: somebody else was first) --> in force here --> answer
                                                    ^-- the other edges follow (`engine.features.rules.rules_follower`)

Every change names the state that it was made from (`If-Match`, RFC 9110 section 13.1.1): without one it is refused (428, RFC 6585), after
another operator's change too (412). A change that is in effect already is answered as if it had just been made, so a request whose answer
was lost can be repeated. Rules that cannot be used are refused before anything is stored.

A dry run applies a text or a version, and the version in force, to a sample of recent events (`engine.features.rules.event_sample`) and
answers how the outcomes differ. It runs in a thread, one at a time on an edge, and changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from engine.api.json_bodies import decode_body
from engine.config import Config
from engine.core.model.routing import mailbox_key
from engine.errors import CorruptRecord, EngineError, Invalid, RulesError, StorageUnavailable
from engine.features.policy import profiles
from engine.features.rules.core.dry_run import OutcomeDifference, difference
from engine.features.rules.core.rules import Rule, Rules, RulesOutcome
from engine.features.rules.core.versions import FILE, AskedByRules, VersionInfo, VersionState
from engine.features.rules.event_sample import EventSample
from engine.features.rules.events import read_event, user_facts_of
from engine.features.rules.recorded_events import RecordedEvent, RecordedEvents
from engine.features.rules.rule_book import RuleBook, parse_version
from engine.features.rules.rules_follower import ParseVersion, RulesFollower
from engine.features.rules.rules_store import RulesStore, StoredState
from engine.gateway.gateway import Gateway
from engine.http.problems import RETRY_AFTER_S, Problem, bad_request, conflict, not_found, too_many_requests, unavailable, unprocessable
from engine.publish import media_types

log = logging.getLogger(__name__)

_ASKED_AT_ONCE: Final = 50
"""Users whose shards are asked at the same time by a dry run."""

_DRY_RUN_USERS_MAX: Final = 500
"""Users whose level and language one dry run asks for."""

_VERSIONS_MAX: Final = 50
"""Versions that are kept for rolling back: 12 MiB of the largest."""


class _StageRequest(Struct, forbid_unknown_fields=True):
    version: int
    share: float


class _RollbackRequest(Struct, forbid_unknown_fields=True):
    version: int | UnsetType = UNSET


class _Recorded(Struct):
    """A recorded event, read."""

    event: RecordedEvent
    type: str
    user: str
    payload: dict[str, Any]

    def outcome(self, rules: Rules, facts: Mapping[tuple[str, str], Mapping[str, Any]], asked: dict[tuple[str, str], None]) -> RulesOutcome:
        """What these rules make of it. The users that they depend on are added to `asked`."""
        tenant = self.event.tenant

        def user_facts(user: str) -> Mapping[str, Any]:
            asked[tenant, user] = None
            return facts.get((tenant, user), {})

        return rules.apply(self.type, self.payload, self.event.delivery, tenant=tenant, now_ms=self.event.at_ms, user_facts=user_facts)


class RulesEndpoint:
    """The rules of one edge, and what operators do with them.

    Args:
        gateway: of the edge: its clocks, and the shards that know users.
        parse: reads a version.
        tenant: whose own they are; "": the operator's.
    """

    def __init__(
        self,
        config: Config,
        gateway: Gateway,
        store: RulesStore,
        sample_store: RecordedEvents,
        parse: ParseVersion = parse_version,
        tenant: str = "",
    ) -> None:
        self._parse = parse
        self._tenant = tenant
        self._config = config
        self._gateway = gateway
        self._store = store
        self._sample_store = sample_store
        self.rule_book = RuleBook(config, gateway.clock)
        self.follower = RulesFollower(config, store, self.rule_book, parse)
        self.sample = EventSample(config, sample_store)
        self._dry_run = asyncio.Semaphore(1)
        if not tenant:  # what one tenant has stored does not degrade an edge
            gateway.metrics.degraded["rules"] = self.rule_book.reason
            gateway.kept_of_user["sampled_events"] = self.sample.kept_rows
            gateway.erase_of_user["sampled_events"] = self.sample.erase

    def for_tenant(self, tenant: str, config: Config, store: RulesStore, parse: ParseVersion) -> RulesEndpoint:
        """The rules of a tenant's own, which share the sample of events with these, and the turn of dry runs."""
        made = RulesEndpoint(config, self._gateway, store, self._sample_store, parse, tenant)
        made.sample, made._dry_run = self.sample, self._dry_run
        return made

    def stats(self) -> dict[str, Any]:
        """What this edge runs, for its row in the status."""
        in_force = self.rule_book.stored
        return {
            "version": in_force.version,
            "staged": in_force.staged_version,
            "share": in_force.share,
            "refused": self.rule_book.reason(),
            "counts": self.sample.counts,
        }

    # -- Reading. ----------------------------------------------------------------------------------------------------------
    async def overview(self, edges: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
        """The entity tag and the members of `GET /v1/rules`; `edges` are their rows of the status."""
        stored = await self._read()
        return stored.stamp, self._shown(stored, edges)

    async def text(self, number: str) -> str:
        """The text of a version. Raises Problem, 404 when it is not kept."""
        version = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else -1
        try:
            texts = await self._store.texts([version]) if version > 0 else {}
        except (StorageUnavailable, CorruptRecord) as error:
            raise unavailable(str(error), RETRY_AFTER_S) from None
        if version not in texts:
            raise not_found(f"there is no stored version {number}")
        return texts[version]

    def _shown(self, stored: StoredState, edges: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        state, config = stored.state, self._config
        rows = [(f"edge-{row['index']}", row["rules"]) for row in edges if isinstance(row.get("rules"), Mapping) and not self._tenant]
        counts: dict[str, list[int]] = {}
        for _, row in rows:
            for name, numbers in row["counts"].items():
                counts[name] = [one + other for one, other in zip(counts.get(name, (0, 0, 0)), numbers, strict=True)]
        active = None if self.rule_book.unread else self.rule_book.rules()
        return {
            "revision": stored.stamp,
            "source": "stored" if state.active else "file" if config.rules_path else "none",
            "active": state.active,
            **({"staged": {"version": state.staged, "share": state.share}} if state.staged else {}),
            **({"file": {"path": config.rules_path, "refused": self.rule_book.file_refused}} if config.rules_path else {}),
            "versions": [_version_shown(info, state) for info in reversed(state.versions)],
            "changes": msgspec.to_builtins(state.changes),
            "edges": [{"edge": edge, **{name: row[name] for name in ("version", "staged", "share", "refused")}} for edge, row in rows],
            "rules": [_rule_shown(rule, counts) for rule in (active.rules if active is not None else ())],
        }

    async def _read(self, given: str = "") -> StoredState:
        """The stored state. `given`: the `If-Match` of a change; one of whatever it is replaces a state that cannot be read."""
        try:
            try:
                return await self._store.read()
            except CorruptRecord as error:
                if given.strip() != "*":
                    raise unavailable(f"{error}; a change with If-Match: * replaces them", RETRY_AFTER_S) from None
                return await self._store.recovered()
        except StorageUnavailable as error:
            raise unavailable(str(error), RETRY_AFTER_S) from None

    # -- Changing. ---------------------------------------------------------------------------------------------------------
    async def put(self, body: bytes, share_text: str, if_match: str | None, by: str) -> tuple[str, dict[str, Any]]:
        """Store a new version, and put it in force for a share of the users; the entity tag and the members of the answer.

        Args:
            body: TOML.
            share_text: 0 to 1 in decimal digits; "" for everyone.
            if_match: the header.
            by: who asks.

        Raises:
            Problem: 400 or 422, they cannot be used; 412, 428 or 503.
        """
        given = _given(if_match)
        share = _share_of(share_text)
        text, rules = await self._parsed(body)
        stored = await self._read(given)
        digest = hashlib.sha256(text.encode()).hexdigest()
        newest = stored.state.versions[-1] if stored.state.versions else None
        if newest is not None and newest.digest == digest and _in_effect(stored.state, newest.version, share):
            return self._answer(stored, newest.version)
        _check_match(given, stored)
        now_ms = self._gateway.wall_ms()
        asked = AskedByRules(rules.events_asked, rules.activity_asked)
        info = VersionInfo(stored.state.last + 1, now_ms, by, len(rules.rules), len(text.encode()), digest, asked)
        state = stored.state.stored(info, _VERSIONS_MAX)
        if share > 0:
            state = state.staged_to(info.version, share, by, now_ms)
        return self._answer(await self._change(stored, state, text), info.version)

    async def stage(self, body: bytes, if_match: str | None, by: str) -> tuple[str, dict[str, Any]]:
        """Put a stored version in force for a share of the users. Raises Problem."""
        given = _given(if_match)
        request = decode_body(_STAGE, body, _StageRequest)
        if not 0 <= request.share <= 1:
            raise media_types.unacceptable(Invalid("a number from 0 (nobody) to 1 (everyone)", "$.share"))
        stored = await self._read(given)
        if _in_effect(stored.state, request.version, request.share):
            return self._answer(stored, request.version)
        _check_match(given, stored)
        try:
            state = stored.state.staged_to(request.version, request.share, by, self._gateway.wall_ms())
        except Invalid as error:
            raise _impossible(error) from None
        await self._check_usable(state)
        return self._answer(await self._change(stored, state), request.version)

    async def rollback(self, body: bytes, if_match: str | None, by: str) -> tuple[str, dict[str, Any]]:
        """Take the newest step back, or put the version that is named in force again. Raises Problem."""
        given = _given(if_match)
        request = decode_body(_ROLLBACK, body or b"{}", _RollbackRequest)
        version = None if request.version is UNSET else request.version
        stored = await self._read(given)
        if version is not None and _in_effect(stored.state, version, 1):
            return self._answer(stored, version)
        _check_match(given, stored)
        try:
            state = stored.state.rolled_back(version, by, self._gateway.wall_ms())
        except Invalid as error:
            raise _impossible(error) from None
        await self._check_usable(state)
        return self._answer(await self._change(stored, state), state.active)

    async def _check_usable(self, state: VersionState) -> None:
        """Refuse to put in force what this edge cannot use: settings may have changed since it was stored. Raises Problem."""
        numbers = [number for number in (state.active, state.staged) if number]
        try:
            texts = await self._store.texts(numbers)
        except (StorageUnavailable, CorruptRecord) as error:
            raise unavailable(str(error), RETRY_AFTER_S) from None
        for number in numbers:
            if number not in texts:
                raise unavailable(f"version {number} is not in storage any more; stage or activate another one", RETRY_AFTER_S)
            await self._parsed(texts[number].encode(), number)

    async def _change(self, stored: StoredState, state: VersionState, text: str | None = None) -> StoredState:
        try:
            changed = await self._store.change(stored, state, text)
        except StorageUnavailable as error:
            raise unavailable(f"{error}; it may have been stored: read the rules before you repeat it", RETRY_AFTER_S) from None
        if changed is None:
            raise _other_state((await self._read()).stamp)
        change = state.changes[0]
        log.info("rules: version %d %s by %s", change.version, change.what, change.by)
        try:
            await self.follower.catch_up()
        except StorageUnavailable as error:
            log.warning("rules: stored, and not yet in force here: %s", error)
        return changed

    def _answer(self, stored: StoredState, version: int) -> tuple[str, dict[str, Any]]:
        state = stored.state
        staged = {"staged": {"version": state.staged, "share": state.share}} if state.staged else {}
        return stored.stamp, {"version": version, "revision": stored.stamp, "active": state.active, **staged}

    async def _parsed(self, body: bytes, version: int = 0) -> tuple[str, Rules]:
        """A text of rules, and the rules. Raises Problem: they cannot be used here."""
        if len(body) > self._config.rules_bytes_max:
            raise Problem(413, f"rules have at most {self._config.rules_bytes_max} bytes", title="Content Too Large")
        try:
            text = body.decode()
            return text, await asyncio.to_thread(self._parse, text, version, self._config)
        except UnicodeDecodeError:
            raise bad_request("the body is not valid UTF-8") from None
        except RulesError as error:
            line = {"line": error.line} if error.line else {}
            raise unprocessable(str(error), [{"path": error.path or "$", **line, "detail": str(error)}]) from None

    # -- Trying. -----------------------------------------------------------------------------------------------------------
    async def dry_run(self, body: bytes, query: Mapping[str, str]) -> dict[str, Any]:
        """How outcomes of recorded events would differ under other rules: those of the body, or `version` of the query.

        Raises:
            Problem: 400, 404, 422; 429, another dry run is under way; 503.
        """
        limit = _limit_of(query.get("limit", ""), self._config.dry_run_events_max)
        if bool(body) == ("version" in query):
            raise bad_request("either a body with rules, or the query parameter `version` is needed")
        _, then = await self._parsed(body or (await self.text(query["version"])).encode())
        if self._dry_run.locked():
            raise too_many_requests("another dry run is under way at this edge", RETRY_AFTER_S)
        async with self._dry_run:
            in_force = self.rule_book.in_force()
            return await self._compare(in_force.version, in_force.active, then, query, limit)

    async def _compare(self, version: int, now: Rules, then: Rules, query: Mapping[str, str], limit: int) -> dict[str, Any]:
        tenant, kind = self._tenant or query.get("tenant"), query.get("type")
        await self.sample.flush()
        since_ms = self._gateway.wall_ms() - self._config.recorded_events_keep_s * 1000
        found = await self._sample_store.newest(self._config.recorded_events_max if tenant or kind else limit, since_ms)
        events = await asyncio.to_thread(self._select, found, tenant, kind, limit)
        asked: dict[tuple[str, str], None] = {}
        run = partial(_outcomes, events, now, then)
        outcomes = await asyncio.to_thread(run, {}, asked)
        if asked:
            outcomes = await asyncio.to_thread(run, await self._facts_of(list(asked)[:_DRY_RUN_USERS_MAX]), {})
        return _dry_run_shown(version, events, outcomes)

    def _select(self, found: Sequence[RecordedEvent], tenant: str | None, kind: str | None, limit: int) -> list[_Recorded]:
        """The newest events that the query names."""
        selected: list[_Recorded] = []
        for one in found:
            if tenant is not None and one.tenant != tenant:
                continue
            try:
                event, payload = read_event(one.body, self._config)
            except Problem:  # limits were lowered since it was recorded
                continue
            if kind is None or event.type == kind:
                selected.append(_Recorded(one, event.type, event.user, payload))
                if len(selected) == limit:
                    break
        return selected

    async def _facts_of(self, users: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Mapping[str, Any]]:
        """What is known of these users now. A dry run goes on without those whose shard does not answer."""
        facts: dict[tuple[str, str], Mapping[str, Any]] = {}
        for first in range(0, len(users), _ASKED_AT_ONCE):
            some = users[first : first + _ASKED_AT_ONCE]
            asking = (profiles.get(self._gateway.shard_client, mailbox_key(*user)) for user in some)
            for user, answer in zip(some, await asyncio.gather(*asking, return_exceptions=True), strict=True):
                if isinstance(answer, EngineError):
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                facts[user] = user_facts_of(answer)
        return facts


def _outcomes(
    events: Sequence[_Recorded],
    now: Rules,
    then: Rules,
    facts: Mapping[tuple[str, str], Mapping[str, Any]],
    asked: dict[tuple[str, str], None],
) -> list[tuple[RulesOutcome, RulesOutcome]]:
    return [(event.outcome(now, facts, asked), event.outcome(then, facts, asked)) for event in events]


def _dry_run_shown(version: int, events: Sequence[_Recorded], outcomes: Sequence[tuple[RulesOutcome, RulesOutcome]]) -> dict[str, Any]:
    rules: dict[str, dict[str, int]] = {}
    shown: list[dict[str, Any]] = []
    for event, (now, then) in zip(events, outcomes, strict=True):
        for member, outcome in (("now", now), ("then", then)):
            for made in outcome.notifications:
                rules.setdefault(made.rule, {"now": 0, "then": 0})[member] += 1
        found = difference(now, then)
        if found.any:
            shown.append({**_event_shown(event), **_difference_shown(found)})
    return {
        "against": version,
        "events": len(events),
        "same": len(events) - len(shown),
        **({"since": min(event.event.at_ms for event in events)} if events else {}),
        "rules": rules,
        "differences": shown,
    }


def _event_shown(recorded: _Recorded) -> dict[str, Any]:
    event = recorded.event
    return {"event": {"tenant": event.tenant, "type": recorded.type, "user": recorded.user, "id": event.delivery, "at": event.at_ms}}


def _difference_shown(found: OutcomeDifference) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(found).items() if value}


def _version_shown(info: VersionInfo, state: VersionState) -> dict[str, Any]:
    word = "active" if info.version == state.active else "staged" if info.version == state.staged else "stored"
    return {"version": info.version, "at": info.at, "by": info.by, "rules": info.rules, "bytes": info.bytes, "state": word}


def _rule_shown(rule: Rule, counts: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    shown = {"name": rule.name, "events": sorted(rule.events), "type": rule.type, "category": rule.category}
    if rule.prefix:  # a tenant's own, which nobody counts
        return shown
    return shown | dict(zip(("matched", "sent", "skipped"), counts.get(rule.name, (0, 0, 0)), strict=True))


def _in_effect(state: VersionState, version: int, share: float) -> bool:
    """Whether a version is in force for this share of the users, and no other one is tried."""
    if share >= 1:
        return state.active == version and not state.staged
    if share <= 0:
        return version not in (state.active, state.staged, FILE) and state.of(version) is not None
    return state.staged == version and state.share == share


def _given(if_match: str | None) -> str:
    """The header, which every change needs, also one that is in effect already. Raises Problem: 428."""
    if if_match is None:
        detail = "If-Match is needed: the `revision` that GET /v1/rules answers, in double quotes, or * for whatever it is now"
        raise Problem(428, detail, title="Precondition Required")
    return if_match


def _check_match(if_match: str, stored: StoredState) -> None:
    """Check that a change was made from the state that is stored. Raises Problem: 412."""
    tags = [tag.strip().removeprefix("W/").strip('"') for tag in if_match.split(",")]
    if if_match.strip() != "*" and stored.stamp not in tags:
        raise _other_state(stored.stamp)


def _impossible(error: Invalid) -> Problem:
    """Of a step that the stored versions do not allow."""
    return conflict(error.detail, type="about:blank", errors=[{"path": error.path, "detail": error.detail}])


def _other_state(stamp: str) -> Problem:
    return Problem(412, f'the rules were changed meanwhile: read them, and repeat it with If-Match: "{stamp}"', revision=stamp)


def _share_of(text: str) -> float:
    if not text:
        return 1.0
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise bad_request("`share`: a number from 0 (nobody yet) to 1 (everyone)")
    return share


def _limit_of(text: str, limit_max: int) -> int:
    if not text:
        return min(100, limit_max)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= limit_max):
        raise bad_request(f"`limit`: a number from 1 to {limit_max}")
    return int(text)


_STAGE: Final = msgspec.json.Decoder(_StageRequest)
_ROLLBACK: Final = msgspec.json.Decoder(_RollbackRequest)
