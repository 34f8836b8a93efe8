"""The settings of webhooks and other actions."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Final

from engine.config import Config, Section, SettingRule, host_rules

_QUESTION_TARGET: Final = re.compile(r"(?:ray|serve|https?)://[!-)+-~]+\*?")


def rules(config: Config) -> Iterator[SettingRule]:
    """See `Section`."""
    yield from (*host_rules(config, "webhook_hosts"), *host_rules(config, "tenant_hosts"))
    for target in config.question_targets:
        yield (
            _QUESTION_TARGET.fullmatch(target) is not None,
            f"question_targets: {target!r} is not allowed; allowed are targets of ray://, serve:// or https://, with * for any end, "
            "such as https://hooks.example.com/*",
        )
    for network in config.webhook_networks:
        try:
            ip_network(network)
        except ValueError as error:
            yield False, f"webhook_networks: {error}; allowed are networks such as 10.0.0.0/8"
    try:
        webhook_secrets(config.webhook_secret)
    except ValueError:
        yield (
            False,
            "webhook_secret: `whsec_` and the base64 of 24 to 64 random bytes is needed (openssl rand -base64 32); two, separated by a "
            "comma, while targets change from one to the other",
        )
    yield (
        not config.webhook_hosts or bool(config.webhook_secret),
        "webhook_secret: needed with webhook_hosts, as every webhook is signed",
    )
    yield config.action_claim_ms > config.action_timeout_ms, "action_claim_ms: must be above action_timeout_ms"


def webhook_secrets(text: str) -> list[bytes]:
    """The secrets that webhooks are signed with, the newest first; none for "". Raises ValueError when malformed."""
    secrets = []
    for part in text.split(",") if text else ():
        prefix, _, encoded = part.strip().partition("_")
        secret = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)  # verifiers take secrets without their padding
        if prefix != "whsec" or not 24 <= len(secret) <= 64:
            raise ValueError("no secret for webhooks")
        secrets.append(secret)
    if len(secrets) > 2:
        raise ValueError("at most two secrets")
    return secrets


SECTION: Final = Section(
    "what rules and questions may call (`do`); every webhook is signed",
    {
        "webhook_hosts": "hosts that webhooks may be sent to, such as hooks.example.com, *.example.com; empty: none",
        "webhook_networks": "private networks, such as 10.0.0.0/8, whose addresses these hosts may have; http:// is allowed there only",
        "question_targets": "targets that publishers may name in `ask`, such as https://hooks.example.com/*, ray://shop/carts.answered",
        "webhook_secret": "`whsec_` and base64 of 24 to 64 bytes; two, with a comma between, while targets change over",
    },
    rules,
)
