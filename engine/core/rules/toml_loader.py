"""Parses rules from TOML. Every error in a file is detected here and reported with line, rule and reason."""

from __future__ import annotations

import re
import tomllib
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from engine.core.model.action import parse_target
from engine.core.model.category import CAP_MAX, DAY_MS, SPAN_MAX_MS, Category
from engine.core.model.duration import parse_duration_ms
from engine.core.model.names import is_event_type
from engine.core.model.placeholders import EventPath, Shape, Template, parse_path, parse_shape, parse_template
from engine.core.policy.conditions import Conditions
from engine.core.policy.contact_policy import CATEGORIES
from engine.core.policy.user_state import EVENTS_MAX, FOLLOWERS_MAX
from engine.core.rules.delay import Delay, Rollout, level_names
from engine.core.rules.jinja_content import JinjaContent, parse_content
from engine.core.rules.rules import NAME_CHARS_MAX, Condition, Priority, Rule, Rules
from engine.errors import Invalid, RulesError

RULES_MAX: Final = 1000
CATEGORIES_MAX: Final = 100
_RULE_HEADER: Final = re.compile(r"^[ \t]*\[\[\s*rule\s*\]\]", re.MULTILINE)
_PLACE_IN_RULE: Final = re.compile(r"\$\.rule\[(\d+)\](.*)")


class _ConditionText(Struct, forbid_unknown_fields=True):
    path: str
    equals: Any = UNSET
    not_equal: Any = UNSET
    in_: list[Any] | UnsetType = msgspec.field(name="in", default=UNSET)
    exists: bool | UnsetType = UNSET


class _DefaultsText(Struct, forbid_unknown_fields=True):
    actor: str = ""
    notify_self: bool = False
    users_ignore_case: bool = False
    priority: Priority = "normal"
    target: Any = None
    context: Any = None
    ts: str = ""
    id: str = "{$rule}/{$delivery}"
    category: str = ""
    rollout: _RolloutText | None = None


class _RolloutText(Struct, forbid_unknown_fields=True):
    share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    tenants: list[str] = []


class _FireText(Struct, forbid_unknown_fields=True):
    unless_active: bool = False
    unless_event: str | list[str] = []
    while_member: str = ""


class _RuleText(Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    event: str | Annotated[list[str], Meta(min_length=1)]
    type: str
    action: str | list[str] = []
    when: list[_ConditionText] = []
    recipients: list[str] = []
    mentions: list[str] = []
    notify_self: bool | None = None
    priority: Priority | None = None
    actor: str | None = None
    target: Any = None
    context: Any = None
    ts: str | None = None
    id: str | None = None
    title: str = ""
    body: str = ""
    data: dict[str, Any] = {}
    delay: str | dict[str, str | float] = ""
    collapse: str | None = None
    cancel_on: str | list[str] = []
    category: str | None = None
    rollout: _RolloutText | None = None
    inactive: str = ""
    fire: _FireText | None = None
    template: dict[str, str] = {}
    do: str = ""


class _CategoryText(Struct, forbid_unknown_fields=True):
    cap: Annotated[int, Meta(ge=0, le=CAP_MAX)] = 0
    per: str = "1d"
    same_type: str = ""
    quiet: bool = True
    mandatory: bool = False


_CategoryName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class _FileText(Struct, forbid_unknown_fields=True):
    rule: Annotated[list[_RuleText], Meta(max_length=RULES_MAX)] = []
    category: Annotated[dict[_CategoryName, _CategoryText], Meta(max_length=CATEGORIES_MAX)] = {}
    defaults: _DefaultsText = msgspec.field(default_factory=_DefaultsText)


def parse_rules(text: str, source: str) -> Rules:
    """The rules in a TOML text.

    Args:
        text: the file's content.
        source: its name, for messages.

    Raises:
        RulesError: with the line, the rule's name and the reason.
    """
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not TOML, a number too long; nested too deeply
        raise RulesError(f"{source}: {error}") from error
    try:
        file = msgspec.convert(raw, _FileText)
    except msgspec.ValidationError as error:
        raise RulesError(f"{source}{_locate(str(error), text, raw)}") from error
    if not (file.rule or file.category):
        raise RulesError(f"{source}: at least one rule or category is needed")
    categories = _categories(file.category, source)
    lines = [text.count("\n", 0, header.start()) + 1 for header in _RULE_HEADER.finditer(text)]
    rules: list[Rule] = []
    for index, written in enumerate(file.rule):
        place = f"{source}:{lines[index] if index < len(lines) else '?'}: rule {written.name!r}"
        if any(rule.name == written.name for rule in rules):
            raise RulesError(f"{place}: another rule has this name; ids of notifications begin with it, so each needs its own")
        try:
            rule = _compile(written, file.defaults)
            if rule.category and rule.category not in categories:
                raise Invalid(f"no category is named so; defined are {', '.join(sorted(categories))}", "category")
            rules.append(rule)
        except Invalid as error:
            raise RulesError(f"{place}: {error.path}: {error.detail}") from error
    events_asked = frozenset(event for rule in rules for event in rule.fire.unless_events)
    if len(events_asked) > EVENTS_MAX:
        raise RulesError(f"{source}: fire.unless_event: rules may ask for at most {EVENTS_MAX} events, these ask for {len(events_asked)}")
    if (following := sum(rule.fire.inactive_ms > 0 for rule in rules)) > FOLLOWERS_MAX:
        raise RulesError(f"{source}: inactive: at most {FOLLOWERS_MAX} rules may follow a user, these are {following}")
    activity_asked = any(rule.fire.unless_active or rule.fire.inactive_ms or rule.delay.active_within_ms for rule in rules)
    return Rules(tuple(rules), file.defaults.users_ignore_case, categories, events_asked, activity_asked)


def _categories(written: dict[str, _CategoryText], source: str) -> dict[str, Category]:
    """All categories by name: those of the file and the predefined ones."""
    categories = dict(CATEGORIES)
    for name, text in written.items():
        try:
            cap_ms = _duration("per", text.per)
            same_type_ms = _duration("same_type", text.same_type) if text.same_type else 0
            for place, span_ms in (("per", cap_ms), ("same_type", same_type_ms)):
                if not 0 < span_ms + (place == "same_type") <= SPAN_MAX_MS:
                    raise Invalid(f"more than nothing, at most {SPAN_MAX_MS // DAY_MS}d", place)
        except Invalid as error:
            raise RulesError(f"{source}: category {name!r}: {error.path}: {error.detail}") from error
        categories[name] = Category(cap=text.cap, cap_ms=cap_ms, same_type_ms=same_type_ms, quiet=text.quiet, mandatory=text.mandatory)
    return categories


def _locate(message: str, text: str, raw: dict[str, Any]) -> str:
    """`:<line>: rule '<name>': <what>` for a msgspec message that ends in ` - at `$.rule[2].priority``."""
    what, _, place = message.partition(" - at `")
    inside = _PLACE_IN_RULE.fullmatch(place.rstrip("`"))
    if inside is None:
        return f": {place.rstrip('`').removeprefix('$').lstrip('.') or 'the file'}: {what}"
    index, headers = int(inside[1]), list(_RULE_HEADER.finditer(text))
    line = text.count("\n", 0, headers[index].start()) + 1 if index < len(headers) else "?"
    entries = raw.get("rule")
    entry = entries[index] if isinstance(entries, list) and index < len(entries) else None
    name = entry.get("name", index + 1) if isinstance(entry, dict) else index + 1
    member = inside[2].lstrip(".")
    return f":{line}: rule {name!r}: {f'{member}: ' if member else ''}{what}"


def _compile(written: _RuleText, defaults: _DefaultsText) -> Rule:
    if not written.recipients and not written.mentions:
        raise Invalid("a rule needs recipients or mentions, else it notifies nobody", "recipients")
    if not is_event_type(written.type, NAME_CHARS_MAX):
        raise Invalid("words of letters, digits, _, -, / and : joined by dots are needed", "type")
    actor = written.actor if written.actor is not None else defaults.actor
    ts = written.ts if written.ts is not None else defaults.ts
    if written.do and written.category is not None:
        raise Invalid("not with do: an action contacts nobody, so no limit applies to it", "category")
    texts = {name: text for name, text in (("title", written.title), ("body", written.body)) if text}
    return Rule(
        name=written.name,
        events=frozenset([written.event] if isinstance(written.event, str) else written.event),
        actions=frozenset([written.action] if isinstance(written.action, str) else written.action),
        conditions=tuple(_condition(condition, index) for index, condition in enumerate(written.when)),
        recipients=_paths("recipients", written.recipients),
        mentions=_paths("mentions", written.mentions),
        notify_self=(defaults.notify_self or bool(written.do)) if written.notify_self is None else written.notify_self,
        type=written.type,
        priority=written.priority or defaults.priority,
        actor=_paths("actor", [actor])[0] if actor else None,
        target=_shape("target", written.target if written.target is not None else defaults.target),
        context=_shape("context", written.context if written.context is not None else defaults.context),
        ts=_template("ts", ts) if ts else None,
        id=_template("id", written.id if written.id is not None else defaults.id),
        data={name: _member(f"data.{name}", value) for name, value in {**texts, **written.data}.items()},
        delay=_delay(written.delay),
        collapse=None if written.collapse is None else _template("collapse", written.collapse),
        cancel_on=frozenset([written.cancel_on] if isinstance(written.cancel_on, str) else written.cancel_on),
        category="" if written.do else written.category if written.category is not None else defaults.category,
        rollout=_rollout(written.rollout or defaults.rollout),
        fire=_fire(written),
        member_of=_template("fire.while_member", written.fire.while_member) if written.fire and written.fire.while_member else None,
        contents={name: _content(f"template.{name}", text) for name, text in written.template.items()},
        do=_do(written.do),
    )


def _do(text: str) -> str:
    try:
        if text:
            parse_target(text)
    except Invalid as error:
        raise Invalid(error.detail, "do") from error
    return text


def _delay(written: str | dict[str, str | float]) -> Delay:
    if isinstance(written, str):
        return Delay(_duration("delay", written) if written else 0)
    table = dict(written)
    levels = {name: _duration(f"delay.{name}", table[name]) for name in level_names(table)}
    factor = table.get("factor", 1.0)
    if "by" not in table or "others" not in table or not levels:
        raise Invalid("by, others and at least one level are needed", "delay")
    if isinstance(factor, str) or not 0 < factor <= 1:
        raise Invalid("a number above 0, at most 1", "delay.factor")
    if ("factor" in table) != ("active_within" in table):
        raise Invalid("factor and active_within need each other", "delay")
    return Delay(
        _duration("delay.others", table["others"]),
        _paths("delay.by", [str(table["by"])])[0],
        levels,
        _duration("delay.active_within", table["active_within"]) if "active_within" in table else 0,
        factor,
    )


def _duration(place: str, text: str | float) -> int:
    try:
        return parse_duration_ms(str(text))
    except Invalid as error:
        raise Invalid(error.detail, place) from error


def _rollout(written: _RolloutText | None) -> Rollout:
    return Rollout() if written is None else Rollout(written.share, frozenset(written.tenants))


def _fire(written: _RuleText) -> Conditions:
    fire = written.fire or _FireText()
    events = (fire.unless_event,) if isinstance(fire.unless_event, str) else tuple(fire.unless_event)
    return Conditions(0, fire.unless_active, events, "", _duration("inactive", written.inactive) if written.inactive else 0)


def _content(place: str, text: str) -> JinjaContent:
    try:
        return parse_content(text)
    except Invalid as error:
        raise Invalid(error.detail, place) from error


def _condition(written: _ConditionText, index: int) -> Condition:
    place = f"when[{index}]"
    tests = {"equals": written.equals, "not_equal": written.not_equal, "in": written.in_, "exists": written.exists}
    given = [(name, operand) for name, operand in tests.items() if operand is not UNSET]
    if len(given) != 1:
        raise Invalid("exactly one of equals, not_equal, in, exists is needed", place)
    return Condition(_paths(f"{place}.path", [written.path])[0], *given[0])


def _paths(place: str, texts: list[str]) -> tuple[EventPath, ...]:
    try:
        return tuple(parse_path(text) for text in texts)
    except Invalid as error:
        raise Invalid(error.detail, place) from error


def _template(place: str, text: str) -> Template:
    try:
        return parse_template(text)
    except Invalid as error:
        raise Invalid(error.detail, place) from error


def _member(place: str, value: Any) -> Shape:
    try:
        return parse_shape(value)
    except Invalid as error:
        raise Invalid(error.detail, place) from error


def _shape(place: str, value: Any) -> Shape | None:
    return None if value is None else _member(place, value)
