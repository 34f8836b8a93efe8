"""Parses rules from TOML. Every error in a file is detected here and reported with line, rule and reason."""

from __future__ import annotations

import re
import tomllib
from datetime import date, time
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from engine.core.model.action import ChannelTarget, parse_target
from engine.core.model.category import ANY_CHOICE, CAP_MAX, CHOICES, DAY_MS, INBOX, OFF, ON, SPAN_MAX_MS, Category
from engine.core.model.defined_categories import CATEGORIES
from engine.core.model.names import is_event_type, is_tenant
from engine.core.model.placeholders import EventPath, parse_path, parse_template
from engine.core.model.step import CHANNELS, PROGRESS, STEPS_MAX, ChannelStep
from engine.core.policy.conditions import Conditions
from engine.core.policy.user_state import EVENTS_MAX, FOLLOWERS_MAX
from engine.errors import Invalid, RulesError
from engine.features.policy.core.preferences_json import may_choose
from engine.features.policy.core.profile_json import check_type
from engine.features.rules.core.content_toml import VARIANTS_MAX, ContentText, Locales, VariantText, parse_contents
from engine.features.rules.core.delay import Delay, Rollout, level_names
from engine.features.rules.core.field_errors import at_field, duration_at
from engine.features.rules.core.rules import NAME_CHARS_MAX, Audience, Condition, PriorityName, Rule, Rules
from engine.features.rules.core.shapes import Shape, parse_shape

RULES_MAX: Final = 1000
CATEGORIES_MAX: Final = 100
TITLE_CHARS_MAX: Final = 100  # of a category, as people read it: a line of a page
KEPT_TYPES_MAX: Final = 100  # each message is compared with those that end in .*
TYPE_CHARS_MAX: Final = 256
TENANTS_MAX: Final = 10_000  # with a category of their own for messages that name none
_RULE_HEADER: Final = re.compile(r"^[ \t]*\[\[\s*rule\s*\]\]", re.MULTILINE)
_LINE: Final = re.compile(r"\(at line (\d{1,9}), ")
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
    priority: PriorityName | None = None
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


class _StepText(Struct, forbid_unknown_fields=True):
    channel: str
    after: str = ""
    unless: Literal["", "delivered", "seen", "read", "acted"] = ""
    mandatory: bool = False
    to: str = ""
    cap: Annotated[int, Meta(ge=0, le=CAP_MAX)] = 0
    per: str = ""


class _RuleText(Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    event: str | Annotated[list[str], Meta(min_length=1)]
    type: str
    action: str | list[str] = []
    when: list[_ConditionText] = []
    recipients: list[str] = []
    mentions: list[str] = []
    topic: str = ""
    broadcast: bool = False
    notify_self: bool | None = None
    priority: PriorityName | None = None
    actor: str | None = None
    target: Any = None
    context: Any = None
    ts: str | None = None
    id: str | None = None
    title: str = ""
    body: str = ""
    data: dict[str, Any] = {}
    template: dict[str, str] = {}
    summary: str = ""
    locales: Locales = {}
    variants: Annotated[list[VariantText], Meta(max_length=VARIANTS_MAX)] = []
    delay: str | dict[str, str | float] = ""
    ttl: str = ""
    window: str = ""
    leading: bool = False
    collapse: str | None = None
    cancel_on: str | list[str] = []
    category: str | None = None
    rollout: _RolloutText | None = None
    inactive: str = ""
    fire: _FireText | None = None
    do: str = ""
    steps: Annotated[list[_StepText], Meta(max_length=STEPS_MAX)] = []


_ChoiceText = Literal["on", "digest", "off", "inbox"]


class _CategoryText(Struct, forbid_unknown_fields=True):
    cap: Annotated[int, Meta(ge=0, le=CAP_MAX)] = 0
    per: str = "1d"
    same_type: str = ""
    quiet: bool = True
    mandatory: bool = False
    inbox: str = ""
    total: bool = True
    user_may: list[_ChoiceText] | UnsetType = UNSET
    default: _ChoiceText = "on"
    title: Annotated[str, Meta(max_length=TITLE_CHARS_MAX)] = ""
    unsubscribe: bool = False
    steps: Annotated[list[_StepText], Meta(max_length=STEPS_MAX)] = []


class _TotalText(Struct, forbid_unknown_fields=True):
    cap: Annotated[int, Meta(ge=1, le=CAP_MAX)]
    per: str = "1d"


_NO_CATEGORY: Final = _CategoryText()
_CategoryName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class _FileText(Struct, forbid_unknown_fields=True):
    rule: Annotated[list[_RuleText], Meta(max_length=RULES_MAX)] = []
    category: Annotated[dict[_CategoryName, _CategoryText], Meta(max_length=CATEGORIES_MAX)] = {}
    total: _TotalText | None = None
    inbox: Annotated[dict[str, str], Meta(max_length=KEPT_TYPES_MAX)] = {}
    default_category: Annotated[dict[str, str], Meta(max_length=TENANTS_MAX)] = {}
    defaults: _DefaultsText = msgspec.field(default_factory=_DefaultsText)


def parse_rules(text: str, source: str) -> Rules:
    """The rules in a TOML text.

    Args:
        source: its name, for messages.

    Raises:
        RulesError: with the line, the rule's name and the reason.
    """
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not TOML, a number too long; nested too deeply
        found = _LINE.search(str(error))
        raise RulesError(f"{source}: {error}", line=int(found[1]) if found else 0) from error
    try:
        file = msgspec.convert(raw, _FileText)
    except msgspec.ValidationError as error:
        raise _located(str(error), source, text, raw) from error
    if not (file.rule or file.category or file.total or file.inbox or file.default_category):
        raise RulesError(f"{source}: at least one rule or category is needed")
    categories = _categories(file.category, file.total, source)
    _check_default_categories(file.default_category, categories, source)
    lines = _rule_lines(text)
    rules: list[Rule] = []
    for index, written in enumerate(file.rule):
        line = lines[index] if index < len(lines) else 0
        place = f"{source}:{line or '?'}: rule {written.name!r}"
        try:
            if any(rule.name == written.name for rule in rules):
                raise Invalid("another rule has this name; ids of notifications begin with it, so each needs its own", "name")
            rule = _compile(written, file.defaults)
            if rule.category and rule.category not in categories:
                raise Invalid(f"no category is named so; defined are {', '.join(sorted(categories))}", "category")
            if rule.steps and not rule.category:
                raise Invalid("a rule with steps needs a category, by which users choose", "category")
            if (rule.steps or file.category.get(rule.category, _NO_CATEGORY).steps) and (rule.window_ms or rule.fire.inactive_ms):
                what = "window" if rule.window_ms else "inactive"
                raise Invalid("not with steps, of the rule or its category: what it makes has no id of its own", what)
            rules.append(rule)
        except Invalid as error:
            raise RulesError(f"{place}: {error.path}: {error.detail}", path=f"rule[{index}].{error.path}", line=line) from error
    events_asked = frozenset(event for rule in rules for event in rule.fire.unless_events)
    if len(events_asked) > EVENTS_MAX:
        raise RulesError(f"{source}: fire.unless_event: rules may ask for at most {EVENTS_MAX} events, these ask for {len(events_asked)}")
    if (following := sum(rule.fire.inactive_ms > 0 for rule in rules)) > FOLLOWERS_MAX:
        raise RulesError(f"{source}: inactive: at most {FOLLOWERS_MAX} rules may follow a user, these are {following}")
    activity_asked = any(rule.fire.unless_active or rule.fire.inactive_ms or rule.delay.active_within_ms for rule in rules)
    titles = {name: text.title for name, text in file.category.items() if text.title}
    linked = frozenset(name for name, text in file.category.items() if text.unsubscribe)
    steps = {name: _steps_of_category(name, text.steps, source) for name, text in file.category.items() if text.steps}
    return Rules(
        rules=tuple(rules),
        users_ignore_case=file.defaults.users_ignore_case,
        categories=_with_steps(categories, steps, rules),
        events_asked=events_asked,
        activity_asked=activity_asked,
        titles=titles,
        linked=linked,
        steps=steps,
        default_categories=file.default_category,
        kept=_kept(file.inbox, source),
    )


def _categories(written: dict[str, _CategoryText], total: _TotalText | None, source: str) -> dict[str, Category]:
    """All categories by name: those of the file and the predefined ones. Those that count towards the total have its limits."""
    together = {}
    if total is not None:
        try:
            together = {"total_cap": total.cap, "total_ms": _limited("per", duration_at("per", total.per), 1)}
        except Invalid as error:
            raise RulesError(f"{source}: total: {error.path}: {error.detail}", path=f"total.{error.path}") from error
    categories = {name: msgspec.structs.replace(category, **together) for name, category in CATEGORIES.items()}
    for name, text in written.items():
        try:
            categories[name] = Category(
                cap=text.cap,
                cap_ms=_limited("per", duration_at("per", text.per), 1),
                same_type_ms=_limited("same_type", duration_at("same_type", text.same_type) if text.same_type else 0, 0),
                inbox_ms=_limited("inbox", _inbox_ms(text.inbox), -1),
                quiet=text.quiet,
                mandatory=text.mandatory,
                user_may=_user_may(text),
                default=CHOICES.index(text.default),
                **(together if text.total else {}),
            )
            if text.unsubscribe and not may_choose(categories[name], OFF):
                raise Invalid("users cannot turn the category off", "unsubscribe")
        except Invalid as error:
            raise RulesError(f"{source}: category {name!r}: {error.path}: {error.detail}", path=f"category.{name}.{error.path}") from error
    return categories


def _steps_of_category(category: str, written: list[_StepText], source: str) -> tuple[ChannelStep, ...]:
    try:
        return _steps(written)
    except Invalid as error:
        raise RulesError(
            f"{source}: category {category!r}: {error.path}: {error.detail}", path=f"category.{category}.{error.path}"
        ) from error


def _steps(written: list[_StepText]) -> tuple[ChannelStep, ...]:
    made = []
    for index, text in enumerate(written):
        try:
            if text.channel not in CHANNELS:
                raise Invalid(f"one of {', '.join(CHANNELS)}", "channel")
            if text.to and text.channel != "apprise":
                raise Invalid("only with the channel apprise: others tell the user", "to")
            after_ms = _limited("after", duration_at("after", text.after), 1) if text.after else 0
            if text.cap and text.to:
                raise Invalid("not with to: it counts what the user gets", "cap")
            if text.per and not text.cap:
                raise Invalid("only with cap", "per")
            cap_ms = _limited("per", duration_at("per", text.per), 1) if text.per else DAY_MS
            unless = PROGRESS.index(text.unless)
            made.append(ChannelStep(text.channel, after_ms, unless, text.mandatory, text.to, text.cap, cap_ms))
        except Invalid as error:
            raise Invalid(error.detail, f"steps[{index}].{error.path}") from None
    return tuple(made)


def _check_default_categories(written: dict[str, str], categories: dict[str, Category], source: str) -> None:
    for tenant, name in written.items():
        detail = ""
        if name not in categories:
            detail = f"no category is named {name!r}; defined are {', '.join(sorted(categories))}"
        elif tenant != "*" and not is_tenant(tenant):
            detail = "a tenant's name is needed, or * for all others"
        if detail:
            raise RulesError(f"{source}: default_category: {tenant}: {detail}", path=f"default_category.{tenant}")


def _kept(written: dict[str, str], source: str) -> dict[str, int]:
    """How long messages stay in the inbox, by type."""
    kept = {}
    for name, text in written.items():
        try:
            check_type(name, name, TYPE_CHARS_MAX)
            kept[name] = _limited(name, 0 if text == "none" else duration_at(name, text), 0)
        except Invalid as error:
            raise RulesError(f"{source}: inbox: {error.path}: {error.detail}", path=f"inbox.{error.path}") from error
    return kept


def _inbox_ms(written: str) -> int:
    return -1 if not written else 0 if written == "none" else duration_at("inbox", written)


def _with_steps(categories: dict[str, Category], steps: dict[str, tuple[ChannelStep, ...]], rules: list[Rule]) -> dict[str, Category]:
    """The categories, which know how late the last step of a message is."""
    last_ms = {name: max(step.after_ms for step in of_category) for name, of_category in steps.items()}
    for rule in rules:
        last_ms[rule.category] = max([last_ms.get(rule.category, 0), *(step.after_ms for step in rule.steps)])
    return {name: msgspec.structs.replace(category, steps_ms=last_ms.get(name, 0)) for name, category in categories.items()}


def _limited(field: str, span_ms: int, lowest_ms: int) -> int:
    if not lowest_ms <= span_ms <= SPAN_MAX_MS:
        raise Invalid(f"more than nothing, at most {SPAN_MAX_MS // DAY_MS}d", field)
    return span_ms


def _user_may(text: _CategoryText) -> int:
    """The choices of a category as bits. A mandatory one leaves none."""
    if text.mandatory:
        if text.default != "on":
            raise Invalid("not with mandatory: it is delivered to everyone", "default")
        if text.user_may is not UNSET and text.user_may != ["on"]:
            raise Invalid("not with mandatory: it is delivered to everyone", "user_may")
        return 1 << ON
    if text.inbox == "none" and "inbox" in (text.default, *(text.user_may or ())):
        raise Invalid('not with inbox = "none": its messages are not kept there', "default" if text.default == "inbox" else "user_may")
    if text.user_may is UNSET:
        return ANY_CHOICE if text.inbox != "none" else ANY_CHOICE & ~(1 << INBOX)
    if text.default not in text.user_may:
        raise Invalid(f"must have the default in it, {text.default!r}: the user may go back to it", "user_may")
    return sum(1 << CHOICES.index(choice) for choice in set(text.user_may))


def _rule_lines(text: str) -> list[int]:
    return [text.count("\n", 0, header.start()) + 1 for header in _RULE_HEADER.finditer(text)]


def _located(message: str, source: str, text: str, raw: dict[str, Any]) -> RulesError:
    """`<source>:<line>: rule '<name>': <what>` for a msgspec message that ends in ` - at `$.rule[2].priority``."""
    what, _, place = message.partition(" - at `")
    place = place.removeprefix("key` in `")
    path = place.rstrip("`").removeprefix("$").lstrip(".")
    if path.startswith("category[...]"):  # msgspec names no key of a table
        path = f"category.{_first_wrong(raw['category'])}{path.removeprefix('category[...]')}"
    inside = _PLACE_IN_RULE.fullmatch(place.rstrip("`"))
    if inside is None:
        return RulesError(f"{source}: {path or 'the file'}: {what}", path=path)
    index, lines = int(inside[1]), _rule_lines(text)
    line = lines[index] if index < len(lines) else 0
    entries = raw.get("rule")
    entry = entries[index] if isinstance(entries, list) and index < len(entries) else None
    name = entry.get("name", index + 1) if isinstance(entry, dict) else index + 1
    member = inside[2].lstrip(".")
    return RulesError(f"{source}:{line or '?'}: rule {name!r}: {f'{member}: ' if member else ''}{what}", path=path, line=line)


def _first_wrong(categories: dict[str, Any]) -> str:
    for name, category in categories.items():
        try:
            msgspec.convert({name: category}, dict[_CategoryName, _CategoryText])
        except msgspec.ValidationError:
            return name
    raise AssertionError("one of them was refused")


def _compile(written: _RuleText, defaults: _DefaultsText) -> Rule:
    audience = _audience(written)
    if not is_event_type(written.type, NAME_CHARS_MAX):
        raise Invalid("words of letters, digits, _, -, / and : joined by dots are needed", "type")
    actor = written.actor if written.actor is not None else defaults.actor
    ts = written.ts if written.ts is not None else defaults.ts
    for_users = audience is None and not written.do
    ttl_ms, window_ms = _spans(written)
    return Rule(
        name=written.name,
        events=frozenset([written.event] if isinstance(written.event, str) else written.event),
        actions=frozenset([written.action] if isinstance(written.action, str) else written.action),
        conditions=tuple(_condition(condition, index) for index, condition in enumerate(written.when)),
        recipients=_paths("recipients", written.recipients),
        mentions=_paths("mentions", written.mentions),
        audience=audience,
        notify_self=(defaults.notify_self or bool(written.do)) if written.notify_self is None else written.notify_self,
        type=written.type,
        priority=written.priority or defaults.priority or ("normal" if audience is None else "low"),
        actor=_paths("actor", [actor])[0] if actor else None,
        target=_shape("target", written.target if written.target is not None else defaults.target),
        context=_shape("context", written.context if written.context is not None else defaults.context),
        ts=at_field("ts", parse_template, ts) if ts else None,
        id=at_field("id", parse_template, written.id if written.id is not None else defaults.id),
        content=parse_contents(
            ContentText(written.title, written.body, written.data, written.template, written.summary), written.locales, written.variants
        ),
        delay=_delay(written.delay),
        ttl_ms=ttl_ms,
        window_ms=window_ms,
        leading=written.leading,
        collapse=None if written.collapse is None else at_field("collapse", parse_template, written.collapse),
        cancel_on=frozenset([written.cancel_on] if isinstance(written.cancel_on, str) else written.cancel_on),
        category="" if not for_users else written.category if written.category is not None else defaults.category,
        rollout=_rollout(written.rollout or defaults.rollout),
        fire=_fire(written),
        member_of=at_field("fire.while_member", parse_template, written.fire.while_member)
        if written.fire and written.fire.while_member
        else None,
        do=_do(written),
        steps=_steps(written.steps),
    )


def _audience(written: _RuleText) -> Audience | None:
    """Whom the rule's notifications are for, when not for single users."""
    to_users = bool(written.recipients or written.mentions)
    if to_users + bool(written.topic) + written.broadcast != 1:
        what = "recipients" if not (to_users or written.topic or written.broadcast) else "topic" if written.topic else "broadcast"
        raise Invalid("a rule needs recipients or mentions, or topic, or broadcast = true, else it notifies nobody; and one of these", what)
    if to_users:
        return None
    for_users_only = {
        "notify_self": written.notify_self is not None,
        "category": written.category is not None,
        "fire": written.fire is not None,
        "inactive": bool(written.inactive),
        "window": bool(written.window),
        "do": bool(written.do),
        "steps": bool(written.steps),
        "locales": bool(written.locales),
        "variants": bool(written.variants),
        "delay": isinstance(written.delay, dict),
        "summary": bool(written.summary),
    }
    for field, given in for_users_only.items():
        if given:
            raise Invalid("not with topic and broadcast: it depends on the user, and these are stored once for all", field)
    return Audience(at_field("topic", parse_template, written.topic) if written.topic else None)


def _spans(written: _RuleText) -> tuple[int, int]:
    """`ttl` and `window` in milliseconds, 0 where they are not given."""
    ttl_ms = duration_at("ttl", written.ttl) if written.ttl else 0
    window_ms = duration_at("window", written.window) if written.window else 0
    for field, text, span_ms in (("ttl", written.ttl, ttl_ms), ("window", written.window, window_ms)):
        if text:
            _limited(field, span_ms, 1)
    if ttl_ms and ttl_ms <= window_ms:
        raise Invalid("must be longer than the window, at whose end the notification is delivered", "ttl")
    if window_ms:
        if written.do:
            raise Invalid("not with do: actions are not merged", "window")
        return ttl_ms, window_ms
    summaries = [written.summary, *(one.summary for one in (*written.locales.values(), *written.variants))]
    summaries += [one.summary for variant in written.variants for one in variant.locales.values()]
    for field, given in (("leading", written.leading), ("summary", any(summaries))):
        if given:
            raise Invalid("needs a window", field)
    return ttl_ms, 0


def _do(written: _RuleText) -> str:
    if written.do:
        if isinstance(at_field("do", parse_target, written.do), ChannelTarget):
            raise Invalid("no channel: those are for the steps of a category", "do")
        if written.category is not None:
            raise Invalid("not with do: an action contacts nobody, so no limit applies to it", "category")
    return written.do


def _delay(written: str | dict[str, str | float]) -> Delay:
    if isinstance(written, str):
        return Delay(duration_at("delay", written) if written else 0)
    table = dict(written)
    levels = {name: duration_at(f"delay.{name}", table[name]) for name in level_names(table)}
    factor = table.get("factor", 1.0)
    if "by" not in table or "others" not in table or not levels:
        raise Invalid("by, others and at least one level are needed", "delay")
    if isinstance(factor, str) or not 0 < factor <= 1:
        raise Invalid("a number above 0, at most 1", "delay.factor")
    if ("factor" in table) != ("active_within" in table):
        raise Invalid("factor and active_within need each other", "delay")
    return Delay(
        duration_at("delay.others", table["others"]),
        _paths("delay.by", [str(table["by"])])[0],
        levels,
        duration_at("delay.active_within", table["active_within"]) if "active_within" in table else 0,
        factor,
    )


def _rollout(written: _RolloutText | None) -> Rollout:
    return Rollout() if written is None else Rollout(written.share, frozenset(written.tenants))


def _fire(written: _RuleText) -> Conditions:
    fire = written.fire or _FireText()
    events = (fire.unless_event,) if isinstance(fire.unless_event, str) else tuple(fire.unless_event)
    return Conditions(0, fire.unless_active, events, "", duration_at("inactive", written.inactive) if written.inactive else 0)


def _condition(written: _ConditionText, index: int) -> Condition:
    place = f"when[{index}]"
    tests = {"equals": written.equals, "not_equal": written.not_equal, "in": written.in_, "exists": written.exists}
    given = [(name, operand) for name, operand in tests.items() if operand is not UNSET]
    if len(given) != 1:
        raise Invalid("exactly one of equals, not_equal, in, exists is needed", place)
    test, operand = given[0]
    if any(isinstance(one, date | time) for one in (operand if isinstance(operand, list) else [operand])):
        raise Invalid("a text is needed, which JSON has in place of dates and times", f"{place}.{test}")
    return Condition(_paths(f"{place}.path", [written.path])[0], test, operand)


def _paths(place: str, texts: list[str]) -> tuple[EventPath, ...]:
    return tuple(at_field(place, parse_path, text) for text in texts)


def _shape(place: str, value: Any) -> Shape | None:
    return None if value is None else at_field(place, parse_shape, value)
