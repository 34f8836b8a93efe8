"""The digest by mail, "while you were away": at the times that its user has set, of what came since the last one and is unread.

    preferences changed --> a durable timer for the next time --> action channel://digest on an edge:
        1  the profile of now     no digest wanted: the chain ends
        2  the timer of the next time is armed
        3  another time than the profile's by now (but of an earlier try that failed), no address, or nothing unread: no mail
        4  the mail

A timer's id follows from user and time, so whoever arms a time again changes nothing, and chains of old and new times become one. One that
was cancelled is armed again under an id that follows from its own, and after some times under a new one. A zone that the application
changes holds from the next time on: the timer of the old time finds that it is none, and arms the next. A timer has the time of the last
digest (`ts`), which is handed on to one of another time: what came between the two is in the next digest. One that is late has what came
until its time.

| what dies | effect |
|---|---|
| the edge, before the timer is stored | no answer to the change of preferences; its repeat arms the timer |
| scheduler or shard, when it is due | as with every durable timer: it is handed out again, and takes effect once |
| the edge in a call | another edge calls again: the next timer is there already, the mail is sent again under its one `Message-ID` |
| the mail server, for an hour | a dead letter; the next digest is armed |
| shard or scheduler, for hours | the action is tried again and never given up for that, since its end would end the chain |
| everything, for days | the timer comes late, and arms the next; it lives for a year, likewise |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.responses import Response

from engine.config import Config
from engine.core.model.action import Target, action_of
from engine.core.model.category import SPAN_MAX_MS
from engine.core.model.constants import LOW
from engine.core.model.envelope import Envelope
from engine.core.model.formats import STEPS
from engine.core.model.routing import mailbox_key, timer_id
from engine.core.policy.preferences import NO_MAIL_DIGEST, PreferencesPatch
from engine.core.policy.profile import Profile
from engine.core.wire.records import OK, Timer
from engine.errors import ActionFailed, Overloaded, StorageUnavailable, Unavailable
from engine.features.actions.store import QueuedAction
from engine.features.digest.core.mail_times import last_due, next_due
from engine.features.digest.mail_text import digest_mail, digest_page
from engine.features.policy.profiles import ask_change, ask_profile
from engine.features.policy.time_zones import zone_here
from engine.features.policy.unsubscribe_links import LINK_S, make_link_token, read_link_token
from engine.features.policy.unsubscribing import LinkKey
from engine.features.reach.email_channel import EmailChannel
from engine.features.reach.store import AddressStore
from engine.gateway.shard_client import ShardClient

CHANNEL: Final = "digest"
PATH: Final = "/v1/digest/unsubscribe"
_ID: Final = "digest-"
"""Before the time, ms, in the id of a digest."""

_ARMED_MAX: Final = 8
"""So often the timer of one time is armed under an id that follows from it: an erasure cancels it, and its user may come back."""

MakeDigest = Callable[[str, int, int], Awaitable[dict[str, Any]]]
"""(mailbox key, since when, until when) -> as the answer of `GET /v1/digest`. Raises StorageUnavailable, Overloaded, Unavailable."""


class _Claims(Struct, tag_field="use", tag="no-digest"):
    """What a link is for. `exp`: seconds since the epoch."""

    tenant: str
    user: str
    exp: int


class _Since(Struct):
    """The message of a timer."""

    ts: int = 0


_claims: Final = msgspec.json.Decoder(_Claims)
_message: Final = msgspec.json.Decoder(_Since)


class MailDigests:
    """The digests by mail of one edge.

    Args:
        shard_client: reads profiles, and arms timers.
        wall_ms: milliseconds since the epoch.
        link_key: links are signed with it.
    """

    def __init__(
        self,
        config: Config,
        shard_client: ShardClient,
        wall_ms: Callable[[], int],
        addresses: AddressStore,
        link_key: LinkKey,
        digest: MakeDigest,
        email: EmailChannel,
    ) -> None:
        self._config = config
        self._shard_client = shard_client
        self._wall_ms = wall_ms
        self._addresses = addresses
        self._link_key = link_key
        self._digest = digest
        self._email = email

    async def arm(self, key: str, profile: Profile | None, told_ms: int = 0, since_ms: int = 0) -> None:
        """Arm the timer of the user's next digest; durable on return. Raises Overloaded, Unavailable.

        Args:
            profile: None: it is to be read.
            told_ms: the time before it, which this edge's clock may not have reached.
            since_ms: when the last digest was; 0: as a timer that waits says, if there is one.
        """
        profile = profile or (await ask_profile(self._shard_client, key)).profile
        if profile is None or profile.mail_digest is None:
            return
        now_ms, zone = self._wall_ms(), zone_here(profile.zone)
        due_ms = next_due(profile.mail_digest, zone, max(now_ms, told_ms))
        since_ms = since_ms or _newest_before(due_ms, await self._told(key)) or last_due(profile.mail_digest, zone, due_ms)
        id = f"{_ID}{due_ms}"
        name = f"{key}\n{id}"
        envelope = Envelope(id, b"", LOW, True, b'"id":"%b","ts":%d,"type":"digest"' % (id.encode(), since_ms))
        action = action_of(f"channel://{CHANNEL}", key, id)
        for _ in range(_ARMED_MAX):
            name = blake2b(name.encode(), digest_size=16).hexdigest()
            timer = Timer(timer_id(key, name), key, due_ms, now_ms, SPAN_MAX_MS, envelope, None, action)
            if await self._shard_client.schedule_all([timer], STEPS):
                return
        # Cancelled as often: under a new id, or the chain would end. Two of one time are one digest by its `Message-ID`.
        timer = msgspec.structs.replace(timer, sid=timer_id(key, self._shard_client.new_timer_name()))
        await self._shard_client.schedule_all([timer], STEPS)

    async def _told(self, key: str) -> set[int]:
        """When the last digest of the user was, as each timer says that waits for the next. Raises Overloaded, Unavailable."""
        channel = f"channel://{CHANNEL}"
        waiting = [timer async for timer in self._shard_client.every_timer(key) if timer.action and timer.action.target == channel]
        return {_ts_of(b"{%b}" % timer.envelope.body) for timer in waiting}

    async def call(self, _target: Target, action: QueuedAction) -> None:
        """A digest is due. Raises ActionFailed."""
        key = mailbox_key(action.tenant, action.user)
        try:
            answer = await ask_profile(self._shard_client, key)
            if answer.status != OK:
                raise ActionFailed("the user's shard did not answer", own=True)
            profile = answer.profile
            if profile is None or profile.mail_digest is None:
                return
            zone = zone_here(profile.zone)
            if action.id.startswith(_ID):
                due_ms = int(action.id.removeprefix(_ID))
            else:  # of a redriven one, whose message has another id, it is the last time before
                due_ms = last_due(profile.mail_digest, zone, action.due_ms + 1)
            told = await self._told(key)
            # Since it was armed, there may have been one at another time.
            since_ms = max(_ts_of(action.body), _newest_before(due_ms, told)) or last_due(profile.mail_digest, zone, due_ms)
            # An earlier try was due when the next one was armed, which begins behind it: the time may have been changed since.
            is_due = due_ms in told or next_due(profile.mail_digest, zone, due_ms - 1) == due_ms
            await self.arm(key, profile, due_ms, due_ms if is_due else since_ms)
            email = (await self._addresses.read(key)).email
            if not email or not is_due:
                return
            found = await self._digest(key, since_ms, due_ms)
            if found["lines"]:
                link = await self._link(action)
                await self._email.deliver(digest_mail(action, email, self._config.mail_from, found, profile.locale, link), email, key)
        except Overloaded as error:
            raise ActionFailed(str(error)) from None
        except (StorageUnavailable, Unavailable) as error:
            raise ActionFailed(str(error), own=True) from None

    async def _link(self, action: QueuedAction) -> str:
        """The link that ends the user's digests; "" without `public_url`."""
        config = self._config
        if not config.public_url:
            return ""
        claims = _Claims(action.tenant, action.user, self._wall_ms() // 1000 + LINK_S)
        return f"{config.public_url.rstrip('/')}{PATH}?token={make_link_token(claims, await self._link_key())}"

    async def show(self, token: str, language: str) -> Response:
        """The answer to `GET` of a link; it changes nothing."""
        try:
            return digest_page("invalid" if await self._read(token) is None else "ask", language)
        except StorageUnavailable:
            return digest_page("away", language)

    async def end(self, token: str, language: str) -> Response:
        """The answer to `POST` of a link, also that of a mail program (RFC 8058): the user gets no digest any more; durable."""
        try:
            claims = await self._read(token)
            if claims is None:
                return digest_page("invalid", language)
            key, patch = mailbox_key(claims.tenant, claims.user), PreferencesPatch(cleared=NO_MAIL_DIGEST)
            answer = await ask_profile(self._shard_client, key)
            if answer.profile is not None and answer.profile.mail_digest is not None:
                answer = await ask_change(self._shard_client, key, patch, self._config.profile_entries_max)
        except (StorageUnavailable, Overloaded, Unavailable):
            return digest_page("away", language)
        return digest_page("done" if answer.status == OK else "away", language)

    async def _read(self, token: str) -> _Claims | None:
        """What a link is for, None when it is not valid. Raises StorageUnavailable."""
        return read_link_token(token, await self._link_key(), self._wall_ms() / 1000, _claims) if token.count(".") == 2 else None


def _newest_before(at_ms: int, times: Iterable[int]) -> int:
    """The newest of these times that is before this one; 0 for none."""
    return max((one for one in times if one < at_ms), default=0)


def _ts_of(message: bytes) -> int:
    """When the digest before was, of the message of a timer; 0: it does not say."""
    return _message.decode(message).ts
