"""The settings of channels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from engine.config import CATCH_MAILS, HTTP_URL, Config, Section, SettingRule, apprise_recipients, host_rules, with_port

_SMTP_URL: Final = re.compile(
    r"smtps?://(?:[^\s:/?#@]+:[^\s/?#@]*@)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([1-9][0-9]{0,4}))?/?", re.ASCII
)
_APPRISE_BEGINNING: Final = re.compile(r"[a-z][a-z0-9+.-]*://(?:[A-Za-z0-9.-]+(?::[0-9]{1,5})?/[!-~]*)?")
_MAIL_FROM: Final = re.compile(r"[!-;=?A-~]+@[A-Za-z0-9.-]+|[^<>@\x00-\x1f]+ <[!-;=?A-~]+@[A-Za-z0-9.-]+>")


def rules(config: Config) -> Iterator[SettingRule]:
    """See `Section`."""
    yield from host_rules(config, "push_hosts")
    yield (
        config.smtp_url in ("", CATCH_MAILS) or with_port(_SMTP_URL, config.smtp_url),
        "smtp_url: smtp://[USER:PASSWORD@]HOST[:PORT] (with STARTTLS where the server has it) or smtps://... is needed; catch:// to show "
        "mails to operators in place of sending them; empty for no mail",
    )
    yield not config.smtp_url or bool(config.mail_from), "mail_from: needed with smtp_url, as every mail has a sender"
    yield (
        not config.mail_from or _MAIL_FROM.fullmatch(config.mail_from) is not None,
        f"mail_from: {config.mail_from!r} is not allowed; allowed is an address such as news@example.com, or Example <news@example.com>",
    )
    yield (
        all(_APPRISE_BEGINNING.fullmatch(one) for one in config.apprise_urls),
        "apprise_urls: beginnings are needed: slack:// where the service has one host, ntfy://ntfy.example.com/ where URLs name it",
    )
    try:
        apprise_recipients(config.apprise_recipients)
    except ValueError:
        yield False, "apprise_recipients: NAME=URL is needed, others behind spaces; names of a-z, 0-9, _ and -, each once"
    yield (
        not config.push_contact or re.fullmatch(r"mailto:[^\s<>@]+@[A-Za-z0-9.-]+|https://[^\s/?#@]+\S*", config.push_contact) is not None,
        f"push_contact: {config.push_contact!r} is not allowed; allowed is mailto: and an address, an https:// URL, or empty",
    )
    yield (
        not config.public_url or with_port(HTTP_URL, config.public_url),
        f"public_url: {config.public_url!r} is not allowed; allowed is the http:// or https:// URL by which users reach the engine, "
        "without a query, or empty",
    )


SECTION: Final = Section(
    "how users are told who are not looking: the steps of a category",
    {
        "smtp_url": "mail server, smtp://USER:PASSWORD@HOST or smtps://; catch:// shows mails to operators instead; empty: no mail",
        "mail_from": "sender of mails, such as Example <news@example.com>",
        "apprise_urls": "how the URLs of users begin, such as slack://, ntfy://ntfy.example.com/; empty: users have none",
        "apprise_recipients": "recipients that steps may name (`to`), `oncall=slack://...`, others behind spaces",
        "push_hosts": "push services that users' browsers may name, such as fcm.googleapis.com, *.push.apple.com",
        "push_contact": "whom a push service asks when pushes are wrong, mailto:ops@example.com or https://...; Apple's wants one",
        "public_url": "where users reach the engine, such as https://notify.example.com: for links in mails; empty: none",
    },
    rules,
)
