"""Blocking clients for programs without an event loop: each runs the asyncio client on a loop in its own thread.

Calls block the calling thread. Several threads may share one publisher.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from functools import wraps
from inspect import signature
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from engine.client.client import Client
from engine.client.credentials import Token
from engine.client.frames import Message
from engine.client.growing_messages import GrowingMessage
from engine.client.protocol import Transport
from engine.client.publish_results import Result
from engine.client.publisher import Publisher

P = ParamSpec("P")
T = TypeVar("T")

_CLOSED: Final = "this client is closed"
_OWN_THREAD: Final = "a callback must not call what waits for its own client: both are in the client's thread"


def arguments_of(method: Callable[Concatenate[Any, P], Any]) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Declares that a function passes its arguments to another one: to type checkers, and to `help()`."""

    def declared(own: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        result = signature(own).return_annotation
        wraps(method)(own)
        own.__signature__ = signature(method).replace(return_annotation=result)  # type: ignore[attr-defined]
        return own

    return declared


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], *, item: bool = False) -> Callable[Concatenate[Any, P], T]:
    """The blocking version of an awaited method. It takes the same, says the same in `help()`, and returns what is awaited.

    Args:
        method: of the asyncio client that `_entered` returns beside its loop.
        item: its arguments are a message or an event, which `_prepared` completes in the thread of the caller.
    """

    @wraps(method)
    def call(self: Any, /, *args: P.args, **members: P.kwargs) -> T:
        loop, client = self._entered()
        prepared: Any = self._prepared(members) if item else members
        result: T = loop.run(method(client, *args, **prepared))
        return result

    return call


async def _within(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    async with asyncio.timeout(timeout_s):
        return await work


async def _cancel_others() -> None:
    """End the work of threads that still wait for it: a loop that stops would leave them waiting for ever."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class _Loop:
    """An event loop in a daemon thread. Both are made with the first work, in the process that has it: neither survives a fork."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changing = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = 0
        self.closed = False

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run `work` and return its result. When the wait is interrupted or times out, or another thread closes it, `work` is cancelled.

        The time is kept on the loop, where work is either done or cancelled. A thread that stopped waiting by itself could leave behind
        what was done at that moment: a message would be taken, given to nobody, and acknowledged by the next call.

        Raises:
            TimeoutError: not done within `timeout_s`.
            RuntimeError: it is closed, or had work before the process was forked, or this is its thread.
        """
        try:
            self._check_thread()
            with self._changing:  # work that begins is known to `close`
                loop = self._running()
                future = asyncio.run_coroutine_threadsafe(work if timeout_s is None else _within(work, timeout_s), loop)
        except RuntimeError:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError(_CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Any, *args: Any) -> None:
        """Call it in the loop's thread, some time later."""
        with self._changing:
            self._running().call_soon_threadsafe(function, *args)

    def close(self) -> None:
        self._check_thread()
        with self._changing:
            self.closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None and self._process == os.getpid():
            asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError(_OWN_THREAD)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self.closed:
            raise RuntimeError(_CLOSED)
        if self._loop is None:
            self._loop, self._process = asyncio.new_event_loop(), os.getpid()
            self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
            self._thread.start()
        elif self._process != os.getpid():
            raise RuntimeError("this client was used before the process forked: make one in each process, or use it only after the fork")
        return self._loop


class SyncClient:
    """Blocking version of `engine.client.Client`.

        with SyncClient("http://127.0.0.1:8000", token) as client:
            for message in client:
                handle(message.type, message.data)

    Takes the same arguments and raises the same errors. `message.ack()` and `message.nack(reason)` may be called from any
    thread. Callbacks (`token`, `on_cursor`, `on_event`) run in the client's thread and must not block.
    """

    @arguments_of(Client.__init__)
    def __init__(self, url: str, token: Token, **options: Any) -> None:
        self._url, self._token, self._options = url, token, options
        self._loop: _Loop | None = None
        self._client: Client | None = None

    @property
    def cursor(self) -> str | None:
        """`event_id` up to which everything is settled; pass it as `last_event_id` to resume."""
        return self._client.cursor if self._client is not None else self._options.get("last_event_id")

    @property
    def transport(self) -> Transport | None:
        """The one in use; None while there is no connection."""
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
        """Wait for the next message. The previous one is acknowledged, unless `auto_ack` is false.

        Args:
            timeout_s: how long to wait; None waits without end.

        Returns:
            The message.

        Raises:
            TimeoutError: there was none within `timeout_s`; no message is lost.
            Unauthorized, Forbidden, TooManyConnections, Refused: the engine ended the session.
        """
        loop, client = self._entered()
        message = loop.run(client.__anext__(), timeout_s)
        message.__dict__["owner"] = self
        return message

    digest = blocking(Client.digest)
    inbox = blocking(Client.inbox)
    mark = blocking(Client.mark)
    answer = blocking(Client.answer)
    preferences = blocking(Client.preferences)
    set_preferences = blocking(Client.set_preferences)
    grown = blocking(Client.grown)
    subscribe = blocking(Client.subscribe)
    unsubscribe = blocking(Client.unsubscribe)

    @arguments_of(Client.settle)
    def settle(self, message: Message, reason: str | None) -> None:
        loop, client = self._entered()
        loop.call(client.settle, message, reason)

    def _entered(self) -> tuple[_Loop, Client]:
        if self._loop is None or self._client is None:
            raise RuntimeError("enter the client first: `with SyncClient(...) as client:`")
        return self._loop, self._client


class SyncGrowingMessage:
    """Blocking version of `engine.client.GrowingMessage`; `SyncPublisher.stream` makes it.

    with publisher.stream(user="ann", type="llm.answer") as message:
        for token in tokens:
            message.append(token)
    """

    def __init__(self, message: GrowingMessage, loop: _Loop) -> None:
        self._message = message
        self._loop = loop

    @property
    def id(self) -> str:
        """Of the message."""
        return self._message.id

    @property
    def ended(self) -> bool:
        """It has ended, also before it began here: what is appended is dropped."""
        return self._message.ended

    @property
    def idle(self) -> bool:
        """The engine has ended it because its publisher was silent, or another run of the writer has."""
        return self._message.idle

    @property
    def end_type(self) -> str:
        """The type with which it had ended before it began here; "" where that end named none."""
        return self._message.end_type

    @property
    def seq(self) -> int:
        """Its number in the user's mailbox, after the end; 0 when it ended before."""
        return self._message.seq

    def __enter__(self) -> Self:
        self._loop.run(self._message.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.run(self._message.__aexit__(kind, error, trace))

    append = blocking(GrowingMessage.append)
    progress = blocking(GrowingMessage.progress)
    end = blocking(GrowingMessage.end)

    def _entered(self) -> tuple[_Loop, GrowingMessage]:
        return self._loop, self._message


class SyncPublisher:
    """Blocking version of `engine.client.Publisher`.

        with SyncPublisher("http://127.0.0.1:8000", token) as publisher:
            publisher.publish(user="u1", type="order.paid", data={"order": 17})

    Takes the same arguments, has the same methods and raises the same errors.
    """

    @arguments_of(Publisher.__init__)
    def __init__(self, url: str, token: Token, **options: Any) -> None:
        self._begin(Publisher(url, token, **options))

    def _begin(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._loop = _Loop("engine-publisher")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(flush=error is None)

    publish = blocking(Publisher.publish, item=True)

    @arguments_of(Publisher.publish_many)
    def publish_many(self, items: Iterable[Mapping[str, Any]]) -> list[Result]:
        return self._loop.run(self._publisher.publish_many([self._prepared(item) for item in items]))

    ask = blocking(Publisher.ask, item=True)
    question = blocking(Publisher.question)
    withdraw = blocking(Publisher.withdraw)

    @arguments_of(Publisher.stream)
    def stream(self, **members: Any) -> SyncGrowingMessage:
        return SyncGrowingMessage(self._publisher.stream(**self._prepared(members)), self._loop)

    post = blocking(Publisher.post, item=True)
    event = blocking(Publisher.event, item=True)
    scheduled = blocking(Publisher.scheduled)
    reschedule = blocking(Publisher.reschedule)
    cancel = blocking(Publisher.cancel)
    scheduled_for = blocking(Publisher.scheduled_for)
    cancel_for = blocking(Publisher.cancel_for)
    count_signals = blocking(Publisher.count_signals)
    signal_sums = blocking(Publisher.signal_sums)
    explain = blocking(Publisher.explain, item=True)
    profile = blocking(Publisher.profile)
    set_profile = blocking(Publisher.set_profile)
    preferences = blocking(Publisher.preferences)
    set_preferences = blocking(Publisher.set_preferences)
    unsubscribe_links = blocking(Publisher.unsubscribe_links)
    erase_user = blocking(Publisher.erase_user)
    inbox_of = blocking(Publisher.inbox_of)
    timeline = blocking(Publisher.timeline)
    flush = blocking(Publisher.flush)

    @arguments_of(Publisher.close)
    def close(self, *, flush: bool = True) -> None:
        if self._loop.closed:
            return
        try:
            self._loop.run(self._publisher.close(flush=flush))
        finally:
            self._loop.close()

    def _entered(self) -> tuple[_Loop, Publisher]:
        return self._loop, self._publisher

    def _prepared(self, members: Mapping[str, Any]) -> Mapping[str, Any]:
        """The members of a message or an event, with what must be made in the thread of the caller."""
        return members
