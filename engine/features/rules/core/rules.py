"""Declarative rules that turn events into notifications, applied without I/O. `engine.features.rules.core.toml_loader` parses them.

    [defaults]
    actor = "sender.login"                      # path: the user who acted

    [category.digest]                           # limits of a category, see `engine.features.policy.core.contact_policy`
    cap = 3                                     # at most so many per user
    per = "1d"                                  # within a rolling window of this length
    same_type = "72h"                           # the same type at most once in this time
    quiet = true                                # quiet hours defer it; `mandatory = true`: no limit applies
                                                # "touch" is predefined with these limits
    [total]                                     # of all categories together, but those with `total = false`
    cap = 5
    per = "1d"
    user_may = ["on", "digest"]                 # what users may choose; left out: these, "off" and "inbox"
    default = "on"                              # for users who have not chosen; "off": only users who choose it get it
    title = "Your week"                         # as preferences and unsubscribe pages name it

    [[rule]]
    name = "comment"
    event = ["issue_comment", "discussion_comment"]
    action = "created"
    when = [{ path = "comment.user.type", not_equal = "Bot" }]
    recipients = ["issue.user.login", "discussion.user.login"]
    mentions = ["comment.body"]                 # texts whose @logins are recipients as well
    type = "github.comment"
    title = "{sender.login} commented on {issue.title|discussion.title}"

    delay = "15m"                               # or by level and activity, see `engine.features.rules.core.delay`
    collapse = "comments/{issue.number}"        # scheduled notifications of one key are cancelled together
    cancel_on = ["issue.closed"]                # these events cancel what this rule has scheduled for the user
    category = "touch"                          # whose limits apply
    rollout = { share = 0.1, tenants = ["acme"] }
    fire = { unless_active = true }             # evaluated when the notification is due
    do = "ray://shop/carts.touch"               # act in place of notifying, see `engine.core.model.action`
    template = { text = "{% if event.n > 1 %}{{ event.n }} comments{% endif %}" }   # Jinja2, see `engine.features.rules.core.jinja_content`
    locales = { de = { title = "..." } }        # and `variants`, see `engine.features.rules.core.content`
    ttl = "1h"                                  # not delivered after
    window = "5m"                               # those of one collapse key become one, see `engine.features.windows.core.aggregation`
    leading = true                              # the first of them is delivered at once
    summary = "{count} people commented"        # the text of that one

    [[rule]]                                    # for the subscribers of a topic, or with `broadcast = true` for everyone: stored once
    name = "release"
    event = "release"
    topic = "releases/{repository.name}"
    type = "github.release"

A rule matches when its event, its action (when it names any) and all its conditions do. All rules are tried, in the order of
the file. The event `*` matches every event. An event notifies a user immediately at most once, by the first rule that names them, so
the most urgent rules come first; delayed notifications and actions neither count nor are left out. Nobody is notified of their own
action unless the rule has `notify_self`, which is the default of a rule with `do`. What goes to a topic or to everyone reaches its
author too.

The template `id` makes the id of a notification, and name and delivery of the rule do where it has no value. It is the same each time the
same delivery is applied, so the engine treats a repeat as a duplicate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from engine.core.mailbox.broadcast_log import EVERYONE
from engine.core.model.defined_categories import DefinedCategories
from engine.core.model.envelope import Merge
from engine.core.model.names import is_topic, is_user
from engine.core.model.placeholders import EventPath, Scope, Template
from engine.core.model.step import ChannelStep
from engine.core.policy.conditions import Conditions
from engine.errors import Invalid
from engine.features.rules.core.content import ContentTemplate, RuleContent
from engine.features.rules.core.delay import Delay, Rollout
from engine.features.rules.core.mentions import mentions
from engine.features.rules.core.shapes import Shape, render_shape

NAME_CHARS_MAX: Final = 128  # of users, types and ids: the default limit of the engine

_TS_MS_MAX: Final = 253_402_300_799_999  # the year 9999

PriorityName = Literal["high", "normal", "low"]


class Condition(Struct, frozen=True):
    """A test of the values at a path: one of equals, not_equal, in, exists."""

    path: EventPath
    test: str
    operand: Any

    def holds(self, scope: Scope) -> bool:
        """Does it hold? For a list, equals and in hold when they do for any element, not_equal when no element is equal."""
        values = self.path.values(scope)
        if self.test == "exists":
            return bool(values) is bool(self.operand)
        if self.test == "not_equal":
            return all(value != self.operand for value in values)
        return any(value == self.operand if self.test == "equals" else value in self.operand for value in values)


class Audience(Struct, frozen=True):
    """The subscribers of the topic with this name, or everyone when it is None."""

    topic: Template | None = None

    def name(self, scope: Scope) -> str | None:
        """The topic, `EVERYONE` for everyone; None when the event has no name for it that a topic can have."""
        if self.topic is None:
            return EVERYONE
        name = self.topic.render(scope)
        return name if isinstance(name, str) and is_topic(name, NAME_CHARS_MAX) else None


class Rule(Struct, frozen=True):
    """One rule, with paths and templates parsed and the file's defaults filled in."""

    name: str
    events: frozenset[str]
    actions: frozenset[str]
    conditions: tuple[Condition, ...]
    recipients: tuple[EventPath, ...]
    mentions: tuple[EventPath, ...]
    notify_self: bool
    type: str
    priority: PriorityName
    actor: EventPath | None
    target: Shape | None
    context: Shape | None
    ts: Template | None
    id: Template
    content: RuleContent = RuleContent()
    audience: Audience | None = None
    delay: Delay = Delay()
    ttl_ms: int = 0
    window_ms: int = 0
    leading: bool = False
    collapse: Template | None = None
    cancel_on: frozenset[str] = frozenset()
    category: str = ""
    rollout: Rollout = Rollout()
    fire: Conditions = Conditions(0)
    member_of: Template | None = None
    do: str = ""
    prefix: str = ""  # of its collapse keys; of a tenant's own rule
    steps: tuple[ChannelStep, ...] = ()  # in place of its category's

    @property
    def immediate(self) -> bool:
        """Whether it notifies at once: a user is notified so by one rule only."""
        return not (self.do or self.delay.fixed_ms or self.delay.levels or self.fire.any or self.member_of is not None)

    def mismatch(self, event: str, action: Any, scope: Scope) -> str:
        """Why the rule does not match an event; "" when it does."""
        if event not in self.events and EVERY_EVENT not in self.events:
            return f"it is about {', '.join(sorted(self.events))}"
        if self.actions and not (isinstance(action, str) and action in self.actions):
            return f"the action is {action!r}, not one of {', '.join(sorted(self.actions))}"
        failed = next((number for number, condition in enumerate(self.conditions) if not condition.holds(scope)), None)
        return "" if failed is None else f"when[{failed}] does not hold"

    def matches(self, event: str, action: Any, scope: Scope) -> bool:
        return not self.mismatch(event, action, scope)

    def key(self, scope: Scope) -> str:
        """The collapse key of what this rule schedules, by default its name; "" when nothing of it can be cancelled."""
        if self.collapse is not None:
            return short(f"{self.prefix}{self.collapse.render(scope)}")
        return self.name if self.cancel_on or self.fire.inactive_ms or self.window_ms else ""

    def users(self, scope: Scope) -> list[str]:
        """The users it names, recipients before mentions, possibly with repetitions."""
        named = [value for path in self.recipients for value in path.values(scope)]
        for path in self.mentions:
            named += [login for text in path.values(scope) if isinstance(text, str) for login in mentions(text)]
        return [str(value) for value in named if isinstance(value, str | int) and not isinstance(value, bool)]


class Notification(Struct, frozen=True, kw_only=True):
    """A notification for one user, or for `topic`. `ts` in ms since the epoch; None stands for what the event does not contain."""

    rule: str
    user: str
    id: str
    type: str
    priority: PriorityName
    actor: str | None
    target: Any
    context: Any
    ts: int | None
    data: dict[str, Any]
    delay_ms: int = 0
    collapse: str = ""
    category: str = ""
    conditions: Conditions | None = None
    do: str = ""  # what is called in place of delivering it
    topic: str | None = None  # its subscribers, or EVERYONE; `user` is "" then
    ttl_ms: int = 0
    merge: Merge | None = None
    variant: str = ""

    def item(self) -> dict[str, Any]:
        """As an item of `POST /v1/notifications`."""
        fields = {name: getattr(self, name) for name in _ITEM_FIELDS}
        item = {**self._recipient(), **{name: value for name, value in fields.items() if value is not None}}
        if self.category:
            item["category"] = self.category
        if self.ttl_ms:
            item["ttl"] = self.ttl_ms / 1000
        if self.merge is not None:
            item["collapse"] = {"key": self.collapse, "window": self.merge.window_ms / 1000, "leading": self.merge.leading}
            item["collapse"] |= {"text": self.merge.text} if self.merge.text else {}
        return {**item, "delay": self.delay_ms / 1000} if self.delay_ms else item

    def _recipient(self) -> dict[str, Any]:
        if self.topic is None:
            return {"user": self.user}
        return {"broadcast": True} if self.topic == EVERYONE else {"topic": self.topic}


_ITEM_FIELDS: Final = ("id", "type", "priority", "actor", "target", "context", "ts", "data")


class Cancellation(Struct, frozen=True, omit_defaults=True):
    """What `rule` has scheduled for a user, or for a topic, under this collapse key is to be cancelled."""

    rule: str
    user: str
    collapse: str
    topic: str | None = None


class Skipped(Struct, frozen=True):
    """Why a rule that matched does not notify `user`, or anybody when `user` is ""."""

    rule: str
    user: str
    reason: str


class RulesOutcome(Struct, frozen=True):
    """The result of one event: names of the rules that matched, what to send, what was skipped and why, what to cancel."""

    matched: list[str]
    notifications: list[Notification]
    skipped: list[Skipped]
    cancellations: list[Cancellation] = []


class PlannedNotification(Struct, frozen=True):
    """A notification that is to be made, for one user or for `topic`."""

    rule: Rule
    user: str
    actor: str | None
    scope: Scope
    topic: str | None = None


class Plan(Struct, frozen=True):
    """What one event leads to, before any notification is made; otherwise as `RulesOutcome`."""

    matched: list[str]
    planned: list[PlannedNotification]
    skipped: list[Skipped]
    cancellations: list[Cancellation]

    def outcome(self, made: Sequence[Notification | Skipped]) -> RulesOutcome:
        """The result, with what was made of each planned notification."""
        notifications = [one for one in made if isinstance(one, Notification)]
        return RulesOutcome(
            self.matched, notifications, self.skipped + [one for one in made if isinstance(one, Skipped)], self.cancellations
        )


EVERY_EVENT: Final = "*"
NO_RECIPIENT: Final = "the event names nobody to notify"
OWN_ACTION: Final = "own action"
ALREADY: Final = "notified by an earlier rule"
NOT_A_USER: Final = "not a user name"
NOT_A_TOPIC: Final = "the event names no topic: printable text without spaces and *"
NOT_ROLLED_OUT: Final = "the rule is not rolled out to this user"

UserFacts = Callable[[str], Mapping[str, Any]]
"""By user name: `level`, `locale`, and `active_ms`, when the user was last active. Called only where a rule depends on one of them."""


def _unknown(_user: str) -> Mapping[str, Any]:
    return {}


class Rules(DefinedCategories, frozen=True):
    """All rules of a file."""

    rules: tuple[Rule, ...]
    users_ignore_case: bool
    events_asked: frozenset[str] = frozenset()  # named by `unless_event` of some rule: shards record when they last occurred
    own: bool = False  # of a tenant, see `engine.features.rules.core.own_rules`
    activity_asked: bool = False  # some rule depends on a user's last activity: shards record every event of a user

    @property
    def have_steps(self) -> bool:
        """Whether some message that they make has steps."""
        return bool(self.steps) or any(rule.steps for rule in self.rules)

    def channels_of(self, category: str) -> frozenset[str]:
        """As of the category, and of the rules whose messages have it."""
        own = {step.channel for rule in self.rules if rule.category == category for step in rule.steps if not step.to}
        return super().channels_of(category) | own

    def apply(
        self,
        event: str,
        payload: Mapping[str, Any],
        delivery: str,
        *,
        tenant: str = "default",
        now_ms: int = 0,
        user_facts: UserFacts = _unknown,
    ) -> RulesOutcome:
        """Apply the rules to one event: `plan`, then `make` everything.

        Args:
            payload: its JSON object; `action` is the action, when it has one.
            delivery: identifies this delivery of the event, see `delivery_id`.
            tenant: whose users they are.
            now_ms: when it came.
            user_facts: level and last activity of a user.
        """
        plan = self.plan(event, payload, delivery, tenant=tenant)
        return plan.outcome([self.make(planned, tenant=tenant, now_ms=now_ms, user_facts=user_facts) for planned in plan.planned])

    def plan(
        self,
        event: str,
        payload: Mapping[str, Any],
        delivery: str,
        *,
        tenant: str,
        told: Collection[str] = (),
        concerns: Callable[[str], bool] = lambda _user: True,
    ) -> Plan:
        """Decide whom one event notifies, and what it cancels; arguments as of `apply`.

        Args:
            told: users whom rules that come before these notify at once.
            concerns: leaves out the users for whom it is False. It is asked about "" for what has no user.
        """
        action = payload.get("action")
        scopes = [(rule, self.scope(rule, event, payload, delivery)) for rule in self.rules]
        matching = [(rule, scope) for rule, scope in scopes if rule.matches(event, action, scope)]
        plan = Plan([rule.name for rule, _ in matching], [], [], [])
        before = {user.casefold() for user in told} if self.users_ignore_case else set(told)
        planning = _Planning(tenant, concerns, self._spellings(matching), before, set(), plan)
        for rule, scope in scopes:
            if event in rule.cancel_on:
                _cancel(rule, scope, plan, self._spellings(scopes))
        for rule, scope in matching:
            if rule.audience is None:
                self._notify(rule, scope, planning)
            else:
                self._notify_all(rule, rule.audience, scope, planning)
        return plan

    def make(self, planned: PlannedNotification, *, tenant: str, now_ms: int, user_facts: UserFacts) -> Notification | Skipped:
        """Make a notification; arguments as of `apply`."""
        rule, user, scope, topic = planned.rule, planned.user, planned.scope, planned.topic
        variant = rule.content.variant_of(rule.name, tenant, user)
        chosen = "" if variant is None else variant.name
        content = rule.content.content if variant is None else variant.content
        if topic is None:
            names: Mapping[str, Any] = _Names({**scope.names, "$user": user, "$variant": chosen}, lambda: user_facts(user))
        else:
            names = {**scope.names, "$topic": topic}
        in_locale = content.in_locale(names["$locale"] or "") if content.locales else content.default
        try:
            made = _notification(rule, user, planned.actor, Scope(scope.payload, names), now_ms, in_locale, topic)
        except Invalid as error:
            return Skipped(rule.name, user, error.detail)
        return msgspec.structs.replace(made, variant=chosen) if chosen else made

    def names(self, event: str) -> bool:
        """Whether a rule is about this event by its name."""
        return any(event in rule.events for rule in self.rules)

    def scope(self, rule: Rule, event: str, payload: Mapping[str, Any], delivery: str) -> Scope:
        """What the paths and templates of a rule refer to."""
        names = {"$event": event, "$action": payload.get("action"), "$delivery": delivery, "$rule": rule.name}
        return Scope(payload, names)

    def _spellings(self, rules: list[tuple[Rule, Scope]]) -> dict[str, str]:
        """By case-folded name, how the event spells its users: one mentioned as @OctoCat is the octocat who opened the issue."""
        if not self.users_ignore_case:
            return {}
        known: dict[str, str] = {}
        for rule, scope in rules:
            for path in (*rule.recipients, *((rule.actor,) if rule.actor is not None else ())):
                for value in path.values(scope):
                    known.setdefault(str(value).casefold(), str(value))
        return known

    def _notify_all(self, rule: Rule, audience: Audience, scope: Scope, planning: _Planning) -> None:
        topic = audience.name(scope)
        if not planning.concerns(""):
            return
        if topic is None:
            planning.plan.skipped.append(Skipped(rule.name, "", NOT_A_TOPIC))
        elif not rule.rollout.includes(rule.name, planning.tenant, topic):
            planning.plan.skipped.append(Skipped(rule.name, "", NOT_ROLLED_OUT))
        else:
            planning.plan.planned.append(PlannedNotification(rule, "", _first_text(rule.actor, scope), scope, topic))

    def _notify(self, rule: Rule, scope: Scope, planning: _Planning) -> None:
        planned, skipped = planning.plan.planned, planning.plan.skipped
        actor = _first_text(rule.actor, scope)
        own = actor.casefold() if actor is not None and self.users_ignore_case else actor
        here: set[str] = set()
        for named in rule.users(scope):
            user = planning.spellings.get(named.casefold(), named)
            same = user.casefold() if self.users_ignore_case else user
            if same in here:
                continue
            here.add(same)
            if not planning.concerns(user):
                continue
            if not is_user(user, NAME_CHARS_MAX):
                skipped.append(Skipped(rule.name, user[:NAME_CHARS_MAX], NOT_A_USER))
            elif not rule.notify_self and same == own:
                skipped.append(Skipped(rule.name, user, OWN_ACTION))
            elif (same in planning.told and not rule.do) or (same in planning.notified and rule.immediate):
                skipped.append(Skipped(rule.name, user, ALREADY))
            elif not rule.rollout.includes(rule.name, planning.tenant, user):
                skipped.append(Skipped(rule.name, user, NOT_ROLLED_OUT))
            else:
                planned.append(PlannedNotification(rule, user, actor, scope))
                if rule.immediate:
                    planning.notified.add(same)
        if not here and not rule.mentions and planning.concerns(""):  # a text without mentions is not worth reporting
            skipped.append(Skipped(rule.name, "", NO_RECIPIENT))


class _Names(Mapping[str, Any]):
    """The names of one user's notification: those of the event, and `_USER_FACTS`, looked up when one of them is first used."""

    def __init__(self, names: dict[str, Any], user_facts: Callable[[], Mapping[str, Any]]) -> None:
        self._names = names
        self._user_facts = user_facts

    def __getitem__(self, name: str) -> Any:
        if name not in self._names and name in _USER_FACTS:
            facts = self._user_facts()
            self._names |= {name: facts.get(member) for name, member in _USER_FACTS.items()}
        return self._names[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names or name in _USER_FACTS

    def __iter__(self) -> Iterator[str]:
        return iter({**self._names, **_USER_FACTS})

    def __len__(self) -> int:
        return len({**self._names, **_USER_FACTS})


_USER_FACTS: Final = {"$level": "level", "$active_ms": "active_ms", "$locale": "locale"}


class _Planning(Struct):
    """The state of planning for one event."""

    tenant: str
    concerns: Callable[[str], bool]
    spellings: Mapping[str, str]
    told: Collection[str]  # by rules that come before these, case-folded where case is ignored
    notified: set[str]  # immediately, by these; likewise
    plan: Plan


def _cancel(rule: Rule, scope: Scope, plan: Plan, spellings: Mapping[str, str]) -> None:
    key = rule.key(scope)
    if rule.audience is not None:
        topic = rule.audience.name(scope)
        plan.cancellations.extend([Cancellation(rule.name, "", key, topic)] if topic is not None else [])
        return
    named = rule.users(scope)
    named += [spellings[user.casefold()] for user in named if user.casefold() in spellings]  # armed for a user of this spelling
    users = dict.fromkeys(user for user in named if is_user(user, NAME_CHARS_MAX))
    plan.cancellations.extend(Cancellation(rule.name, user, key) for user in users)


def short(name: str) -> str:
    """A name as it is, or its SHA-256 in hex where the engine would reject it."""
    return name if 0 < len(name) <= NAME_CHARS_MAX and name.isprintable() else hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()


def _notification(
    rule: Rule, user: str, actor: str | None, scope: Scope, now_ms: int, content: ContentTemplate, topic: str | None
) -> Notification:
    delay_ms = rule.delay.of(scope, now_ms)
    ts = None if rule.ts is None else _timestamp_ms(rule.ts.render(scope))
    group = "" if rule.member_of is None else str(rule.member_of.render(scope) or "")
    if rule.member_of is not None and not group:
        raise Invalid("the event names no group for fire.while_member")
    conditions = msgspec.structs.replace(rule.fire, since_ms=ts or now_ms, delay_ms=delay_ms, member_of=group)
    recipient = {"user": user} if topic is None else {"topic": topic}
    names = {**scope.payload, "event": scope.payload, **recipient, "rule": rule.name, "type": rule.type}
    return Notification(
        rule=rule.name,
        user=user,
        id=_id(rule, scope),
        type=rule.type,
        priority=rule.priority,
        actor=actor,
        target=None if rule.target is None else render_shape(rule.target, scope),
        context=None if rule.context is None else render_shape(rule.context, scope),
        ts=ts,
        data=content.render(scope, names),
        delay_ms=rule.fire.inactive_ms + delay_ms,
        collapse=rule.key(scope),
        category=rule.category,
        conditions=conditions if conditions.any else None,
        do=rule.do,
        topic=topic,
        ttl_ms=rule.ttl_ms,
        merge=Merge(rule.window_ms, rule.leading, content.summary) if rule.window_ms else None,
    )


def _id(rule: Rule, scope: Scope) -> str:
    """Its id; without a value for the template that of the rule and the delivery, else two events would have one id."""
    given = rule.id.render(scope)
    return short(f"{rule.name}/{scope.names['$delivery']}" if given is None or given == "" else str(given))


def _first_text(path: EventPath | None, scope: Scope) -> str | None:
    values = [] if path is None else path.values(scope)
    if not values:
        return None
    return values[0] if isinstance(values[0], str) else msgspec.json.encode(values[0]).decode()


def _timestamp_ms(value: Any) -> int | None:
    """Milliseconds since the epoch, as they are or from RFC 3339 text; None for anything else."""
    if isinstance(value, str):
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            return None
        value = round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _TS_MS_MAX else None


def delivery_id(event: str, payload: Mapping[str, Any]) -> str:
    """Identifies a delivery by its content: 20 hex digits that do not depend on the order of members."""
    return hashlib.sha256(msgspec.json.encode([event, payload], order="deterministic")).hexdigest()[:20]
