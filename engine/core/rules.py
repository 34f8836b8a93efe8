"""Which events become which notifications: declarative rules, applied without any I/O. `engine.core.rulefile` reads them.

    [defaults]
    actor = "sender.login"                      # path: who did it

    [[rule]]
    name = "comment"
    event = ["issue_comment", "discussion_comment"]
    action = "created"
    when = [{ path = "comment.user.type", not_equal = "Bot" }]
    recipients = ["issue.user.login", "discussion.user.login"]
    mentions = ["comment.body"]                 # texts whose @logins are recipients too
    type = "github.comment"
    title = "{sender.login} commented on {issue.title|discussion.title}"

A rule matches when its event, its action (when it names any) and all its conditions do. All rules are tried, in the order of
the file. One event notifies a user once: by the first rule that names them, so the most urgent rules stand first. Nobody is
notified of their own action unless the rule says `notify_self`.

The id of a notification is made by the template `id`, the same each time the same delivery is applied, so the engine
answers a repeat as a duplicate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from engine.core.identity import is_user
from engine.core.mentions import mentions
from engine.core.templates import Path, Scope, Shape, Template, render_shape

NAME_CHARS_MAX: Final = 128  # users, types and ids, as the engine takes them by default

Priority = Literal["high", "normal", "low"]


class Condition(Struct, frozen=True):
    """`test` on what a path leads to: one of equals, not_equal, in, exists."""

    path: Path
    test: str
    operand: Any

    def holds(self, scope: Scope) -> bool:
        """Through a list, equals and in hold when any element does, not_equal when none is equal."""
        values = self.path.values(scope)
        if self.test == "exists":
            return bool(values) is bool(self.operand)
        if self.test == "not_equal":
            return all(value != self.operand for value in values)
        return any(value == self.operand if self.test == "equals" else value in self.operand for value in values)


class Rule(Struct, frozen=True):
    """One rule, its paths and templates parsed and the file's defaults filled in."""

    name: str
    events: frozenset[str]
    actions: frozenset[str]
    conditions: tuple[Condition, ...]
    recipients: tuple[Path, ...]
    mentions: tuple[Path, ...]
    notify_self: bool
    type: str
    priority: Priority
    actor: Path | None
    target: Shape | None
    context: Shape | None
    ts: Template | None
    id: Template
    data: dict[str, Shape]

    def matches(self, event: str, action: Any, scope: Scope) -> bool:
        """Is this an event the rule is about?"""
        if event not in self.events or (self.actions and action not in self.actions):
            return False
        return all(condition.holds(scope) for condition in self.conditions)

    def users(self, scope: Scope) -> list[str]:
        """Whom it names, recipients before mentions; the same one may come twice."""
        named = [value for path in self.recipients for value in path.values(scope)]
        for path in self.mentions:
            named += [login for text in path.values(scope) if isinstance(text, str) for login in mentions(text)]
        return [str(value) for value in named if isinstance(value, str | int) and not isinstance(value, bool)]


class Notification(Struct, frozen=True, kw_only=True):
    """One user to notify. `ts` in milliseconds since the epoch; `None` is for what the event does not say."""

    rule: str
    user: str
    id: str
    type: str
    priority: Priority
    actor: str | None
    target: Any
    context: Any
    ts: int | None
    data: dict[str, Any]

    def item(self) -> dict[str, Any]:
        """As an item of `POST /v1/notifications`."""
        fields = msgspec.structs.asdict(self)
        return {name: value for name, value in fields.items() if name != "rule" and value is not None}


class Skipped(Struct, frozen=True):
    """Why a rule that matched notified nobody, or not this `user`."""

    rule: str
    user: str
    reason: str


class Outcome(Struct, frozen=True):
    """What the rules make of one event: the names of those that matched, whom to notify, who was left out."""

    matched: list[str]
    notifications: list[Notification]
    skipped: list[Skipped]


NO_RECIPIENT: Final = "the event names nobody to notify"
OWN_ACTION: Final = "own action"
ALREADY: Final = "notified by an earlier rule"
NOT_A_USER: Final = "not a user name"


class Rules(Struct, frozen=True):
    """All rules of a file."""

    rules: tuple[Rule, ...]
    users_ignore_case: bool

    def apply(self, event: str, payload: Mapping[str, Any], delivery: str) -> Outcome:
        """Whom to notify of one event.

        Args:
            event: its name.
            payload: its JSON object; `action` is the action, when it has one.
            delivery: identifies this delivery of the event, see `delivery_id`.
        """
        action = payload.get("action")
        scopes = [
            (rule, Scope(payload, {"$event": event, "$action": action, "$delivery": delivery, "$rule": rule.name})) for rule in self.rules
        ]
        matching = [(rule, scope) for rule, scope in scopes if rule.matches(event, action, scope)]
        outcome = Outcome([rule.name for rule, _ in matching], [], [])
        spellings = self._spellings(matching)
        notified: set[str] = set()
        for rule, scope in matching:
            self._notify(rule, scope, spellings, notified, outcome)
        return outcome

    def _spellings(self, matching: list[tuple[Rule, Scope]]) -> dict[str, str]:
        """How the event itself writes its people. Someone mentioned as @OctoCat is the octocat who opened the issue."""
        if not self.users_ignore_case:
            return {}
        known: dict[str, str] = {}
        for rule, scope in matching:
            for path in (*rule.recipients, *((rule.actor,) if rule.actor is not None else ())):
                for value in path.values(scope):
                    known.setdefault(str(value).casefold(), str(value))
        return known

    def _notify(self, rule: Rule, scope: Scope, spellings: Mapping[str, str], notified: set[str], outcome: Outcome) -> None:
        actor = _first_text(rule.actor, scope)
        own = actor.casefold() if actor is not None and self.users_ignore_case else actor
        here: set[str] = set()
        for named in rule.users(scope):
            user = spellings.get(named.casefold(), named)
            same = user.casefold() if self.users_ignore_case else user
            if same in here:
                continue
            here.add(same)
            if not is_user(user, NAME_CHARS_MAX):
                outcome.skipped.append(Skipped(rule.name, user[:NAME_CHARS_MAX], NOT_A_USER))
            elif not rule.notify_self and same == own:
                outcome.skipped.append(Skipped(rule.name, user, OWN_ACTION))
            elif same in notified:
                outcome.skipped.append(Skipped(rule.name, user, ALREADY))
            else:
                notified.add(same)
                outcome.notifications.append(_notification(rule, user, actor, Scope(scope.payload, {**scope.names, "$user": user})))
        if not here and not rule.mentions:  # a text without mentions is nothing to tell
            outcome.skipped.append(Skipped(rule.name, "", NO_RECIPIENT))


def _notification(rule: Rule, user: str, actor: str | None, scope: Scope) -> Notification:
    id_ = str(rule.id.render(scope))
    return Notification(
        rule=rule.name,
        user=user,
        id=id_ if 0 < len(id_) <= NAME_CHARS_MAX and id_.isprintable() else hashlib.sha256(id_.encode()).hexdigest(),
        type=rule.type,
        priority=rule.priority,
        actor=actor,
        target=None if rule.target is None else render_shape(rule.target, scope),
        context=None if rule.context is None else render_shape(rule.context, scope),
        ts=None if rule.ts is None else _timestamp_ms(rule.ts.render(scope)),
        data={name: value for name, value in render_shape(rule.data, scope).items() if value != ""},
    )


def _first_text(path: Path | None, scope: Scope) -> str | None:
    values = [] if path is None else path.values(scope)
    return str(values[0]) if values else None


def _timestamp_ms(value: Any) -> int | None:
    """Milliseconds since the epoch from RFC 3339 text; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        return None
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def delivery_id(event: str, payload: Mapping[str, Any]) -> str:
    """Identifies a recorded delivery by what it says: 20 hex digits, the same whatever the order of its members."""
    return hashlib.sha256(msgspec.json.encode([event, payload], order="deterministic")).hexdigest()[:20]
