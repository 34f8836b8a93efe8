"""Blocking clients for programs without an event loop: each runs the asyncio client on a loop in its own thread.

Calls block the calling thread. Several threads may share one publisher.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from engine.client.client import Client
from engine.client.credentials import Token
from engine.client.digest import Digest
from engine.client.event_requests import EventOutcome, ScheduledMessage
from engine.client.frames import Message
from engine.client.message_members import EventMembers, MessageMembers, Seconds
from engine.client.protocol import Transport
from engine.client.publish_results import Result
from engine.client.publisher import Publisher
from engine.client.signal_requests import CountedSignals
from engine.client.user_inbox import InboxPage, Mark, Marked
from engine.client.user_preferences import UserPreferences

T = TypeVar("T")


class _Loop:
    """An event loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run `work` and return its result. When the wait is interrupted or times out, `work` is cancelled.

        Raises:
            TimeoutError: not done within `timeout_s`.
        """
        if self.closed:
            work.close()
            raise RuntimeError("this client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Any, *args: Any) -> None:
        """Call it in the loop's thread, some time later."""
        self._loop.call_soon_threadsafe(function, *args)

    def call_and_wait(self, function: Any, *args: Any) -> None:
        """Call it in the loop's thread, and raise what it raises."""
        if threading.current_thread() is self._thread:
            function(*args)
            return

        async def calling() -> None:
            function(*args)

        self.run(calling())

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def close(self) -> None:
        if not self.closed:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class SyncClient:
    """Blocking version of `engine.client.Client`.

        with SyncClient("http://127.0.0.1:8000", token) as client:
            for message in client:
                handle(message.type, message.data)

    Takes the same arguments and raises the same errors. `message.ack()` and `message.nack(reason)` may be called from any
    thread. Callbacks (`token`, `on_cursor`, `on_event`) run in the client's thread and must not block.
    """

    def __init__(self, url: str, token: Token, **options: Any) -> None:
        self._url, self._token, self._options = url, token, options
        self._loop: _Loop | None = None
        self._client: Client | None = None

    @property
    def cursor(self) -> str | None:
        """`event_id` up to which everything is settled."""
        return self._client.cursor if self._client is not None else self._options.get("last_event_id")

    @property
    def transport(self) -> Transport | None:
        """The one in use, see `Client.transport`."""
        return self._client.transport if self._client is not None else None

    def __enter__(self) -> Self:
        if self._client is not None:
            raise RuntimeError("a SyncClient can be entered once; create another one")
        self._client = Client(self._url, self._token, **self._options)
        self._loop = _Loop("engine-client")
        try:
            self._loop.run(self._client.__aenter__())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        loop, client = self._entered()
        try:
            loop.run(client.__aexit__(kind, error, trace))
        finally:
            loop.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        try:
            return self.receive()
        except StopAsyncIteration:
            raise StopIteration from None

    def receive(self, timeout_s: float | None = None) -> Message:
        """The next message; the previous one is acknowledged unless `auto_ack` is false.

        Raises:
            TimeoutError: there was none within `timeout_s`; no message is lost.
        """
        loop, client = self._entered()
        message = loop.run(client.__anext__(), timeout_s)
        message.__dict__["owner"] = self
        return message

    def digest(self, *, since: int = 0, limit: int = 20) -> Digest:
        """What the user has missed, see `Client.digest`."""
        loop, client = self._entered()
        return loop.run(client.digest(since=since, limit=limit))

    def inbox(self, **query: Any) -> InboxPage:
        """A page of the user's inbox, see `Client.inbox`."""
        loop, client = self._entered()
        return loop.run(client.inbox(**query))

    def mark(self, mark: Mark, **chosen: Any) -> Marked:
        """Mark messages of the inbox, see `Client.mark`."""
        loop, client = self._entered()
        return loop.run(client.mark(mark, **chosen))

    def preferences(self) -> UserPreferences:
        """What the user has chosen, see `Client.preferences`."""
        loop, client = self._entered()
        return loop.run(client.preferences())

    def set_preferences(self, **changes: Any) -> UserPreferences:
        """Change what is named, see `Client.set_preferences`."""
        loop, client = self._entered()
        return loop.run(client.set_preferences(**changes))

    def subscribe(self, *topics: str) -> list[str]:
        """Become a subscriber of topics, see `Client.subscribe`."""
        loop, client = self._entered()
        return loop.run(client.subscribe(*topics))

    def unsubscribe(self, *topics: str) -> list[str]:
        """Be no subscriber any more, see `Client.unsubscribe`."""
        loop, client = self._entered()
        return loop.run(client.unsubscribe(*topics))

    def settle(self, message: Message, reason: str | None) -> None:
        """Acknowledge a message, or reject it with a reason; `message.ack()` and `message.nack()` call it, and raise what it raises."""
        loop, client = self._entered()
        if reason is None:
            loop.call(client.settle, message, None)
        else:
            loop.call_and_wait(client.settle, message, reason)

    def _entered(self) -> tuple[_Loop, Client]:
        if self._loop is None or self._client is None:
            raise RuntimeError("enter the client first: `with SyncClient(...) as client:`")
        return self._loop, self._client


class SyncPublisher:
    """Blocking version of `engine.client.Publisher`.

        with SyncPublisher("http://127.0.0.1:8000", token) as publisher:
            publisher.publish(user="u1", type="order.paid", data={"order": 17})

    Takes the same arguments, has the same methods and raises the same errors.
    """

    def __init__(self, url: str, token: Token, **options: Any) -> None:
        self._begin(Publisher(url, token, **options))

    def _begin(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._loop = _Loop("engine-publisher")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(flush=error is None)

    def publish(self, *, type: str, user: str | None = None, data: Any = None, **members: Unpack[MessageMembers]) -> Result:
        """As `Publisher.publish`."""
        return self._loop.run(self._publisher.publish(type=type, user=user, data=data, **members))

    def publish_many(self, items: Iterable[Mapping[str, Any]]) -> list[Result]:
        """As `Publisher.publish_many`."""
        return self._loop.run(self._publisher.publish_many(list(items)))

    def post(self, *, type: str, user: str | None = None, data: Any = None, **members: Unpack[MessageMembers]) -> str:
        """As `Publisher.post`."""
        return self._loop.run(self._publisher.post(type=type, user=user, data=data, **members))

    def event(self, *, type: str, user: str, data: Any = None, **members: Unpack[EventMembers]) -> EventOutcome:
        """As `Publisher.event`."""
        return self._loop.run(self._publisher.event(type=type, user=user, data=data, **members))

    def scheduled(self, scheduled_id: str) -> ScheduledMessage | None:
        """As `Publisher.scheduled`."""
        return self._loop.run(self._publisher.scheduled(scheduled_id))

    def reschedule(self, scheduled_id: str, *, at: int | str | datetime | None = None, delay: Seconds | None = None) -> bool:
        """As `Publisher.reschedule`."""
        return self._loop.run(self._publisher.reschedule(scheduled_id, at=at, delay=delay))

    def cancel(self, scheduled_id: str) -> bool:
        """As `Publisher.cancel`."""
        return self._loop.run(self._publisher.cancel(scheduled_id))

    def scheduled_for(self, user: str, *, collapse: str | None = None) -> list[ScheduledMessage]:
        """As `Publisher.scheduled_for`."""
        return self._loop.run(self._publisher.scheduled_for(user, collapse=collapse))

    def cancel_for(self, user: str, *, collapse: str | None = None) -> int:
        """As `Publisher.cancel_for`."""
        return self._loop.run(self._publisher.cancel_for(user, collapse=collapse))

    def count_signals(self, amounts: Mapping[str, int]) -> CountedSignals:
        """As `Publisher.count_signals`."""
        return self._loop.run(self._publisher.count_signals(amounts))

    def signal_sums(self, *names: str) -> dict[str, int]:
        """As `Publisher.signal_sums`."""
        return self._loop.run(self._publisher.signal_sums(*names))

    def explain(self, *, type: str, user: str | None = None, data: Any = None, **members: Unpack[MessageMembers]) -> list[dict[str, Any]]:
        """As `Publisher.explain`."""
        return self._loop.run(self._publisher.explain(type=type, user=user, data=data, **members))

    def profile(self, user: str) -> dict[str, Any]:
        """As `Publisher.profile`."""
        return self._loop.run(self._publisher.profile(user))

    def set_profile(self, user: str, profile: Mapping[str, Any] | None) -> dict[str, Any]:
        """As `Publisher.set_profile`."""
        return self._loop.run(self._publisher.set_profile(user, profile))

    def preferences(self, user: str) -> UserPreferences:
        """As `Publisher.preferences`."""
        return self._loop.run(self._publisher.preferences(user))

    def set_preferences(self, user: str, **changes: Any) -> UserPreferences:
        """As `Publisher.set_preferences`."""
        return self._loop.run(self._publisher.set_preferences(user, **changes))

    def unsubscribe_links(self, category: str, users: Iterable[str]) -> dict[str, str]:
        """As `Publisher.unsubscribe_links`."""
        return self._loop.run(self._publisher.unsubscribe_links(category, users))

    def erase_user(self, user: str) -> None:
        """As `Publisher.erase_user`."""
        self._loop.run(self._publisher.erase_user(user))

    def timeline(self, user: str, id: str) -> dict[str, Any] | None:
        """As `Publisher.timeline`."""
        return self._loop.run(self._publisher.timeline(user, id))

    def flush(self) -> None:
        """As `Publisher.flush`."""
        self._loop.run(self._publisher.flush())

    def close(self, *, flush: bool = True) -> None:
        """As `Publisher.close`."""
        if self._loop.closed:
            return
        try:
            self._loop.run(self._publisher.close(flush=flush))
        finally:
            self._loop.close()
