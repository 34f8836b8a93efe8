"""Which targets the settings allow, before one is called: told when rules are read, and again at each call."""

from __future__ import annotations

from engine.config import Config
from engine.core.model.action import ActorTarget, Target, WebhookTarget


def not_allowed(target: Target, config: Config) -> str:
    """Why the engine may not call a target, "" when it may. Where the name of a host leads is known only when it is called."""
    if isinstance(target, ActorTarget) and target.namespace == config.namespace:
        return "the engine's own actors are no targets"
    if not isinstance(target, WebhookTarget):
        return ""
    if not any(host_matches(target.host, pattern.lower()) for pattern in config.webhook_hosts):
        return f"{target.host} is not among webhook_hosts"
    if not config.webhook_secret:
        return "webhook_secret is not set: nothing could be signed"
    if not target.secure and not config.webhook_networks:
        return "http:// is allowed only inside webhook_networks, and there are none"
    return ""


def host_matches(host: str, pattern: str) -> bool:
    """Whether the pattern, a name, an address, or `*.` and a name, allows the host."""
    return host == pattern or (pattern.startswith("*.") and host.endswith(pattern[1:]) and len(host) > len(pattern) - 1)
