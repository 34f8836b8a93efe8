"""Carries out steps that are due, as actions: each to the addresses that its user has in the channel.

    channel://email             one mail
    channel://apprise/to:NAME   to a recipient that the operator named
    channel://apprise           looked up: an action for each URL of the user, in the lane of its service
    channel://apprise/SERVICE   to one URL of the user
    channel://push              looked up: an action for each browser of the user, in the lane of its push service
    channel://push/SERVICE      to one browser

A service that does not answer holds up its own lane alone (`engine.features.actions.dispatcher`). A lane's action names its URL, or its
browser, by a digest in its key, not by itself: keys are in logs and with dead letters, addresses are not. An address that the user has no
more gets nothing, and a browser that has unsubscribed is removed. A step that is late by the life of its message is not taken.

Crash: the actions of the look-up are stored once each, by the key of the step, so a repeated look-up adds those that are missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from engine.config import Config, apprise_recipients
from engine.core.model.action import Action, ChannelTarget, Target
from engine.core.model.envelope import Envelope
from engine.core.model.routing import mailbox_key, timer_id
from engine.core.wire.records import Timer
from engine.errors import ActionFailed, NobodyToReach, StorageUnavailable
from engine.features.actions.store import QueuedAction
from engine.features.policy.core.contact_policy import spoken
from engine.features.reach import apprise_channel, push_channel
from engine.features.reach.core.addresses import Addresses
from engine.features.reach.email_channel import EmailChannel
from engine.features.reach.push_channel import PushChannel
from engine.features.reach.store import AddressStore, CapCount

TO: Final = "to:"
"""Before the name of a recipient, in a target."""

AppendActions = Callable[[Sequence[Timer]], Awaitable[tuple[list[str], list[str]]]]
"""See `engine.store.shard_feature.StoreActions`."""


class StepDeliveries:
    """The steps of one edge.

    Args:
        append: stores the actions of a look-up.
        wall_ms: milliseconds since the epoch.
    """

    def __init__(
        self,
        config: Config,
        addresses: AddressStore,
        append: AppendActions,
        push: PushChannel,
        email: EmailChannel,
        wall_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._addresses = addresses
        self._append = append
        self._push = push
        self._email = email
        self._wall_ms = wall_ms
        self._recipients = apprise_recipients(config.apprise_recipients)

    async def call(self, target: Target, action: QueuedAction) -> None:
        """Carry out an action whose target is a channel. Raises ActionFailed, NobodyToReach."""
        assert isinstance(target, ChannelTarget), "it is registered for channels"
        if action.ttl_ms and self._wall_ms() >= action.due_ms + action.ttl_ms:
            raise NobodyToReach("expired: it waited for its channel for longer than the message lives")
        if target.host.startswith(TO):
            await self._to_recipient(target.host.removeprefix(TO), action)
            return
        try:
            found = await self._addresses.read(mailbox_key(action.tenant, action.user))
            await self._to_user(target, action, found)
        except StorageUnavailable as error:
            raise ActionFailed(str(error)) from None

    async def _to_recipient(self, name: str, action: QueuedAction) -> None:
        if name not in self._recipients:
            raise ActionFailed(f"apprise_recipients has no {name}", final=True)
        await apprise_channel.send(action, self._recipients[name])

    async def _to_user(self, target: ChannelTarget, action: QueuedAction, found: Addresses) -> None:
        if target.channel == "email":
            if not found.email:
                raise NobodyToReach("no_address: email")
            await self._mail(target, action, found.email)
        elif target.channel not in ("apprise", "push"):
            raise ActionFailed(f"there is no channel {target.channel}", final=True)
        elif not target.host:
            lanes = self._apprise_lanes(found) if target.channel == "apprise" else self._push_lanes(found)
            if not lanes:
                raise NobodyToReach(f"no_address: {target.channel}")
            await self._count(target, action)
            _, full = await self._append([_timer_of(target, action, lane, name) for name, lane in lanes.items()])
            if full:
                raise ActionFailed("too many actions wait for a service")
        elif target.channel == "apprise":
            url = next((url for url in found.apprise if action.key.endswith(f".{digest_of(url)}")), None)
            if url is None or not apprise_channel.is_allowed(url, self._config.apprise_urls):
                raise NobodyToReach("no_address: apprise")
            await apprise_channel.send(action, url)
        else:
            browser = next((one for one in found.push if action.key.endswith(f".{one.id}")), None)
            if browser is None:
                raise NobodyToReach("no_address: push")
            if not await self._push.send(action, browser):
                await self._addresses.change(mailbox_key(action.tenant, action.user), lambda kept: kept.without_browser(browser.id))
                raise NobodyToReach("no_address: push")

    async def _mail(self, target: ChannelTarget, action: QueuedAction, address: str) -> None:
        counted = await self._count(target, action)
        try:
            await self._email.send(action, address)
        except ActionFailed as error:
            # One that was counted before may have been sent: an earlier try did not end, or was unclear.
            if action.cap is not None and counted is CapCount.NOW and not error.unclear:
                await self._addresses.uncount_told(mailbox_key(action.tenant, action.user), target.channel, action.cap, action.key)
            raise

    async def _count(self, target: ChannelTarget, action: QueuedAction) -> CapCount:
        """Raises NobodyToReach: the user was told enough by the channel lately."""
        cap = action.cap
        if cap is None:
            return CapCount.NO
        counted = await self._addresses.count_told(mailbox_key(action.tenant, action.user), target.channel, cap, action.key)
        if counted is not CapCount.NO:
            return counted
        raise NobodyToReach(f"cap: {target.channel}: the user got {cap.most} of {cap.category} in {spoken(cap.span_ms)}")

    def _apprise_lanes(self, found: Addresses) -> dict[str, str]:
        """The lane of each URL whose service is still allowed, by its digest."""
        allowed = self._config.apprise_urls
        return {digest_of(url): apprise_channel.lane_of(url) for url in found.apprise if apprise_channel.is_allowed(url, allowed)}

    def _push_lanes(self, found: Addresses) -> dict[str, str]:
        """The lane of each browser whose push service is still allowed, by its id."""
        lanes = {one.id: push_channel.lane_of(one, self._config) for one in found.push}
        return {id: lane for id, lane in lanes.items() if lane}


def digest_of(url: str) -> str:
    """What names a URL in a key."""
    return blake2b(url.encode(), digest_size=8).hexdigest()


def _timer_of(target: ChannelTarget, action: QueuedAction, lane: str, name: str) -> Timer:
    """A timer that fired, so to say: the action of one address. `name`: of the address, in the key."""
    mailbox, key = mailbox_key(action.tenant, action.user), f"{action.key}.{name}"
    envelope = Envelope(action.id, b"", action.priority, True, action.body[1:-1])
    to = str(msgspec.structs.replace(target, host=lane))
    return Timer(timer_id(mailbox, key), mailbox, action.due_ms, action.due_ms, action.ttl_ms, envelope, None, Action(to, key))
