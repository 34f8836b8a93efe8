"""`POST /v1/events`: an event goes through the rules; what they make of it is published, scheduled or cancelled.

    event --parse--> rules --> drafts of the notifications: all valid, or 422 and nothing has changed
                           --> conditions to be decided later --Happened--> shards (`engine.features.rules.inactivity`)
                           --> cancellations --CancelAll--> schedulers
                           --> drafts --> shards and schedulers, as if a publisher had sent them

Everything is validated before anything is changed, so an event that is refused has had no effect. Cancellations come before what is
published, so an event that ends one thing and begins another does both. All of it is repeatable: an event that has cancelled does not
cancel again within ten minutes, nor what it has begun itself, and the ids of notifications come from the event. So a publisher that got
no answer, or a 503, sends the event again.

Events take turns with publish requests, by tenant. One that concerns more users than a publish request may have items is refused before
anything is made of it; of a large one, what is made takes a turn for each few notifications.

A rule may depend on the user (`$level`, language, last activity): only then the user's shard is asked, before the rules are applied.

The id of an event is the publisher's `id`; without one, a hash of the whole event and of its `ts`; without that either, of the event and of
the time at which it came first within ten minutes.

Shards need no rules: the limits of a category and the conditions that must hold at delivery travel with each notification.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from engine.api.json_bodies import decode_body
from engine.auth.tokens import Principal
from engine.config import Config
from engine.core.mailbox.broadcast_log import EVERYONE
from engine.core.model.action import action_of, parse_target
from engine.core.model.constants import TS_MS_MAX
from engine.core.model.json_depth import within_depth
from engine.core.model.names import is_event_type, is_id, is_user
from engine.core.model.routing import audience_key, mailbox_key, split_key
from engine.core.policy.profile import NO_PROFILE
from engine.core.wire.records import ALREADY_FIRED, NOT_FOUND, OK, ProfileIs
from engine.errors import Invalid, StorageUnavailable
from engine.features.policy import profiles
from engine.features.policy.message_links import MessageLinks
from engine.features.rules.core.rules import (
    ALREADY,
    NO_RECIPIENT,
    NOT_A_TOPIC,
    NOT_A_USER,
    NOT_ROLLED_OUT,
    OWN_ACTION,
    Notification,
    Plan,
    Rules,
    UserFacts,
    delivery_id,
)
from engine.features.rules.core.staging import AppliedRules
from engine.features.rules.event_arrivals import SAME_EVENT_MS, EventArrivals
from engine.features.rules.event_sample import EventSample
from engine.features.rules.figures import RuleCounts
from engine.features.rules.inactivity import Followers, Happening, InactivityTimers, split
from engine.features.rules.rule_book import RuleBook
from engine.gateway.gateway import ArmSteps
from engine.gateway.shard_client import ShardClient
from engine.http.problems import RETRY_AFTER_S, Problem, too_large, unavailable
from engine.publish import media_types
from engine.publish.drafts import Draft, Drafter
from engine.publish.items import Collapse, Item
from engine.publish.media_types import Form, ParsedBody
from engine.publish.request_queue import RequestQueue
from engine.publish.request_trace import RequestTrace
from engine.publish.results import ItemResult
from engine.publish.type_retention import keep_by_type

log = logging.getLogger(__name__)


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

OWN: Final = "own"
"""In place of the names of tenants' own rules, in metrics: they would be without number."""

_SKIPPED: Final = {
    NO_RECIPIENT: "no_recipient",
    OWN_ACTION: "own_action",
    ALREADY: "already_notified",
    NOT_A_USER: "not_a_user",
    NOT_A_TOPIC: "not_a_topic",
    NOT_ROLLED_OUT: "not_rolled_out",
}
"""Why a rule makes nothing for a user, as metrics name it; any other reason is what is wrong with the notification."""


_STEP: Final = 32
"""Notifications that are made in one turn: a third of a millisecond, with Jinja2 two."""

_NOTIFICATION_BYTES: Final = 1024
"""Parsing so much of a publish request takes as long as making a notification with an average template."""


class EventEndpoint:
    """Takes events on an edge.

    Args:
        shard_client: carries out what the rules make of an event.
        request_queue: events take turns there with publish requests.
        arrivals: of events without an id.
        sample: events are recorded and counted there.
        wall_ms: milliseconds since the epoch.
        arm_steps: arms the steps of categories, see `engine.gateway.gateway.ArmSteps`.
    """

    def __init__(
        self,
        config: Config,
        shard_client: ShardClient,
        request_queue: RequestQueue,
        rule_book: RuleBook,
        arrivals: EventArrivals,
        sample: EventSample,
        wall_ms: Callable[[], int],
        counts: RuleCounts,
        message_links: MessageLinks,
        arm_steps: ArmSteps,
    ) -> None:
        self._steps = arm_steps
        self._message_links = message_links
        self._counts = counts
        self._config = config
        self._shard_client = shard_client
        self._request_queue = request_queue
        self._rule_book = rule_book
        self._arrivals = arrivals
        self._sample = sample
        self._wall_ms = wall_ms
        self._inactivity_timers = InactivityTimers(shard_client, wall_ms)

    async def take(self, body: bytes, principal: Principal, trace: RequestTrace | None = None) -> dict[str, Any]:
        """Apply the rules to one event. What they make of it has the contexts of `trace`.

        Returns `{"matched": [rule], "results": [...], "scheduled": [scheduled id], "cancelled": n}`.

        Raises:
            Problem: 400, 413 or 422, the event or what the rules make of it is not valid, and nothing was changed; 409, 429 or 503,
                not everything it led to was accepted: after the latter two the publisher sends it again.
        """
        tenant = principal.tenant
        turns = _Turns(self._request_queue, tenant)
        await turns.wait(len(body))
        event, payload = read_event(body, self._config)
        now_ms = self._wall_ms()
        delivery = await self._delivery(event, payload, tenant, now_ms)
        rules = self._rule_book.in_force(tenant)
        applied = await self._apply(rules.plan(event.type, payload, delivery, tenant=tenant), tenant, now_ms, turns)
        notifications = [made for part in applied for made in part.outcome.notifications]
        once = delivery_id(event.type, {"id": delivery})  # publishers give an order's id to each event of the order
        happening = Happening(event.type, event.user, now_ms, once)
        if event.ts is not UNSET:
            recent = event.ts > now_ms - SAME_EVENT_MS  # by a clock ahead, its repeat would have come later than the event
            happening = Happening(event.type, event.user, min(event.ts, now_ms), once if recent else "")
        drafts = await self._drafts(applied, tenant, now_ms, happening.at_ms, trace, turns)
        if linked := frozenset[str]().union(*(part.rules.linked for part in applied)):
            await self._message_links.add(drafts, linked)
        followers = await self._inactivity_timers.happened(rules, happening, notifications, tenant)
        cancelled = await self._cancel_once(applied, drafts, tenant, once, now_ms)
        results, refused = await self._send(notifications, drafts, followers)
        await self._arm_steps(applied, drafts, results)
        if refused is not None:
            raise refused
        self._sample.add(tenant, delivery, now_ms, body)
        # A repeat made its notification before, and so did an event by which a timer follows the user already.
        fresh = [result.status != "duplicate" and result.id == made.id for made, result in zip(notifications, results, strict=True)]
        self._sample.count(applied, fresh)
        self._record(event, delivery, applied, results, fresh, tenant)
        if trace is not None and results:
            trace.answered(results)
        scheduled = [result.scheduled_id for result in results if result.scheduled_id]
        matched = list(dict.fromkeys(name for part in applied for name in part.outcome.matched))
        return {"matched": matched, "results": msgspec.to_builtins(results), "scheduled": scheduled, "cancelled": cancelled}

    async def _delivery(self, event: _Event, payload: dict[str, Any], tenant: str, now_ms: int) -> str:
        """Identifies the event, see the module's text. Raises StorageUnavailable."""
        if event.id is not UNSET:
            return event.id
        content = delivery_id(event.type, payload)
        if event.ts is not UNSET:
            return content
        first_ms = await self._arrivals.first(tenant, content, now_ms)
        return delivery_id(event.type, {"content": content, "first_ms": first_ms})

    def _record(
        self,
        event: _Event,
        delivery: str,
        applied: Sequence[AppliedRules],
        results: Sequence[ItemResult],
        fresh: Sequence[bool],
        tenant: str,
    ) -> None:
        """Count and record what each rule made of the event, of its notifications the `fresh` ones."""
        record = self._shard_client.record
        record(mailbox_key(tenant, event.user), "event", delivery, kind=event.type)
        parts = ((part, made) for part in applied for made in part.outcome.notifications)
        for (part, made), result, is_fresh in zip(parts, results, fresh, strict=True):
            if is_fresh:
                reason = f"action: {parse_target(made.do).label}" if made.do else f"variant: {made.variant}" if made.variant else ""
                key = _recipient_key(tenant, made.user, made.topic)
                self._counts.triggered(OWN if part.rules.own else made.rule)
                record(key, "triggered", made.id, kind=made.type, rule=made.rule, timer=result.scheduled_id, reason=reason)
        for part, skipped in ((one, skipped) for one in applied for skipped in one.outcome.skipped):
            self._counts.skipped(OWN if part.rules.own else skipped.rule, _SKIPPED.get(skipped.reason, "invalid"))
            record(mailbox_key(tenant, skipped.user), "skipped", rule=skipped.rule, reason=skipped.reason)

    async def _apply(self, plans: Sequence[tuple[int, Rules, Plan]], tenant: str, now_ms: int, turns: _Turns) -> list[AppliedRules]:
        """What the rules make of an event. Where it depends on users, their shards are asked, and all is made again.

        Raises:
            Problem: 413, it is too much.
        """
        items_max = self._config.items_max
        if max(sum(len(plan.planned) for _, _, plan in plans), sum(len(plan.cancellations) for _, _, plan in plans)) > items_max:
            raise media_types.too_many(self._config)
        wanted: dict[str, Mapping[str, Any]] = {}
        applied = await _made(plans, tenant, now_ms, lambda user: wanted.setdefault(user, {}), turns)
        if not wanted:
            return applied
        answers = await asyncio.gather(*(profiles.get(self._shard_client, mailbox_key(tenant, user)) for user in wanted))
        for user, answer in zip(wanted, answers, strict=True):
            wanted[user] = user_facts_of(answer)
        return await _made(plans, tenant, now_ms, wanted.__getitem__, turns)

    async def _drafts(
        self, applied: Sequence[AppliedRules], tenant: str, now_ms: int, happened_ms: int, trace: RequestTrace | None, turns: _Turns
    ) -> list[Draft]:
        """One draft for each notification.

        Raises:
            Problem: 413 or 422, at least one is not valid.
        """
        drafts: list[Draft] = []
        for part in applied:
            notifications = part.outcome.notifications
            default = part.rules.default_terms(tenant)
            for start in range(0, len(notifications), _STEP):
                step = notifications[start : start + _STEP]
                await turns.made(len(step))
                new_id, categories = self._shard_client.new_id, part.rules.categories
                drafter = Drafter(tenant, self._config, now_ms, new_id, categories, compact=False, trace=trace, default_terms=default)
                made = drafter.drafts_of(ParsedBody([_item(notification) for notification in step], [], Form.JSON, array=True))
                for draft, notification in zip(made, step, strict=True):
                    draft.item += len(drafts)
                    _complete(draft, notification, now_ms, happened_ms)
                if part.rules.kept:
                    keep_by_type(made, part.rules.kept)
                drafts += made
        if sum(len(draft.envelope.body) for draft in drafts) > self._config.body_bytes_max:
            raise too_large(self._config.body_bytes_max)
        return drafts

    async def _cancel_once(self, applied: Sequence[AppliedRules], drafts: Sequence[Draft], tenant: str, content: str, now_ms: int) -> int:
        """Cancel what the event ends, unless it did already: a repeat spares what a later event has armed. Returns how many those were."""
        if not any(part.outcome.cancellations for part in applied):
            return 0
        try:
            if await self._arrivals.known(tenant, content):
                return 0
        except StorageUnavailable as error:  # of a Redis Cluster, the first store may be away alone: users of the others are served
            log.debug("a repeat of this event would cancel again: %s", error)
            return await self._cancel(applied, drafts, tenant)
        cancelled = await self._cancel(applied, drafts, tenant)
        await self._arrivals.first(tenant, content, now_ms)
        return cancelled

    async def _cancel(self, applied: Sequence[AppliedRules], drafts: Sequence[Draft], tenant: str) -> int:
        """Cancel what the event ends, and nothing that it begins: its repeat finds that armed. Returns how many those were."""
        ended = [cancellation for part in applied for cancellation in part.outcome.cancellations]
        keys = dict.fromkeys((_recipient_key(tenant, one.user, one.topic), one.collapse) for one in ended)
        begun: dict[tuple[str, str], set[str]] = {}
        for draft in drafts:
            begun.setdefault((draft.key, draft.envelope.collapse), set()).add(draft.envelope.id)
        return sum(await asyncio.gather(*(self._cancelled(*key, begun.get(key)) for key in keys)))

    async def _cancelled(self, key: str, collapse: str, spared: Container[str] | None) -> int:
        """Cancel the timers of a recipient's collapse key, but those of messages with these ids; returns how many."""
        if spared is None:
            answers = [await self._shard_client.cancel_all(key, collapse)]
        else:
            others = [timer.sid async for timer in self._shard_client.every_timer(key, collapse) if timer.envelope.id not in spared]
            answers = await asyncio.gather(*(self._shard_client.cancel(split_key(key)[0], sid) for sid in others))
        failed = next((answer for answer in answers if answer.status not in (OK, ALREADY_FIRED, NOT_FOUND)), None)
        if failed is not None:
            raise unavailable(failed.detail or "durable storage did not answer", RETRY_AFTER_S)
        return sum(answer.count if spared is None else answer.status == OK for answer in answers)

    async def _arm_steps(self, applied: Sequence[AppliedRules], drafts: Sequence[Draft], results: Sequence[ItemResult]) -> None:
        """Arm the steps of rules and categories, each by the version of the rules that made the notification."""
        begin = 0
        for part in applied:
            end = begin + len(part.outcome.notifications)
            if part.rules.have_steps:
                await self._arm_steps_of(part, drafts[begin:end], results[begin:end])
            begin = end

    async def _arm_steps_of(self, part: AppliedRules, drafts: Sequence[Draft], results: Sequence[ItemResult]) -> None:
        own = {rule.name: rule.steps for rule in part.rules.rules if rule.steps}
        by_category: list[int] = []
        for at, notification in enumerate(part.outcome.notifications):
            if notification.rule in own:
                await self._steps(drafts[at : at + 1], results[at : at + 1], {notification.category: own[notification.rule]})
            else:
                by_category.append(at)
        await self._steps([drafts[at] for at in by_category], [results[at] for at in by_category], part.rules.steps)

    async def _send(
        self, notifications: Sequence[Notification], drafts: Sequence[Draft], followers: Followers
    ) -> tuple[list[ItemResult], Problem | None]:
        """Publish and schedule; one result for each draft, and the answer where not all were accepted.

        A conflict stays one at each repeat, so what was accepted beside it is to have its steps and followers now.
        """
        plain, following = split(notifications, drafts)
        refused, posted = None, list[ItemResult]()
        try:
            if plain:
                posted = await self._shard_client.post([drafts[place] for place in plain])
        except Problem as problem:
            if "results" not in problem.members:
                raise
            refused, posted = problem, msgspec.convert(problem.members["results"], list[ItemResult])
        results = dict(zip(plain, posted, strict=True))
        arming = ((notifications[place], drafts[place]) for place in following)
        armed = await asyncio.gather(*(self._inactivity_timers.arm(one, draft, followers[one.user, one.rule]) for one, draft in arming))
        results |= zip(following, armed, strict=True)
        return [results[place] for place in range(len(drafts))], refused


class _Turns:
    """The turns of one event among the requests of all tenants: what is made of it takes one for each `_STEP` notifications."""

    def __init__(self, request_queue: RequestQueue, tenant: str) -> None:
        self._request_queue = request_queue
        self._tenant = tenant
        self._made = 0

    async def wait(self, size: int) -> None:
        """Wait for a turn of `size` bytes. Raises Overloaded."""
        turn = self._request_queue.enter_step(size, self._tenant)
        if turn is not None:
            await turn

    async def made(self, count: int) -> None:
        """So many more notifications are to be made: wait for a turn when there is none left. Raises Overloaded."""
        self._made += count
        if self._made > _STEP:
            self._made = count
            await self.wait(_STEP * _NOTIFICATION_BYTES)


async def _made(
    plans: Sequence[tuple[int, Rules, Plan]], tenant: str, now_ms: int, user_facts: UserFacts, turns: _Turns
) -> list[AppliedRules]:
    applied = []
    for version, rules, plan in plans:
        made = []
        for planned in plan.planned:
            await turns.made(1)
            made.append(rules.make(planned, tenant=tenant, now_ms=now_ms, user_facts=user_facts))
        applied.append(AppliedRules(version, rules, plan.outcome(made)))
    return applied


def user_facts_of(answer: ProfileIs) -> Mapping[str, Any]:
    """What rules may depend on, of the answer of a user's shard."""
    profile = answer.profile or NO_PROFILE
    return {"level": profile.level, "locale": profile.locale, "active_ms": answer.active_ms}


def _complete(draft: Draft, notification: Notification, now_ms: int, happened_ms: int) -> None:
    """Give a draft what no publisher can ask for: conditions, an action, a delay that its digest does not depend on.

    Conditions count from the event at the earliest, whatever `ts` the rule gives: else the event cancels what it arms. And from now at the
    latest: what comes before a `ts` of the future has come since.
    """
    if draft.topic is None or notification.delay_ms:  # a broadcast that is not delayed cannot be cancelled
        draft.envelope = msgspec.structs.replace(draft.envelope, collapse=notification.collapse)
    if notification.delay_ms:
        draft.due_ms = now_ms + notification.delay_ms
        draft.expires_ms = draft.due_ms + draft.ttl_ms
    if notification.conditions is not None:
        since_ms = min(max(notification.conditions.since_ms, happened_ms), now_ms)
        draft.conditions = msgspec.structs.replace(notification.conditions, since_ms=since_ms)
        draft.due_ms = draft.due_ms or now_ms  # conditions are decided when a timer fires
    if notification.do:
        draft.envelope = msgspec.structs.replace(draft.envelope, policy_terms=None)  # it contacts nobody
        draft.due_ms = draft.due_ms or now_ms  # likewise what is called in place of a message
        draft.action = action_of(notification.do, draft.key, draft.envelope.id)


def _recipient_key(tenant: str, user: str, topic: str | None) -> str:
    return mailbox_key(tenant, user) if topic is None else audience_key(tenant, topic)


def _item(notification: Notification) -> Item:
    """A notification as an item of `POST /v1/notifications`.

    `delay` is 0, whatever the rule says: the digest must not depend on it, because a repeat of the event may find the user more active.
    A collapse key without a window is not part of it either: the item of a publisher would be merged by it.
    """
    topic, merge = notification.topic, notification.merge
    collapse: Collapse | UnsetType = UNSET
    if merge is not None:
        collapse = Collapse(notification.collapse, merge.window_ms / 1000, merge.leading, merge.text or UNSET)
    return Item(
        type=notification.type,
        user=notification.user if topic is None else UNSET,
        topic=topic or UNSET,
        broadcast=topic == EVERYONE,
        id=notification.id,
        priority=notification.priority,
        actor=_raw(notification.actor),
        target=_raw(notification.target),
        context=_raw(notification.context),
        data=_raw(notification.data),
        ts=UNSET if notification.ts is None else notification.ts,
        delay=0,
        ttl=notification.ttl_ms / 1000 if notification.ttl_ms else UNSET,
        collapse=collapse,
        category=notification.category or UNSET,
    )


def _raw(value: Any) -> Raw | UnsetType:
    return UNSET if value is None else Raw(msgspec.json.encode(value))


def read_event(body: bytes, config: Config) -> tuple[_Event, dict[str, Any]]:
    """The event of a request body, and the payload that rules look into.

    Raises:
        Problem: 400 or 422.
    """
    try:
        event = decode_body(_EVENT, body, _Event)
        _check(event, config)
        payload = {name: value for name in event.__struct_fields__ if (value := getattr(event, name)) is not UNSET}
        for name, bytes_max in (
            ("actor", config.context_bytes_max),
            ("target", config.context_bytes_max),
            ("context", config.context_bytes_max),
            ("data", config.data_bytes_max),
        ):
            if name in payload:
                text = msgspec.json.encode(payload[name])
                if len(text) > bytes_max:
                    raise Invalid(f"at most {bytes_max} bytes", f"$.{name}")
                if len(text) > 2 * config.json_depth_max and not within_depth(text, config.json_depth_max):
                    raise Invalid(f"nested too deeply; at most {config.json_depth_max} levels are allowed", f"$.{name}")
    except Invalid as error:
        raise media_types.unacceptable(error) from None
    except RecursionError:
        raise media_types.unacceptable(Invalid(f"nested too deeply; at most {config.json_depth_max} levels are allowed")) from None
    return event, payload


def _check(event: _Event, config: Config) -> None:
    chars_max = config.id_chars_max
    if not is_event_type(event.type, chars_max):
        raise Invalid(f"words of letters, digits, _, -, / and : joined by dots, at most {chars_max} characters", "$.type")
    if not is_user(event.user, chars_max):
        raise Invalid(f"text of 1 to {chars_max} characters without control characters", "$.user")
    if event.id is not UNSET and not is_id(event.id, chars_max):
        raise Invalid(f"printable text of 1 to {chars_max} characters", "$.id")
    if event.ts is not UNSET and not 0 <= event.ts <= TS_MS_MAX:
        raise Invalid(f"milliseconds since the epoch, 0 to {TS_MS_MAX}", "$.ts")
