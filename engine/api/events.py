"""`POST /v1/events`: an event goes through the rules; what they make of it is published, scheduled or cancelled.

    event --parse--> rules --> what rules ask for later --> shards (`engine.api.inactivity`)
                           --> cancellations --CancelAll--> schedulers
                           --> notifications --drafts-----> shards and schedulers, as if a publisher had sent them

Cancellations are decided before anything is published, so an event that ends one thing and begins another does both. All of
it is repeatable: cancelling twice is cancelling once, and the ids of notifications come from the event. So a publisher who got no
answer, or a 503, sends the event again.

A rule may look at the user (`$level`, how recently active): only then the user's shard is asked, before the rules are applied.

The id of an event is the publisher's `id`; without one, the whole event when it has a `ts`, else `type`, `user`, `actor` and `target`
within `idempotency_event_s`.

The rules are read again when their file changes, without a restart. A file that cannot be used is refused with its line and
reason, once per change, and the rules of before stay in force. Shards need no rules: the limits of a category and the conditions
that must hold when the time has come travel with each notification.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from engine.api import profiles
from engine.api.inactivity import Followers, Happening, InactivityTimers, split
from engine.auth.tokens import Principal
from engine.config import Config
from engine.core.model.names import is_event_type, is_id, is_user
from engine.core.model.routing import mailbox_key
from engine.core.rules.rules import Notification, Rules, RulesOutcome, delivery_id
from engine.core.rules.toml_loader import parse_rules
from engine.core.wire.records import OK
from engine.errors import Invalid, RulesError
from engine.gateway.shard_client import ShardClient
from engine.http.problems import RETRY_AFTER_S, bad_request, too_large, unavailable
from engine.publish import media_types
from engine.publish.drafts import TS_MS_MAX, Draft, parse_drafts
from engine.publish.results import ItemResult

log = logging.getLogger(__name__)

_NO_RULES: Final = Rules((), False)


class _Event(Struct, forbid_unknown_fields=True):
    """An event as it is sent."""

    type: str
    user: str
    id: str | UnsetType = UNSET
    actor: Any = UNSET
    target: Any = UNSET
    context: Any = UNSET
    ts: int | UnsetType = UNSET
    data: Any = UNSET


_EVENT: Final = msgspec.json.Decoder(_Event)


class RuleBook:
    """The rules in force: the last file that could be used.

    Args:
        config: with `rules_path`; "" for no rules.
        clock: milliseconds that never step.
    """

    def __init__(self, config: Config, clock: Callable[[], int]) -> None:
        self._path = Path(config.rules_path) if config.rules_path else None
        self._check_ms = config.rules_check_ms
        self._clock = clock
        self._next_ms = clock()
        self._seen: tuple[int, int] | None = None
        self._rules = _NO_RULES
        self.refused = ""  # why the file as it is now is not in force; "" when it is

    def rules(self) -> Rules:
        """The rules in force. Looks at the file when that is due: one `stat`, and reading it only when it has changed."""
        if self._path is not None and self._clock() >= self._next_ms:
            self._next_ms = self._clock() + self._check_ms
            self._look(self._path)
        return self._rules

    def _look(self, path: Path) -> None:
        try:
            stat = path.stat()
            seen = (stat.st_mtime_ns, stat.st_size)
            if seen == self._seen:
                return
            self._seen = seen
            rules = parse_rules(path.read_text("utf-8"), str(path))
        except (OSError, ValueError, RulesError) as error:
            reason = str(error) if isinstance(error, RulesError) else f"{path}: {error}"
            if reason != self.refused:
                log.error("the rules are not taken, those of before stay in force: %s", reason)
            self.refused = reason
            return
        self._rules, self.refused = rules, ""
        log.info("%d rules read from %s", len(rules.rules), path)


class EventEndpoint:
    """Takes events on an edge.

    Args:
        requests: where notifications and cancellations go.
        book: the rules.
        wall_ms: milliseconds since the epoch.
    """

    def __init__(self, config: Config, requests: ShardClient, book: RuleBook, wall_ms: Callable[[], int]) -> None:
        self._config = config
        self._requests = requests
        self._book = book
        self._wall_ms = wall_ms
        self._following = InactivityTimers(requests, wall_ms)

    async def take(self, body: bytes, principal: Principal) -> dict[str, Any]:
        """Let the rules have one event.

        Returns `{"matched": [rule], "results": [...], "scheduled": [scheduled id], "cancelled": n}`.

        Raises:
            Problem: the event is malformed; or not everything it led to was taken: send it again.
        """
        event, payload = read_event(body, self._config)
        now_ms = self._wall_ms()
        delivery = _delivery(event, payload, now_ms, self._config.idempotency_event_s * 1000)
        rules = self._book.rules()
        apply = partial(rules.apply, event.type, payload, delivery, tenant=principal.tenant, now_ms=now_ms)
        outcome = await self._knowing(apply, principal.tenant)  # before the event itself counts as activity
        happening = Happening(event.type, event.user, now_ms, delivery)
        if event.ts is not UNSET:
            happening = Happening(event.type, event.user, min(event.ts, now_ms))
        followers = await self._following.happened(rules, happening, outcome.notifications, principal.tenant)
        cancelled = await self._cancel(outcome, principal.tenant)
        results = await self._send(outcome.notifications, principal, now_ms, rules, followers)
        scheduled = [result.scheduled_id for result in results if result.scheduled_id]
        return {"matched": outcome.matched, "results": msgspec.to_builtins(results), "scheduled": scheduled, "cancelled": cancelled}

    async def _knowing(self, apply: Callable[..., RulesOutcome], tenant: str) -> RulesOutcome:
        """What the rules make of an event. Where they look at what is known of a user, that user's shard is asked first."""
        wanted: dict[str, Mapping[str, Any]] = {}
        outcome = apply(person=lambda user: wanted.setdefault(user, {}))
        if not wanted:
            return outcome
        answers = await asyncio.gather(*(profiles.get(self._requests, mailbox_key(tenant, user)) for user in wanted))
        for user, answer in zip(wanted, answers, strict=True):
            wanted[user] = {"level": answer.profile.level if answer.profile is not None else "", "active_ms": answer.active_ms}
        return apply(person=wanted.__getitem__)

    async def _cancel(self, outcome: RulesOutcome, tenant: str) -> int:
        """Cancel what the event ends; returns how many notifications those were."""
        keys = dict.fromkeys((mailbox_key(tenant, cancellation.user), cancellation.collapse) for cancellation in outcome.cancellations)
        answers = await asyncio.gather(*(self._requests.cancel_all(*key) for key in keys))
        failed = next((answer for answer in answers if answer.status != OK), None)
        if failed is not None:
            raise unavailable(failed.detail or "durable storage did not answer", RETRY_AFTER_S)
        return sum(answer.count for answer in answers)

    async def _send(
        self, notifications: list[Notification], principal: Principal, now_ms: int, rules: Rules, followers: Followers
    ) -> list[ItemResult]:
        """Publish and schedule; one result for each notification."""
        if not notifications:
            return []
        drafts = self._drafts(notifications, principal, now_ms, rules)
        plain, following = split(notifications, drafts)
        results = dict(zip(plain, await self._requests.post([drafts[place] for place in plain]) if plain else [], strict=True))
        arming = ((notifications[place], drafts[place]) for place in following)
        armed = await asyncio.gather(*(self._following.arm(one, draft, followers[one.user, one.rule]) for one, draft in arming))
        results |= zip(following, armed, strict=True)
        return [results[place] for place in range(len(drafts))]

    def _drafts(self, notifications: list[Notification], principal: Principal, now_ms: int, rules: Rules) -> list[Draft]:
        # When it is sent is no part of what an id stands for: a repeat of the event may find the user more active than the first did.
        body = msgspec.json.encode([{**notification.item(), "delay": 0} for notification in notifications])
        drafts = parse_drafts(body, None, principal, self._config, now_ms, self._requests.new_id, rules.categories)
        for draft, notification in zip(drafts, notifications, strict=True):
            draft.collapse = notification.collapse
            if notification.delay_ms:
                draft.due_ms = now_ms + notification.delay_ms
                draft.expires_ms = draft.due_ms + draft.ttl_ms
            draft.conditions = notification.conditions
            if draft.conditions is not None and not draft.due_ms:
                draft.due_ms = now_ms  # conditions are judged when a timer fires
        return drafts


def read_event(body: bytes, config: Config) -> tuple[_Event, dict[str, Any]]:
    """The event of a request body, and the payload that rules look into.

    Raises:
        Problem: 400, 413 or 422.
    """
    if len(body) > config.body_bytes_max:
        raise too_large(config)
    try:
        event = _EVENT.decode(body)
        _check(event, config)
        payload = {name: value for name in event.__struct_fields__ if (value := getattr(event, name)) is not UNSET}
        for name, bytes_max in (
            ("actor", config.context_bytes_max),
            ("target", config.context_bytes_max),
            ("context", config.context_bytes_max),
            ("data", config.data_bytes_max),
        ):
            if name in payload and len(msgspec.json.encode(payload[name])) > bytes_max:
                raise Invalid(f"at most {bytes_max} bytes", f"$.{name}")
    except msgspec.ValidationError as error:
        raise media_types.unacceptable(media_types.invalid(error, _Event)) from None
    except Invalid as error:
        raise media_types.unacceptable(error) from None
    except RecursionError:
        raise media_types.unacceptable(Invalid(f"nested too deeply; at most {config.json_depth_max} levels are allowed")) from None
    except msgspec.DecodeError as error:
        raise bad_request(media_types.malformed(error)) from None
    except UnicodeDecodeError:
        raise bad_request("the body is not valid UTF-8") from None
    return event, payload


def _check(event: _Event, config: Config) -> None:
    chars_max = config.id_chars_max
    if not is_event_type(event.type, chars_max):
        raise Invalid(f"words of letters, digits, _ and - joined by dots, at most {chars_max} characters", "$.type")
    if not is_user(event.user, chars_max):
        raise Invalid(f"text of 1 to {chars_max} characters without control characters", "$.user")
    if event.id is not UNSET and not is_id(event.id, chars_max):
        raise Invalid(f"printable text of 1 to {chars_max} characters", "$.id")
    if event.ts is not UNSET and not 0 <= event.ts <= TS_MS_MAX:
        raise Invalid(f"milliseconds since the epoch, 0 to {TS_MS_MAX}", "$.ts")


def _delivery(event: _Event, payload: dict[str, Any], now_ms: int, bucket_ms: int) -> str:
    """Identifies the event, see the module's text."""
    if event.id is not UNSET:
        return event.id
    if event.ts is not UNSET:
        return delivery_id(event.type, payload)
    parts = [event.type, event.user, payload.get("actor"), payload.get("target"), now_ms // bucket_ms]
    return hashlib.sha1(msgspec.json.encode(parts, order="deterministic"), usedforsecurity=False).hexdigest()
