"""A plugin of Apprise that notifies users of an engine.

    engine://TOKEN@HOST:PORT/USER1/USER2      engines:// with TLS
    ?topic=NAME       the subscribers of a topic, in place of users
    ?kind=NAME        `type` of the notification; "apprise" when left out

TOKEN has the scope `publish`. A failure of Apprise is sent with high priority. It is this file alone: import it, or give its folder to
`apprise --plugin-path`.

Every request has ids of its own, so that a repeat after a lost answer or an overload notifies nobody twice.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, ClassVar

import requests
from apprise.common import NotifyType
from apprise.plugins import N_MGR
from apprise.plugins.base import NotifyBase
from apprise.url import PrivacyMode

TRIES = 4
RETRY_FIRST_S = 0.5
RETRY_AFTER_S_MAX = 10.0
TIMEOUT_S = 10.0
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""As the engine's own publisher: while an engine restarts, the proxy in front of it answers 502 or 504."""


class NotifyEngine(NotifyBase):
    """Publishes one notification for each user, or for one topic."""

    service_name = "ray-notification-engine"
    service_url = "https://github.com/caronc/apprise"
    protocol = "engine"
    secure_protocol = "engines"
    title_maxlen = 250
    body_maxlen = 16_000
    request_rate_per_sec = 0
    templates = ("{schema}://{token}@{host}/{targets}", "{schema}://{token}@{host}:{port}/{targets}")
    template_tokens: ClassVar[dict[str, Any]] = dict(
        NotifyBase.template_tokens,
        token={"name": "Token", "type": "string", "private": True, "required": True},
        host={"name": "Hostname", "type": "string", "required": True},
        port={"name": "Port", "type": "int", "min": 1, "max": 65535},
        targets={"name": "Users", "type": "list:string"},
    )
    template_args: ClassVar[dict[str, Any]] = dict(
        NotifyBase.template_args,
        topic={"name": "Topic", "type": "string"},
        kind={"name": "Type of the notification", "type": "string", "default": "apprise"},
    )

    def __init__(self, token: str = "", targets: Any = (), topic: str = "", kind: str = "apprise", **others: Any) -> None:
        super().__init__(**others)
        self.token, self.targets, self.topic, self.kind = token, list(targets), topic, kind
        if not token:
            raise TypeError("engine://: a token is needed before the @")
        if bool(self.targets) == bool(topic):
            raise TypeError("engine://: users in the path are needed, or ?topic=")

    def send(self, body: str, title: str = "", notify_type: Any = NotifyType.INFO, **_others: Any) -> bool:
        """Publish; True when the engine accepted everything."""
        level = getattr(notify_type, "value", str(notify_type))
        shared = {"type": self.kind, "data": {"title": title, "body": body, "level": level}}
        if level == NotifyType.FAILURE.value:
            shared["priority"] = "high"
        whom = [{"topic": self.topic}] if self.topic else [{"user": user} for user in self.targets]
        items = [{**one, **shared, "id": uuid.uuid4().hex} for one in whom]
        wait_s = RETRY_FIRST_S
        for left in reversed(range(TRIES)):
            try:
                answer = requests.post(
                    f"{self._address()}/v1/notifications",
                    json=items,
                    headers={"Authorization": f"Bearer {self.token}"},
                    timeout=TIMEOUT_S,
                    verify=self.verify_certificate,
                )
            except requests.RequestException as error:
                self.logger.warning("the engine does not answer: %s", error)
            else:
                if answer.status_code == requests.codes.accepted:
                    return True
                self.logger.warning("the engine answers %d: %s", answer.status_code, answer.text[:500])
                if answer.status_code not in RETRIED:
                    return False
                wait_s = min(max(wait_s, _seconds(answer.headers.get("Retry-After", ""))), RETRY_AFTER_S_MAX)
            if left:
                time.sleep(wait_s)
                wait_s *= 2
        return False

    def url(self, privacy: bool = False, *args: Any, **others: Any) -> str:
        """The URL; without its token, where Apprise is to show it."""
        params = {
            "kind": self.kind,
            **({"topic": self.topic} if self.topic else {}),
            **self.url_parameters(*args, privacy=privacy, **others),
        }
        token = self.pprint(self.token, privacy, mode=PrivacyMode.Secret, safe="")
        targets = "/".join(self.quote(user, safe="") for user in self.targets)
        return f"{self._schema()}://{token}@{self._place()}/{targets}?{self.urlencode(params)}"

    @property
    def url_identifier(self) -> tuple[Any, ...]:
        """The engine and who publishes, without targets."""
        return (self._schema(), self.token, self.host, self.port)

    def _address(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self._place()}"

    def _schema(self) -> str:
        return self.secure_protocol if self.secure else self.protocol

    def _place(self) -> str:
        return self.host + (f":{self.port}" if self.port else "")

    @staticmethod
    def parse_url(url: str, *_args: Any, **_others: Any) -> dict[str, Any] | None:
        """The arguments of the constructor, from a URL; None: it has no host."""
        found: dict[str, Any] | None = NotifyBase.parse_url(url)
        if found is None:
            return None
        found["token"] = NotifyBase.unquote(found["user"] or "")
        found["targets"] = NotifyBase.split_path(found["fullpath"])
        for name in ("topic", "kind"):
            if found["qsd"].get(name):
                found[name] = NotifyBase.unquote(found["qsd"][name])
        return found


def _seconds(retry_after: str) -> float:
    """0 for the date that a proxy may write there."""
    try:
        return float(retry_after)
    except ValueError:
        return 0.0


if "engine" not in N_MGR:
    N_MGR.add(NotifyEngine)
