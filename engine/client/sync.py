"""Blocking clients for programs without an event loop: each runs the asyncio client on a loop in its own thread.

Calls block the calling thread. Several threads may share one publisher.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from engine.client.client import Client
from engine.client.credentials import Token
from engine.client.digest import Digest
from engine.client.event_requests import EventOutcome, ScheduledMessage
from engine.client.frames import Message
from engine.client.growing_messages import GrowingMessage, GrownText
from engine.client.message_members import EventMembers, MessageMembers, Seconds
from engine.client.protocol import Transport
from engine.client.publish_results import Result
from engine.client.publisher import Publisher
from engine.client.question_requests import AskedQuestion, QuestionAnswer
from engine.client.signal_requests import CountedSignals
from engine.client.user_inbox import InboxPage, Mark, Marked
from engine.client.user_preferences import PreferenceChanges, UserPreferences

P = ParamSpec("P")
T = TypeVar("T")


def arguments_of(constructor: Callable[Concatenate[Any, P], None]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Declares that a constructor passes its arguments to another one: to type checkers, and to `help()`."""

    def declared(own: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        return wraps(constructor)(own)

    return declared


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
        """Run `work` and return its result. When the wait is interrupted or times out, `work` is cancelled.

        Raises:
            TimeoutError: not done within `timeout_s`.
            RuntimeError: it is closed, or had work before the process was forked.
        """
        try:
            loop = self._running()
        except RuntimeError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Any, *args: Any) -> None:
        """Call it in the loop's thread, some time later."""
        self._running().call_soon_threadsafe(function, *args)

    def call_and_wait(self, function: Any, *args: Any) -> None:
        """Call it in the loop's thread, and raise what it raises."""
        if threading.current_thread() is self._thread:
            function(*args)
            return

        async def calling() -> None:
            function(*args)

        self.run(calling())

    def close(self) -> None:
        with self._changing:
            self.closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None and self._process == os.getpid():
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._changing:
            if self.closed:
                raise RuntimeError("this client is closed")
            if self._loop is None:
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            elif self._process != os.getpid():
                raise RuntimeError(
                    "this client was used before the process forked: make one in each process, or use it only after the fork"
                )
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

    def digest(self, *, since: int = 0, limit: int = 20) -> Digest:
        """Tell what the user has missed, in a few lines. Acknowledges nothing. The client need not be entered.

        Args:
            since: ms since the epoch; what came from then on counts though another device has acknowledged it, unless it was read. 0: only
                what is pending.
            limit: lines at most.

        Returns:
            The lines, the most important first.

        Raises:
            Refused: `since` or `limit` is not valid.
            Unreachable: no engine answered within `open_timeout_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        loop, client = self._entered()
        return loop.run(client.digest(since=since, limit=limit))

    def inbox(
        self,
        *,
        before: int | None = None,
        limit: int | None = None,
        unread: bool = False,
        archived: bool = False,
        type: str | None = None,
        text: str | None = None,
    ) -> InboxPage:
        """Read a page of the user's inbox, the newest first. Acknowledges nothing. The client need not be entered.

        Args:
            before: `before` of the previous page; None for the first one.
            limit: 50 by default, 100 at most.
            unread: only messages that are unread.
            archived: only messages that are archived, which are not among the others.
            type: a type, or `post.*`.
            text: occurs in a value of the message, in any case.

        Returns:
            The messages, and the counts of the whole inbox.

        Raises:
            Refused: an argument is not valid, or the engine keeps no inboxes.
            Unreachable: no engine answered within `open_timeout_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        loop, client = self._entered()
        return loop.run(client.inbox(before=before, limit=limit, unread=unread, archived=archived, type=type, text=text))

    def mark(self, mark: Mark, *, ids: Sequence[str] | None = None, upto: int | None = None, all: bool = False) -> Marked:
        """Mark messages of the inbox, chosen by exactly one of `ids`, `upto` and `all`. Durable on return, idempotent.

        Args:
            mark: `read` and `archive` acknowledge what is pending, on all devices of the user; what is read is seen.
            ids: of the messages.
            upto: all up to this `seq`.
            all: all messages.

        Returns:
            The counts after it, and the ids that the inbox does not have.

        Raises:
            Refused: not exactly one was given, or it is not valid, or the engine keeps no inboxes.
            Unreachable: no engine answered within `open_timeout_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        loop, client = self._entered()
        return loop.run(client.mark(mark, ids=ids, upto=upto, all=all))

    def answer(self, id: str, answer: str | None = None, *, text: str = "", topic: str = "") -> QuestionAnswer:
        """Answer a question of the user. Durable on return, and idempotent. The client need not be entered.

        It goes by the open WebSocket, else by a request.

        Args:
            id: of the message that asks.
            answer: id of one of its `answers`.
            text: in the user's words, where the question takes a text.
            topic: that `ask` names, where the members of a topic are asked.

        Returns:
            The answer as it is stored.

        Raises:
            Refused: it has another answer, which the error tells (status 409), or it does not take this one.
            Unreachable: no engine answered within `open_timeout_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        loop, client = self._entered()
        return loop.run(client.answer(id, answer, text=text, topic=topic))

    def preferences(self) -> UserPreferences:
        """Read what the user has chosen, and may choose. The client need not be entered.

        Returns:
            The choices, and the categories of the application.

        Raises:
            Unreachable: no engine answered within `open_timeout_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        loop, client = self._entered()
        return loop.run(client.preferences())

    def set_preferences(self, **changes: Unpack[PreferenceChanges]) -> UserPreferences:
        """Change what is named, and leave the rest. Changes of several devices at once are all applied. Durable on return.

        Args:
            changes: `categories={"news": "off"}`, `types={"post.*": None}`, `zone="Asia/Tokyo"`; None removes a choice, or a whole member.

        Returns:
            The preferences as they are now.

        Raises:
            Refused: a change is not valid, or the application does not leave it to users.
            Unreachable: no engine answered within `open_timeout_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        loop, client = self._entered()
        return loop.run(client.set_preferences(**changes))

    def grown(self, id: str, *, generation: int = 0, offset: int = 0, wait_s: float = 0.0) -> GrownText:
        """Read a message that grows, or grew within the last hour. The client need not be entered.

        `on_event` gets a `Part` for each piece of text. This is for what came before, or was lost.

        Args:
            id: of the message.
            generation: of the text that is there; of another one all is returned. 0 for none.
            offset: bytes of the text, in UTF-8, that are there.
            wait_s: how long to wait for more.

        Returns:
            The text from `offset` on, or from the beginning of its character.

        Raises:
            Refused: nothing grows under this id (status 404).
            Unreachable: no engine answered within `open_timeout_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        loop, client = self._entered()
        return loop.run(client.grown(id, generation=generation, offset=offset, wait_s=wait_s))

    def subscribe(self, *topics: str) -> list[str]:
        """Subscribe the user to topics, until `unsubscribe`. Durable on return.

        Args:
            topics: their names; without any, nothing changes.

        Returns:
            All topics of the user.

        Raises:
            Refused: a topic is not allowed, or there are too many; those before it are changed.
            Unreachable: no engine answered within `open_timeout_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        loop, client = self._entered()
        return loop.run(client.subscribe(*topics))

    def unsubscribe(self, *topics: str) -> list[str]:
        """End subscriptions of the user. Durable on return.

        Args:
            topics: their names; without any, nothing changes.

        Returns:
            The topics that are left.

        Raises:
            Refused: a topic is not allowed; those before it are changed.
            Unreachable: no engine answered within `open_timeout_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        loop, client = self._entered()
        return loop.run(client.unsubscribe(*topics))

    def settle(self, message: Message, reason: str | None) -> None:
        """Acknowledge a message, or reject it. `message.ack()` and `message.nack()` call it.

        Args:
            message: of this client.
            reason: why it is rejected; None acknowledges it.
        """
        loop, client = self._entered()
        if reason is None:
            loop.call(client.settle, message, None)
        else:
            loop.call_and_wait(client.settle, message, reason)

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

    def __init__(self, message: GrowingMessage, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._message = message
        self._run = run

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
        self._run(self._message.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._message.__aexit__(kind, error, trace))

    def append(self, value: Any) -> None:
        """Add text; to a list, any JSON value. Returns at once, unless the engine takes no more for now.

        Raises:
            Refused: the text is too long, another writer has begun the message anew, or it has ended.
            Unreachable: no engine answered within `retry_for_s`.
            TypeError: it is no text, and the message is no list.
        """
        self._run(self._message.append(value))

    def progress(self, value: float | None = None, *, text: str = "", step: str = "") -> None:
        """Say how far the work is. Only the last one counts.

        Args:
            value: 0 to 1; None: not known.
            text: a line for people, "12 of 30 files".
            step: what it is at, "download".

        Raises:
            Refused: another writer has begun the message anew, or it has ended.
            Unreachable: no engine answered within `retry_for_s`.
        """
        self._run(self._message.progress(value, text=text, step=step))

    def end(self, *, type: str | None = None, data: Mapping[str, Any] | None = None) -> None:
        """Publish the message with the whole text; durable on return. Leaving the block calls it.

        Args:
            type: in place of the one with which it began.
            data: members that are added to its data.

        Raises:
            Refused: another writer has begun the message anew or has written more, its id belongs to another message, or the type or the
                data is not valid.
            Unreachable: no engine answered within `retry_for_s`.
        """
        self._run(self._message.end(type=type, data=data))


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

    def publish(self, *, type: str, user: str | None = None, data: Any = None, **members: Unpack[MessageMembers]) -> Result:
        """Publish one message to a user, a topic or everyone. Returns when it is on durable storage.

        Args:
            type: dotted event type, `order.paid`.
            user: whom it is for. Without one, `members` has `topic` or `broadcast=True`.
            data: the payload, any JSON.
            members: of `engine.client.message_members.MessageMembers`, such as `id`, `priority`, `delay`, `at`, `ttl` and `collapse`.

        Returns:
            The result: its `status`, and `seq` or `scheduled_id`.

        Raises:
            PublishError: the engine rejected it: a member is not valid, or its `id` was used with another payload.
            Unreachable: no engine accepted it within `retry_for_s`. It may be stored; publishing it again under the same `id` is safe.
            Unauthorized, Forbidden: the token was rejected.
            ValueError: a `datetime` has no time zone, or `users` was given, which has several results.
        """
        return self._loop.run(self._publisher.publish(type=type, user=user, data=data, **self._prepared(members)))

    def publish_many(self, items: Iterable[Mapping[str, Any]]) -> list[Result]:
        """Publish messages. Returns when all are on durable storage.

        A request is all or nothing. More items than `batch_max` take several requests, one after the other; the first one rejected ends
        the call. Items with their own `id` may be published again.

        Args:
            items: mappings with the arguments of `publish`, and `users` for several users. `NewMessage` is their type.

        Returns:
            The results in the order of the items, one per user for `users`.

        Raises:
            PublishError: the engine rejected items; `results` has what was accepted before them.
            Unreachable: no engine accepted a request within `retry_for_s`. Publishing the items again under the same ids is safe.
            Unauthorized, Forbidden: the token was rejected.
            ValueError: a `datetime` has no time zone.
        """
        return self._loop.run(self._publisher.publish_many([self._prepared(item) for item in items]))

    def ask(self, *, type: str, user: str | None = None, data: Any = None, **members: Unpack[MessageMembers]) -> QuestionAnswer:
        """Ask a user, or the members of a topic, a question, and wait for the answer.

        Repeated under the same `id`, it asks nothing twice and returns the same answer. So a program that was interrupted calls it again.

        Args:
            type: dotted event type, `deploy.ask`.
            user: whom to ask. Without one, `members` has `topic`.
            data: the payload, any JSON.
            members: of `engine.client.message_members.MessageMembers`: `ask`, which is needed, and others.

        Returns:
            The answer of the user, or the default when the deadline is over; with the reason `withdrawn`, that somebody called `withdraw`.

        Raises:
            PublishError: the engine rejected it: a member is not valid, or its `id` was used with another payload.
            Unreachable: no engine answered within `retry_for_s`. Ask again under the same `id`.
            Unauthorized, Forbidden: the token was rejected.
            ValueError: `ask` is missing, or whom to ask, or a `datetime` has no time zone.
        """
        return self._loop.run(self._publisher.ask(type=type, user=user, data=data, **self._prepared(members)))

    def question(self, id: str, *, user: str | None = None, topic: str | None = None, wait_s: float = 0.0) -> AskedQuestion:
        """Look at a question, and at its answer.

        Args:
            id: of the message that asked it.
            user: who was asked; or `topic`.
            topic: whose members were asked.
            wait_s: how long to wait for an answer, at most as long as one request may take.

        Returns:
            The question; its `answer` is None while there is none.

        Raises:
            Refused: there is no such question.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
            ValueError: not exactly one of `user` and `topic` was given.
        """
        return self._loop.run(self._publisher.question(id, user=user, topic=topic, wait_s=wait_s))

    def withdraw(self, id: str, *, user: str | None = None, topic: str | None = None) -> None:
        """End a question without an answer: devices show that it was withdrawn. Durable on return, and idempotent.

        Args:
            id: of the message that asked it.
            user: who was asked; or `topic`.
            topic: whose members were asked.

        Raises:
            Refused: it has an answer, which the error tells (status 409), or there is no such question.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
            ValueError: not exactly one of `user` and `topic` was given.
        """
        self._loop.run(self._publisher.withdraw(id, user=user, topic=topic))

    def stream(
        self,
        *,
        user: str,
        type: str,
        data: Any = None,
        list: bool = False,
        writer: str = "",
        idle: Mapping[str, Any] | None = None,
        **members: Unpack[MessageMembers],
    ) -> SyncGrowingMessage:
        """Grow a message: devices see its text while it is appended, and at the end it is a message like any other.

        Enter what it returns. A stream under the `id` of a message that still grows begins that anew.

        Args:
            user: whom it is for.
            type: dotted event type, `llm.answer`.
            data: an object, to which the text is added as `text`, a list as `items`.
            list: values are appended, any JSON, in place of text.
            writer: name of this run, the same when it is executed again: it then goes on with the message. It must not be guessable, and
                must append the same text again. Without one another name is made, which begins the message anew.
            idle: `type`, and `data` to be added, of a message that the engine ends because its publisher fell silent.
            members: of `engine.client.message_members.MessageMembers`: `id`, `priority`, `actor`, `target`, `context`, `url`, `image`,
                `ttl` and `category`.

        Returns:
            The message, to be entered.

        Raises:
            Refused: on entering; a member is not valid, or as many messages grow as may.
            Unreachable: on entering; no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: on entering; the token was rejected.
            ValueError: a `datetime` has no time zone.
        """
        stream = self._publisher.stream(user=user, type=type, data=data, list=list, writer=writer, idle=idle, **self._prepared(members))
        return SyncGrowingMessage(stream, self._loop.run)

    def post(self, *, type: str, user: str | None = None, data: Any = None, **members: Unpack[MessageMembers]) -> str:
        """Put a message into the buffer, from which batches are sent; waits while `queue_max` are in it.

        Args:
            type: dotted event type, `order.paid`.
            user: whom it is for. Without one, `members` has `users`, `topic` or `broadcast=True`.
            data: the payload, any JSON.
            members: of `engine.client.message_members.MessageMembers`, such as `id`, `priority`, `delay`, `at`, `ttl` and `collapse`.

        Returns:
            The id of the message. `flush` and `close` report messages that the engine rejects.

        Raises:
            Unreachable, Unauthorized, Forbidden: sending stopped. The buffer is kept, and the next call tries again.
            ValueError: a `datetime` has no time zone.
        """
        return self._loop.run(self._publisher.post(type=type, user=user, data=data, **self._prepared(members)))

    def event(self, *, type: str, user: str, data: Any = None, **members: Unpack[EventMembers]) -> EventOutcome:
        """Hand an event to the rules. What they made of it is durable on return, but for results that are not `final`.

        Args:
            type: dotted event type, `cart.abandoned`.
            user: whose event it is.
            data: of the event, any JSON.
            members: `id`, `actor`, `target`, `context`, `ts`. A repeat under the same `id` changes nothing; one is made if there is none.

        Returns:
            The rules that matched, results of what was published, and ids of the timers that were made.

        Raises:
            Refused: a member is not valid, and nothing has happened.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
            ValueError: a `datetime` has no time zone.
        """
        return self._loop.run(self._publisher.event(type=type, user=user, data=data, **members))

    def scheduled(self, scheduled_id: str) -> ScheduledMessage | None:
        """Look up a scheduled message.

        Args:
            scheduled_id: of a `Result`, or of an `EventOutcome`.

        Returns:
            The message, or None when the id is unknown, was cancelled or has fired.

        Raises:
            Refused: the id is not valid.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        return self._loop.run(self._publisher.scheduled(scheduled_id))

    def reschedule(self, scheduled_id: str, *, at: int | str | datetime | None = None, delay: Seconds | None = None) -> bool:
        """Move a scheduled message to another time, given by exactly one of `at` and `delay`.

        Args:
            scheduled_id: of a `Result`, or of an `EventOutcome`.
            at: RFC 3339 text, ms since the epoch, or a `datetime` with a time zone.
            delay: seconds from now, or a `timedelta`.

        Returns:
            False when it is too late, or nothing has this id.

        Raises:
            Refused: the time is not valid.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
            ValueError: a `datetime` has no time zone.
        """
        return self._loop.run(self._publisher.reschedule(scheduled_id, at=at, delay=delay))

    def cancel(self, scheduled_id: str) -> bool:
        """Cancel a scheduled message.

        Args:
            scheduled_id: of a `Result`, or of an `EventOutcome`.

        Returns:
            False when it is too late, or nothing has this id.

        Raises:
            Refused: the id is not valid.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        return self._loop.run(self._publisher.cancel(scheduled_id))

    def scheduled_for(self, user: str, *, collapse: str | None = None) -> list[ScheduledMessage]:
        """List what is scheduled for a user.

        Args:
            user: whose messages.
            collapse: a key; only messages with this one.

        Returns:
            The messages.

        Raises:
            Refused: an argument is not valid.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        return self._loop.run(self._publisher.scheduled_for(user, collapse=collapse))

    def cancel_for(self, user: str, *, collapse: str | None = None) -> int:
        """Cancel all that is scheduled for a user and has not fired.

        Args:
            user: whose messages.
            collapse: a key; only messages with this one.

        Returns:
            How many were cancelled. After a lost answer, only what the repeat cancelled.

        Raises:
            Refused: an argument is not valid.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        return self._loop.run(self._publisher.cancel_for(user, collapse=collapse))

    def count_signals(self, amounts: Mapping[str, int]) -> CountedSignals:
        """Add to sums, such as views. They are visible about a second later.

        A request is not repeated once it may have been counted: a broken connection can lose it, and never counts it twice.

        Args:
            amounts: by name, `{"post/9:views": 1}`.

        Returns:
            How many were counted, and how many were dropped because their name had no room.

        Raises:
            Refused: a name or an amount is not valid, and none was counted.
            Unreachable: not counted, or the connection broke before the answer.
            Unauthorized, Forbidden: the token was rejected.
        """
        return self._loop.run(self._publisher.count_signals(amounts))

    def signal_sums(self, *names: str) -> dict[str, int]:
        """Read sums of the tenant.

        Args:
            names: as given to `count_signals`.

        Returns:
            The sum of each name, 0 for one that was never counted.

        Raises:
            Refused: a name is not valid.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        return self._loop.run(self._publisher.signal_sums(*names))

    def explain(self, *, type: str, user: str | None = None, data: Any = None, **members: Unpack[MessageMembers]) -> list[dict[str, Any]]:
        """Tell what the engine would do with a message now, and why. Changes nothing.

        Args:
            type: dotted event type, `order.paid`.
            user: whom it is for. Without one, `members` has `users`, `topic` or `broadcast=True`.
            data: the payload, any JSON.
            members: of `engine.client.message_members.MessageMembers`, such as `id`, `priority`, `delay`, `at`, `ttl` and `collapse`.

        Returns:
            For each user, or the topic, `{"user", "decision", "reasons", ...}`.

        Raises:
            Refused: a member is not valid.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
            ValueError: a `datetime` has no time zone.
        """
        return self._loop.run(self._publisher.explain(type=type, user=user, data=data, **members))

    def profile(self, user: str) -> dict[str, Any]:
        """Read the profile of a user.

        Args:
            user: whose profile.

        Returns:
            Time zone, quiet hours, mutes, digest and level, those that are set.

        Raises:
            Refused: the user's name is not valid.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        return self._loop.run(self._publisher.profile(user))

    def set_profile(self, user: str, profile: Mapping[str, Any] | None) -> dict[str, Any]:
        """Store the profile of a user in place of the present one. Durable on return.

        Args:
            user: whose profile.
            profile: `{"zone": "Europe/Berlin", "quiet": [{"from": "22:00", "to": "07:30"}]}`; None deletes it.

        Returns:
            The profile as it is stored.

        Raises:
            Refused: a member is not valid.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        return self._loop.run(self._publisher.set_profile(user, profile))

    def preferences(self, user: str) -> UserPreferences:
        """Read what a user has chosen, and may choose.

        Args:
            user: whose preferences.

        Returns:
            The choices, and the categories of the application.

        Raises:
            Refused: the user's name is not valid.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        return self._loop.run(self._publisher.preferences(user))

    def set_preferences(self, user: str, **changes: Unpack[PreferenceChanges]) -> UserPreferences:
        """Change what is named, and leave the rest. Durable on return. `set_profile` sets what users may not choose.

        Args:
            user: whose preferences.
            changes: `categories={"news": "off"}`, `types={"post.*": None}`, `zone="Asia/Tokyo"`; None removes a choice, or a whole member.

        Returns:
            The preferences as they are now.

        Raises:
            Refused: a change is not valid, or the application does not leave it to users.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        return self._loop.run(self._publisher.set_preferences(user, **changes))

    def unsubscribe_links(self, category: str, users: Iterable[str]) -> dict[str, str]:
        """Make links that turn off a category without login.

        In a mail: `List-Unsubscribe: <https://notify.example.com/v1/unsubscribe?token=...>` and
        `List-Unsubscribe-Post: List-Unsubscribe=One-Click` (RFC 8058).

        Args:
            category: that the links turn off.
            users: up to 1 000.

        Returns:
            For each user the path of a link. Put the engine's address before it.

        Raises:
            Refused: the category or a user is not valid.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        return self._loop.run(self._publisher.unsubscribe_links(category, users))

    def erase_user(self, user: str) -> None:
        """Erase a user everywhere; returns when nothing is left. Needs a token with the scope `admin`.

        Args:
            user: whom to erase.

        Raises:
            Refused: the user's name is not valid.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        self._loop.run(self._publisher.erase_user(user))

    def inbox_of(self, user: str, *, limit: int = 50, unread: bool = False) -> InboxPage:
        """Read the newest messages of a user's inbox. Acknowledges nothing.

        Args:
            user: whose inbox.
            limit: messages at most.
            unread: only messages that are unread.

        Returns:
            The messages, and the counts of the whole inbox.

        Raises:
            Refused: an argument is not valid, or the engine keeps no inboxes.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        return self._loop.run(self._publisher.inbox_of(user, limit=limit, unread=unread))

    def timeline(self, user: str, id: str) -> dict[str, Any] | None:
        """Read the state and the history of a message.

        Args:
            user: whose message.
            id: of the message, as in its `Result`.

        Returns:
            `{"id", "state", "timeline": [{"at", "event", ...}]}`, or None when the engine knows nothing of it.

        Raises:
            Refused: an argument is not valid.
            Unreachable: no engine answered within `retry_for_s`.
            Unauthorized, Forbidden: the token was rejected.
        """
        return self._loop.run(self._publisher.timeline(user, id))

    def flush(self) -> None:
        """Return when everything posted so far is on durable storage, or was rejected.

        Raises:
            PublishError: messages were rejected since the last flush; the others are accepted.
            Unreachable, Unauthorized, Forbidden: sending stopped. The buffer is kept, and the next call tries again.
        """
        self._loop.run(self._publisher.flush())

    def close(self, *, flush: bool = True) -> None:
        """Close the connections. Leaving the context calls it, without flushing when an exception leaves it.

        Args:
            flush: wait for everything posted, as `flush` does.

        Raises:
            PublishError, Unreachable, Unauthorized, Forbidden: of the flush; the connections are closed all the same.
        """
        if self._loop.closed:
            return
        try:
            self._loop.run(self._publisher.close(flush=flush))
        finally:
            self._loop.close()

    def _prepared(self, members: Mapping[str, Any]) -> Mapping[str, Any]:
        """The members of a message, with what must be made in the thread of the caller."""
        return members
