"""`POST /v1/unsubscribe-links` and `/v1/unsubscribe`: links with which a user leaves a category by one click, without login.

    application --POST /v1/unsubscribe-links--> path with a token --> mail --> user
    message of a category with `unsubscribe = true` (`engine.features.policy.message_links`) --> its user
    GET    shows a page with a button. It changes nothing: mail systems open the links of mails to look at them
    POST   of the button, or of a mail program (RFC 8058, `List-Unsubscribe=One-Click`): turns the category off, durably, and shows the page
           with a button to undo it, which posts `again=` with the choice of before

The token (`engine.features.policy.unsubscribe_links`) is all that a request needs. It names user, category and tenant. An unsubscription
is a patch of the user's preferences like any other, and idempotent like any other. What is off already is not
written again, so a link that is opened by everybody costs storage nothing.

The pages do not tell whether the user exists, was erased, or ever got something. For an erased user the choice is kept, as it would be for
a user that the engine has not seen: whoever asks not to be written to must not be forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, quote

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from engine.api.edge_feature import EdgePorts
from engine.api.json_bodies import decode_body
from engine.config import Config
from engine.core.model.category import CHOICES, OFF, Category
from engine.core.model.names import is_user
from engine.core.model.routing import mailbox_key
from engine.core.policy.preferences import PreferencesPatch
from engine.core.policy.profile import NO_PROFILE
from engine.errors import Invalid, Overloaded, StorageUnavailable, Unavailable
from engine.features.policy import profiles
from engine.features.policy.core.preferences_json import MOST_FIRST, choice_for, may, may_choose
from engine.features.policy.keys import UNSUBSCRIBE_KEY_KEY
from engine.features.policy.profiles import Preferences
from engine.features.policy.unsubscribe_links import KEY_BYTES, LINK_S, LinkClaims, make_link_token, read_link_token, unsubscribe_claims
from engine.features.policy.unsubscribe_page import unsubscribe_page
from engine.gateway.shard_client import ShardClient
from engine.http.problems import RETRY_AFTER_S, Problem
from engine.publish import media_types
from engine.publish.category_book import CategoryBook
from engine.store.stored_secret import claim_secret

PATH: Final = "/v1/unsubscribe"
_FORM: Final = "application/x-www-form-urlencoded"
_CHOICES_MAX: Final = 1 << 31
"""No limit for whoever wants less: the application makes a link for each of its categories."""

_LINKS_AT_ONCE: Final = 50  # about a millisecond of signing

LinkKey = Callable[[], Awaitable[bytes]]
"""The key that links are signed with. Raises StorageUnavailable. It is asked for again and again: Redis may have lost it, and another be
made."""

_KEY_MS: Final = 1000


class RememberedKey:
    """A key that storage is asked for once a second at most, so that requests with wrong signatures cost storage nothing.

    Args:
        clock: milliseconds that never step.
    """

    def __init__(self, ask: LinkKey, clock: Callable[[], int]) -> None:
        self._ask = ask
        self._clock = clock
        self._key = b""
        self._asked_ms = 0

    async def __call__(self) -> bytes:
        """The key. Raises StorageUnavailable."""
        now_ms = self._clock()
        if not self._key or now_ms - self._asked_ms >= _KEY_MS:
            self._key, self._asked_ms = await self._ask(), now_ms
        return self._key


def stored_key(ports: EdgePorts) -> RememberedKey:
    """The key of the engine, which the first edge that asks makes."""
    return RememberedKey(partial(claim_secret, ports.redis, UNSUBSCRIBE_KEY_KEY, KEY_BYTES, "unsubscribe key"), ports.gateway.clock)


class _Wanted(Struct, forbid_unknown_fields=True, gc=False):
    """The body of `POST /v1/unsubscribe-links`."""

    category: str
    user: str | UnsetType = UNSET
    users: list[str] | UnsetType = UNSET


_wanted: Final = msgspec.json.Decoder(_Wanted)


class Unsubscribing:
    """The endpoints.

    Args:
        category_book: the categories that users may choose for.
        wall_ms: milliseconds since the epoch.
    """

    def __init__(
        self,
        config: Config,
        shard_client: ShardClient,
        preferences: Preferences,
        category_book: CategoryBook,
        link_key: LinkKey,
        wall_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._shard_client = shard_client
        self._preferences = preferences
        self._category_book = category_book
        self._link_key = link_key
        self._wall_ms = wall_ms

    async def make(self, tenant: str, body: bytes) -> dict[str, Any]:
        """The answer to `POST /v1/unsubscribe-links`.

        Raises:
            Problem: 400 or 422; 503, storage did not answer.
            Unavailable: the rules cannot be read.
        """
        wanted = decode_body(_wanted, body, _Wanted)
        try:
            users = self._check(tenant, wanted)
        except Invalid as error:
            raise media_types.unacceptable(error) from None
        expires_s = self._wall_ms() // 1000 + LINK_S
        key = await self._link_key()
        paths = await link_paths([LinkClaims(tenant, user, wanted.category, expires_s) for user in users], key)
        links = [{"user": user, "path": path} for user, path in zip(users, paths, strict=True)]
        return {"links": links, "expires_at": expires_s * 1000}

    def _check(self, tenant: str, wanted: _Wanted) -> list[str]:
        """The users of a valid request."""
        if (wanted.user is UNSET) == (wanted.users is UNSET):
            raise Invalid("exactly one of `user` and `users` is needed", "$")
        users = [wanted.user] if wanted.user is not UNSET else [] if wanted.users is UNSET else wanted.users
        if not 0 < len(users) <= self._config.items_max:
            raise Invalid(f"1 to {self._config.items_max} users", "$.users")
        for index, user in enumerate(users):
            if not is_user(user, self._config.id_chars_max):
                path = "$.user" if wanted.users is UNSET else f"$.users[{index}]"
                raise Invalid(f"text of 1 to {self._config.id_chars_max} characters without control characters", path)
        categories = self._category_book.in_use(tenant).categories
        category = categories.get(wanted.category)
        if category is None and self._category_book.unread():
            raise Unavailable("the rules file, which defines categories, cannot be used")
        if category is None:
            raise Invalid(f"no category has this name; defined are {', '.join(sorted(categories))}", "$.category")
        if not may_choose(category, OFF):
            raise Invalid(f"users cannot turn the category {wanted.category} off: they may choose {', '.join(may(category))}", "$.category")
        return users

    async def ask(self, token: str, language: str) -> Response:
        """The answer to `GET /v1/unsubscribe`; it changes nothing."""
        try:
            claims = await self._read(token)
        except StorageUnavailable:
            return unsubscribe_page("away", language, status=503, retry_after=str(RETRY_AFTER_S))
        if claims is None:
            return unsubscribe_page("invalid", language, status=404)
        if not may_choose(self._category(claims), OFF):
            return unsubscribe_page("refused", language, title=self._title(claims), status=409)
        return unsubscribe_page("ask", language, title=self._title(claims))

    async def answer(self, token: str, content_type: str, body: bytes, language: str) -> Response:
        """The answer to `POST /v1/unsubscribe`; what it says is durable."""
        try:
            claims = await self._read(token)
            if claims is None:
                return unsubscribe_page("invalid", language, status=404)
            return await self._turn(claims, _again(content_type, body), language)
        except (StorageUnavailable, Unavailable, Overloaded):
            return unsubscribe_page("away", language, status=503, retry_after=str(RETRY_AFTER_S))
        except Problem as problem:  # no room for another user
            return unsubscribe_page("away", language, status=problem.status, retry_after=problem.headers.get("Retry-After", ""))

    async def _turn(self, claims: LinkClaims, again: str, language: str) -> Response:
        """Turn the category off, or `again` to what it was; `again` is "" for off."""
        name, title, category = claims.category, self._title(claims), self._category(claims)
        choice = CHOICES.index(again) if again in CHOICES else OFF
        if not may_choose(category, choice):
            return unsubscribe_page("refused", language, title=title, status=409)
        key = mailbox_key(claims.tenant, claims.user)
        profile = (await profiles.get(self._shard_client, key)).profile or NO_PROFILE
        before = choice_for(profile, name, category)
        if profile.categories.get(name) != choice:
            await self._preferences.apply(key, PreferencesPatch(categories={name: choice}), _CHOICES_MAX)
        if choice != OFF:
            return unsubscribe_page("undone", language, title=title)
        back = before if before != OFF else next((one for one in MOST_FIRST if may_choose(category, one)), OFF)
        return unsubscribe_page("done", language, title=title, again=CHOICES[back] if back != OFF else "")

    async def _read(self, token: str) -> LinkClaims | None:
        """What a link is for, None when it is not valid. Raises StorageUnavailable."""
        if token.count(".") != 2:
            return None
        return read_link_token(token, await self._link_key(), self._wall_ms() / 1000, unsubscribe_claims)

    def _category(self, claims: LinkClaims) -> Category:
        """The limits of a link's category; of one that is not defined any more, those that restrict nothing."""
        return self._category_book.in_use(claims.tenant).categories.get(claims.category, Category())

    def _title(self, claims: LinkClaims) -> str:
        return self._category_book.in_use(claims.tenant).titles.get(claims.category, claims.category)


def _again(content_type: str, body: bytes) -> str:
    """The field `again` of the page's form; "" in any other body, such as that of a mail program."""
    if not content_type.lower().startswith(_FORM):
        return ""
    return parse_qs(body.decode("latin-1")).get("again", [""])[0]


async def link_paths(links: Sequence[LinkClaims], key: bytes) -> list[str]:
    """The paths of links, in their order. The event loop serves others after every `_LINKS_AT_ONCE`."""
    paths = []
    for number, claims in enumerate(links):
        if number and number % _LINKS_AT_ONCE == 0:
            await asyncio.sleep(0)
        paths.append(f"{PATH}?token={quote(make_link_token(claims, key), safe='')}")
    return paths
