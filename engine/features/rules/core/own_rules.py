"""Rules and categories of a tenant's own, beside the operator's, which come first.

    names        a tenant's rule `x` is `own/x` in ids, histories and collapse keys, so it meets none of the operator's
    users        an event that notifies a user by a rule of the operator notifies the user by none of the tenant's
    categories   one that the operator defines too is the operator's

What a tenant may not write, whatever the limits say: tables that concern more than rules and categories, Jinja2 (it computes), conditions
that shards keep state for, actions but webhooks, mandatory messages, and recipients that the operator has named.
"""

from __future__ import annotations

import tomllib
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.core.model.action import WebhookTarget, parse_target
from engine.core.model.allowed_targets import host_matches
from engine.core.model.category import DAY_MS, Category
from engine.core.model.step import ChannelStep
from engine.errors import Invalid, RulesError
from engine.features.rules.core.rules import Rule, Rules
from engine.features.rules.core.toml_loader import parse_rules

PREFIX: Final = "own/"
"""Before the name of a tenant's rule; no name in a file has a slash."""

_TABLES: Final = ("rule", "category", "defaults", "default_category")


class OwnLimits(Struct, frozen=True):
    """What the operator allows tenants.

    Args:
        rules_max: rules of one tenant; 0: tenants have none.
        channels: that steps may name.
        hosts: of webhooks, names and `*.` patterns.
        cap_max: messages of a category to a user within a day; 0: it needs no cap.
    """

    rules_max: int
    channels: tuple[str, ...]
    hosts: tuple[str, ...]
    cap_max: int


def parse_own(text: str, source: str, tenant: str, limits: OwnLimits) -> Rules:
    """The rules of a tenant. Raises RulesError, with the field and what is allowed."""
    rules = parse_rules(text, source)
    raw = tomllib.loads(text)
    for table in raw:
        if table not in _TABLES:
            raise RulesError(f"{source}: {table}: a tenant's rules have only {', '.join(_TABLES)}", path=table)
    for name in rules.default_categories:
        if name != tenant:
            raise RulesError(f"{source}: default_category.{name}: only {tenant}, the tenant itself", path=f"default_category.{name}")
    if len(rules.rules) > limits.rules_max:
        raise RulesError(f"{source}: rule: at most {limits.rules_max} rules", path="rule")
    for name in raw.get("category", {}):
        _check_category(name, rules.categories[name], rules.steps.get(name, ()), limits, source)
    for index, rule in enumerate(rules.rules):
        try:
            _check_rule(rule, raw["rule"][index], limits)
        except Invalid as error:
            raise RulesError(f"{source}: rule {rule.name!r}: {error.path}: {error.detail}", path=f"rule[{index}].{error.path}") from None
    named = tuple(msgspec.structs.replace(rule, name=f"{PREFIX}{rule.name}", prefix=PREFIX) for rule in rules.rules)
    return msgspec.structs.replace(rules, rules=named, own=True)


def _check_category(name: str, category: Category, steps: tuple[ChannelStep, ...], limits: OwnLimits, source: str) -> None:
    def refused(member: str, allowed: str) -> RulesError:
        return RulesError(f"{source}: category {name!r}: {member}: {allowed}", path=f"category.{name}.{member}")

    if category.mandatory:
        raise refused("mandatory", "not in a tenant's rules")
    if limits.cap_max and not 0 < category.cap * DAY_MS <= limits.cap_max * category.cap_ms:
        raise refused("cap", f"a cap of at most {limits.cap_max} a day is needed")
    try:
        _check_steps(steps, limits)
    except Invalid as error:
        raise refused(error.path, error.detail) from None


def _check_steps(steps: tuple[ChannelStep, ...], limits: OwnLimits) -> None:
    for index, step in enumerate(steps):
        if step.channel not in limits.channels:
            raise Invalid(f"one of {', '.join(limits.channels) or 'none'}", f"steps[{index}].channel")
        for member in ("to", "mandatory"):
            if getattr(step, member):
                raise Invalid("not in a tenant's rules", f"steps[{index}].{member}")


def _check_rule(rule: Rule, written: dict[str, Any], limits: OwnLimits) -> None:
    if limits.cap_max and not rule.category and not rule.do:
        raise Invalid("a category is needed, which has a cap", "category")
    _check_steps(rule.steps, limits)
    if rule.rollout.tenants:
        raise Invalid("not in a tenant's rules", "rollout.tenants")
    if rule.fire.inactive_ms:
        raise Invalid("not in a tenant's rules", "inactive")
    if rule.fire.any or rule.member_of is not None:
        raise Invalid("not in a tenant's rules", "fire")
    if rule.delay.active_within_ms:
        raise Invalid("not by activity in a tenant's rules", "delay")
    if _has_template(written):
        raise Invalid("not in a tenant's rules; title, body and data have placeholders", "template")
    if rule.do:
        target = parse_target(rule.do)
        if not isinstance(target, WebhookTarget) or not any(host_matches(target.host, pattern.lower()) for pattern in limits.hosts):
            raise Invalid(f"a webhook on one of {', '.join(limits.hosts) or 'no host'}", "do")


def _has_template(written: dict[str, Any]) -> bool:
    contents = [written, *written.get("locales", {}).values(), *written.get("variants", ())]
    contents += [one for variant in written.get("variants", ()) for one in variant.get("locales", {}).values()]
    return any("template" in content for content in contents)


def joined(operator: Rules, own: Rules, tenant: str) -> Rules:
    """The operator's rules, with the categories that the tenant adds."""
    added = own.categories.keys() - operator.categories.keys()
    default = own.default_categories.get(tenant)
    late = {  # the tenant's rules may have later steps than the operator's in one of the operator's
        name: msgspec.structs.replace(category, steps_ms=max(category.steps_ms, own.categories[name].steps_ms))
        for name, category in operator.categories.items()
        if name in own.categories
    }
    return msgspec.structs.replace(
        operator,
        categories={**own.categories, **operator.categories, **late},
        titles={**{name: title for name, title in own.titles.items() if name in added}, **operator.titles},
        linked=operator.linked | (own.linked & added),
        steps={**{name: steps for name, steps in own.steps.items() if name in added}, **operator.steps},
        default_categories={**({tenant: default} if default else {}), **operator.default_categories},
    )


def within(own: Rules, categories: Rules) -> Rules:
    """The tenant's rules, with the categories of `joined`."""
    return msgspec.structs.replace(
        own,
        categories=categories.categories,
        linked=categories.linked,
        steps=categories.steps,
        default_categories=categories.default_categories,
        kept=categories.kept,
    )
