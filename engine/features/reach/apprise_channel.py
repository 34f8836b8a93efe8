"""Chats, pagers and other services, by Apprise: a URL says which one, and who there. `apprise` is imported with the first of them.

Users' URLs begin as one of `apprise_urls`, when they are given and when they are called. Where users could name a host by a URL, that
setting must name it: `engine.features.reach` would call hosts of its own network for them otherwise. They have no query, by which some
services are told other hosts.

Apprise says whether a notification was taken, and not why it was not. So what was not is tried again, and given up in the end. What it
would log may have tokens, and is dropped.

It blocks, and ends no call of a service whose answer goes on and on. So each service has threads of its own: the calls of one that has none
left fail in time, and no other waits. A call may take longer than a try, since Apprise pauses for seconds between two targets of one URL.
So the next try awaits the call that is under way, and begins no other.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec

from engine.errors import ActionFailed, Invalid
from engine.features.actions.store import QueuedAction
from engine.features.reach.message_texts import texts_of

_THREADS_MAX: Final = 8
"""Of one service: as many as calls of one target at once."""

_CALLS_MAX: Final = 1000
"""Calls that ended after their last try, whose results wait for a redrive; beyond it they are forgotten."""

_calls: Final[dict[tuple[str, str], Future[bool]]] = {}  # by action and URL; those that no try has seen the end of

_HOST_IN_PATH: Final = "endpoint"
"""Token of Azure Communication Services (2.3): any host, behind the sender. The beginning of a URL cannot name it."""

_NOT_INSTALLED: Final = "apprise is not installed where the edges run: install the extra `apprise`"


class _Service(Protocol):
    """What the engine uses of `apprise.NotifyBase`."""

    template_tokens: dict[str, Any]

    def notify(self, body: str, title: str) -> bool: ...


def lane_of(url: str) -> str:
    """The service of a URL, as a part of the name of its lane and its metrics: scheme and host where users name it, else the scheme.

    Raises ActionFailed as `send`.
    """
    service = _service(url)
    parts = urlsplit(url)
    return f"{parts.scheme}.{parts.hostname}" if "host" in service.template_tokens and parts.hostname else parts.scheme


def check_url(url: str, beginnings: tuple[str, ...]) -> None:
    """Check a URL of a user. It may be a tenth of a second until `apprise` is imported. Raises Invalid."""
    beginning = next((one for one in beginnings if url.startswith(one)), None)
    if beginning is None:
        raise Invalid(f"one of the beginnings of apprise_urls is needed: {', '.join(beginnings) or 'there are none'}")
    if "?" in url or "#" in url:
        raise Invalid("a URL without query and fragment is needed")
    try:
        service = _service(url)
    except ActionFailed as error:
        raise Invalid(str(error)) from None
    tokens = service.template_tokens
    if beginning.endswith("://") and (("host" in tokens and urlsplit(url).hostname) or _HOST_IN_PATH in tokens):
        raise Invalid("it names a host, so apprise_urls must name it too")


def is_allowed(url: str, beginnings: tuple[str, ...]) -> bool:
    """Whether the settings, and Apprise, have a place for a URL that a user gave some time ago. Raises ActionFailed: not installed."""
    try:
        _service(url)
        check_url(url, beginnings)
    except ActionFailed as error:
        if not error.final:
            raise
        return False
    except Invalid:
        return False
    return True


@lru_cache(maxsize=256)
def _service(url: str) -> _Service:
    """Raises ActionFailed: `apprise` is not installed, or knows no such service."""
    try:
        from apprise import Apprise
    except ImportError:
        raise ActionFailed(_NOT_INSTALLED) from None
    logging.getLogger("apprise").disabled = True
    logging.getLogger("urllib3").setLevel(logging.INFO)  # below, it logs paths
    service: _Service | None = Apprise.instantiate(url)
    if service is None:
        raise ActionFailed("no URL of a service that Apprise knows", final=True)
    return service


async def send(action: QueuedAction, url: str) -> None:
    """Send the message to this URL. Raises ActionFailed, whose reason does not have the URL."""
    texts = texts_of(msgspec.json.decode(action.body))
    title = texts.title or texts.type
    body = "\n".join(part for part in (texts.body, texts.url) if part) or title
    lane = await asyncio.to_thread(lane_of, url)
    name = (action.key, url)
    if (call := _calls.get(name)) is None:
        if len(_calls) >= _CALLS_MAX:
            for ended in [known for known, one in _calls.items() if one.done()]:
                del _calls[ended]
        call = _calls[name] = _threads(lane).submit(_notify, url, body, title)
    try:
        taken = await asyncio.wrap_future(call)
    finally:
        if call.done():  # or it was cancelled before it began
            _calls.pop(name, None)
    if not taken:
        raise ActionFailed(f"{lane} did not take it")


@cache  # by the hosts and services that the settings name
def _threads(lane: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS_MAX, f"apprise {lane}")


def _notify(url: str, body: str, title: str) -> bool:
    return _service(url).notify(body=body, title=title)
