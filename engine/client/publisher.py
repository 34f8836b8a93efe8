"""Publishes notifications from an application: batched, retried under the same ids, with back-pressure.

Every item gets its id before the first attempt. After a lost answer, a restart of the engine or a 503 the same ids are sent again, and
the engine answers a repeat with the first result instead of delivering it twice.

`publish` and `publish_many` make one request each and return when the items are on durable storage. `post` puts an item into a bounded
buffer; one task takes batches from it, one request at a time, so the items of one publisher are accepted in the order they were
posted. A batch that is rejected for some of its items is sent again without them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from ssl import SSLContext
from types import TracebackType
from typing import Any, Final, Self, Unpack
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from engine.client.answers import AskedQuestion, CountedSignals, EventOutcome, QuestionAnswer, ScheduledMessage, asked_question
from engine.client.credentials import Credentials, Token, parse_url
from engine.client.growing_messages import GrowingMessage, PartSender
from engine.client.http_connection import HttpConnection, Response
from engine.client.loop_bound import OfLoop, Pump
from engine.client.message_members import EventMembers, MessageMembers, Seconds, sent_form
from engine.client.publish_results import ItemError, PublishError, Result, body_of, problem_of, raise_rejection, results_of, value_of
from engine.client.retried_requests import CLOSED, Carrier, RetriedRequests, segment, with_query
from engine.client.user_inbox import InboxPage, fetch_inbox
from engine.client.user_preferences import PATH as PREFERENCES
from engine.client.user_preferences import PreferenceChanges, UserPreferences
from engine.publish.message_ids import MessageIds

BODY_BYTES_MAX: Final = (1 << 20) - 2  # an engine's default limit, minus the brackets of the array
ERRORS_KEPT_MAX: Final = 1000  # of posted items, until `flush` reports them
QUESTION_WAIT_S_MAX: Final = 20.0
"""Of one request; proxies cut those that are silent for longer."""

PATH: Final = "/v1/notifications"
SCHEDULED: Final = "/v1/scheduled"


class _Item(Struct, frozen=True):
    id: str
    body: bytes
    users: int


class _Scheduled(Struct):
    scheduled: list[ScheduledMessage]
    next: str = ""


class Publisher:
    """Publishes notifications.

        async with Publisher("http://127.0.0.1:8000", token) as publisher:
            result = await publisher.publish(user="u1", type="order.paid", data={"order": 17})
            await publisher.publish(user="u1", type="survey.ask", delay=timedelta(days=7))
            for follower in followers:
                await publisher.post(user=follower, type="post.created", target="post/9")  # sent in batches

    It belongs to the event loop that uses it, until that loop is closed: in another one it raises RuntimeError meanwhile.

    Messages have the members of `POST /v1/notifications`: `type`, one of `user`, `users`, `topic` and `broadcast=True`, `data`, and those
    of `engine.client.message_members.MessageMembers`, which has their types. A member that is None is left out.

    Args:
        url: the engine's address, `http://host:port` or `https://...`.
        token: a JWT with scope `publish`, or a function (plain or async) that returns a fresh one.
        batch_max: items per request, `users` counted each; at most the engine's `items_max`.
        linger_s: how long a posted item waits for others in its request.
        queue_max: posted items that wait; at this limit `post` waits, which is the back-pressure.
        timeout_s: of one attempt, connecting included. An engine answers or rejects within 8 s.
        retry_for_s: how long a request to an unreachable or overloaded engine is retried before `Unreachable` is raised. Its wait for its
            turn, see `connections_max`, is not part of that.
        on_result: called with the `Result` of every posted item.
        connections_max: requests in flight, each on a connection that is kept; more wait for their turn. An edge takes 1 000
            connections of an address by default.
        ssl: for `https`, instead of the system's default.

    Raises (from every request):
        Unreachable: no engine answered within `retry_for_s`.
        Unauthorized, Forbidden: the token was rejected.
    """

    def __init__(
        self,
        url: str,
        token: Token,
        *,
        batch_max: int = 500,
        linger_s: float = 0.005,
        queue_max: int = 10_000,
        timeout_s: float = 10.0,
        retry_for_s: float = 60.0,
        on_result: Callable[[Result], object] | None = None,
        connections_max: int = 32,
        ssl: SSLContext | None = None,
    ) -> None:
        address = parse_url(url)
        make_carrier = partial(HttpConnection, address, connections_max=connections_max, ssl=ssl)
        self._begin(make_carrier, Credentials(token), batch_max, linger_s, queue_max, timeout_s, retry_for_s, on_result, MessageIds())

    def _begin(
        self,
        make_carrier: Callable[[], Carrier],
        credentials: Credentials,
        batch_max: int,
        linger_s: float,
        queue_max: int,
        timeout_s: float,
        retry_for_s: float,
        on_result: Callable[[Result], object] | None,
        new_id: Callable[[], str],
    ) -> None:
        """What publishers have in common, whatever carries their requests. `new_id` is called for each item without an id."""
        if batch_max < 1 or queue_max < 1:
            raise ValueError("batch_max and queue_max must be at least 1")
        self._requests = RetriedRequests(make_carrier, credentials, timeout_s=timeout_s, retry_for_s=retry_for_s)
        self._batch_max = batch_max
        self._linger_s = linger_s
        self._queue_max = queue_max
        self._on_result = on_result
        self._new_id = new_id
        self._parts = PartSender(self._requests, MessageIds())
        self._queue: deque[_Item] = deque()
        self._posted = self._answered = 0
        self._flushing = 0
        self._closed = False
        self._pump = OfLoop(Pump)
        self._failure: BaseException | None = None
        self._rejected: list[ItemError] = []
        self._rejected_more = 0
        self._rejected_status = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close(flush=error is None)

    # -- one request -----------------------------------------------------------------------------------------------------------
    async def publish(self, *, type: str, user: str | None = None, data: Any = None, **members: Unpack[MessageMembers]) -> Result:
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
            ValueError: a `datetime` has no time zone, or `users` was given, which has several results.
        """
        if "users" in members:
            raise ValueError("`users` has one result per user: use publish_many([{'users': [...], ...}])")
        results = await self.publish_many([{"user": user, "type": type, "data": data, **members}])
        return results[0]

    async def publish_many(self, items: Iterable[Mapping[str, Any]]) -> list[Result]:
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
            ValueError: a `datetime` has no time zone.
        """
        results: list[Result] = []
        waiting = deque(self._item(fields) for fields in items)
        start = 0
        while waiting:
            batch = self._next_batch(waiting)
            try:
                results += await self._send(batch)
            except PublishError as error:
                for place, fault in enumerate(error.errors):
                    error.errors[place] = msgspec.structs.replace(fault, index=start + fault.index if fault.index >= 0 else -1)
                raise PublishError(error.errors, error.status, results + error.results) from None
            start += len(batch)
            for _ in batch:
                waiting.popleft()
        return results

    # -- questions -----------------------------------------------------------------------------------------------------
    async def ask(self, *, type: str, user: str | None = None, data: Any = None, **members: Unpack[MessageMembers]) -> QuestionAnswer:
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
            ValueError: `ask` is missing, or whom to ask, or a `datetime` has no time zone.
        """
        if members.get("ask") is None:
            raise ValueError("`ask` is needed: a question has answers")
        if members.get("id") is None:
            members["id"] = self._new_id()
        topic = members.get("topic")
        _question("", user, topic)  # raises before anything is published
        result = await self.publish(type=type, user=user, data=data, **members)
        while True:
            asked = await self.question(result.id, user=user, topic=topic, wait_s=QUESTION_WAIT_S_MAX)
            if asked.answer is not None:
                return asked.answer

    async def question(self, id: str, *, user: str | None = None, topic: str | None = None, wait_s: float = 0.0) -> AskedQuestion:
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
            ValueError: not exactly one of `user` and `topic` was given.
        """
        wait = f"{min(wait_s, self._requests.timeout_s * 0.8):g}"
        return asked_question(await self._requests.send("GET", _question(id, user, topic, wait=wait)))

    async def withdraw(self, id: str, *, user: str | None = None, topic: str | None = None) -> None:
        """End a question without an answer: devices show that it was withdrawn. Durable on return, and idempotent.

        Args:
            id: of the message that asked it.
            user: who was asked; or `topic`.
            topic: whose members were asked.

        Raises:
            Refused: it has an answer, which the error tells (status 409), or there is no such question.
            ValueError: not exactly one of `user` and `topic` was given.
        """
        body_of(await self._requests.send("DELETE", _question(id, user, topic)))

    # -- messages that grow --------------------------------------------------------------------------------------------
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
    ) -> GrowingMessage:
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
        present = sent_form({"id": self._new_id(), **members, "user": user, "type": type, "data": data})
        return GrowingMessage(self._parts, present, list=list, writer=writer, idle=idle)

    # -- events and timers ---------------------------------------------------------------------------------------------
    async def event(self, *, type: str, user: str, data: Any = None, **members: Unpack[EventMembers]) -> EventOutcome:
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
            ValueError: a `datetime` has no time zone.
        """
        event = {"id": self._new_id(), **sent_form({**members, "type": type, "user": user, "data": data})}
        return await self._requests.fetch(EventOutcome, "POST", "/v1/events", event, good=202)

    async def scheduled(self, scheduled_id: str) -> ScheduledMessage | None:
        """Look up a scheduled message.

        Args:
            scheduled_id: of a `Result`, or of an `EventOutcome`.

        Returns:
            The message, or None when the id is unknown, was cancelled or has fired.

        Raises:
            Refused: the id is not valid.
        """
        answer = await self._requests.send("GET", f"{SCHEDULED}/{segment(scheduled_id)}")
        return None if answer.status == 404 else value_of(ScheduledMessage, answer)

    async def reschedule(self, scheduled_id: str, *, at: int | str | datetime | None = None, delay: Seconds | None = None) -> bool:
        """Move a scheduled message to another time, given by exactly one of `at` and `delay`.

        Args:
            scheduled_id: of a `Result`, or of an `EventOutcome`.
            at: RFC 3339 text, ms since the epoch, or a `datetime` with a time zone.
            delay: seconds from now, or a `timedelta`.

        Returns:
            False when it is too late, or nothing has this id.

        Raises:
            Refused: the time is not valid.
            ValueError: a `datetime` has no time zone.
        """
        when = msgspec.json.encode(sent_form({"at": at, "delay": delay}))
        return _in_time(await self._requests.send("PATCH", f"{SCHEDULED}/{segment(scheduled_id)}", when))

    async def cancel(self, scheduled_id: str) -> bool:
        """Cancel a scheduled message.

        Args:
            scheduled_id: of a `Result`, or of an `EventOutcome`.

        Returns:
            False when it is too late, or nothing has this id.

        Raises:
            Refused: the id is not valid.
        """
        return _in_time(await self._requests.send("DELETE", f"{SCHEDULED}/{segment(scheduled_id)}"))

    async def scheduled_for(self, user: str, *, collapse: str | None = None) -> list[ScheduledMessage]:
        """List what is scheduled for a user.

        Args:
            user: whose messages.
            collapse: a key; only messages with this one.

        Returns:
            The messages.

        Raises:
            Refused: an argument is not valid.
        """
        found: list[ScheduledMessage] = []
        after = ""
        while True:
            page = await self._requests.fetch(_Scheduled, "GET", with_query(SCHEDULED, user=user, collapse=collapse, after=after))
            found += page.scheduled
            if not (after := page.next):
                return found

    async def cancel_for(self, user: str, *, collapse: str | None = None) -> int:
        """Cancel all that is scheduled for a user and has not fired.

        Args:
            user: whose messages.
            collapse: a key; only messages with this one.

        Returns:
            How many were cancelled. After a lost answer, only what the repeat cancelled.

        Raises:
            Refused: an argument is not valid.
        """
        path = with_query(SCHEDULED, user=user, collapse=collapse)
        return int((await self._requests.fetch(dict[str, Any], "DELETE", path))["cancelled"])

    # -- signals -------------------------------------------------------------------------------------------------------
    async def count_signals(self, amounts: Mapping[str, int]) -> CountedSignals:
        """Add to sums, such as views. They are visible about a second later.

        A request is not repeated once it may have been counted: a broken connection can lose it, and never counts it twice.

        Args:
            amounts: by name, `{"post/9:views": 1}`.

        Returns:
            How many were counted, and how many were dropped because their name had no room.

        Raises:
            Refused: a name or an amount is not valid, and none was counted.
            Unreachable: not counted, or the connection broke before the answer.
        """
        body = msgspec.json.encode([{"name": name, "amount": amount} for name, amount in amounts.items()])
        answer = await self._requests.send("POST", "/v1/signals", body, "did not count the signals", repeatable=False)
        return value_of(CountedSignals, answer, 202)

    async def signal_sums(self, *names: str) -> dict[str, int]:
        """Read sums of the tenant.

        Args:
            names: as given to `count_signals`.

        Returns:
            The sum of each name, 0 for one that was never counted.

        Raises:
            Refused: a name is not valid.
        """
        path = f"/v1/signals?{urlencode([('name', name) for name in names])}"
        sums: dict[str, int] = (await self._requests.fetch(dict[str, Any], "GET", path))["signals"]
        return sums

    # -- users and messages --------------------------------------------------------------------------------------------------------
    async def explain(
        self, *, type: str, user: str | None = None, data: Any = None, **members: Unpack[MessageMembers]
    ) -> list[dict[str, Any]]:
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
            ValueError: a `datetime` has no time zone.
        """
        item = sent_form({"user": user, "type": type, "data": data, **members})
        results: list[dict[str, Any]] = (await self._requests.fetch(dict[str, Any], "POST", "/v1/explain", item))["results"]
        return results

    async def profile(self, user: str) -> dict[str, Any]:
        """Read the profile of a user.

        Args:
            user: whose profile.

        Returns:
            Time zone, quiet hours, mutes, digest and level, those that are set.

        Raises:
            Refused: the user's name is not valid.
        """
        return await self._requests.fetch(dict[str, Any], "GET", f"/v1/users/{segment(user)}/profile")

    async def set_profile(self, user: str, profile: Mapping[str, Any] | None) -> dict[str, Any]:
        """Store the profile of a user in place of the present one. Durable on return.

        Args:
            user: whose profile.
            profile: `{"zone": "Europe/Berlin", "quiet": [{"from": "22:00", "to": "07:30"}]}`; None deletes it.

        Returns:
            The profile as it is stored.

        Raises:
            Refused: a member is not valid.
        """
        if profile is None:
            body_of(await self._requests.send("DELETE", f"/v1/users/{segment(user)}/profile"), 204)
            return await self.profile(user)
        return await self._requests.fetch(dict[str, Any], "PUT", f"/v1/users/{segment(user)}/profile", profile)

    async def preferences(self, user: str) -> UserPreferences:
        """Read what a user has chosen, and may choose.

        Args:
            user: whose preferences.

        Returns:
            The choices, and the categories of the application.

        Raises:
            Refused: the user's name is not valid.
        """
        return await self._requests.fetch(UserPreferences, "GET", with_query(PREFERENCES, user=user))

    async def set_preferences(self, user: str, **changes: Unpack[PreferenceChanges]) -> UserPreferences:
        """Change what is named, and leave the rest. Durable on return. `set_profile` sets what users may not choose.

        Args:
            user: whose preferences.
            changes: `categories={"news": "off"}`, `types={"post.*": None}`, `zone="Asia/Tokyo"`; None removes a choice, or a whole member.

        Returns:
            The preferences as they are now.

        Raises:
            Refused: a change is not valid, or the application does not leave it to users.
        """
        return await self._requests.fetch(UserPreferences, "PATCH", with_query(PREFERENCES, user=user), changes)

    async def unsubscribe_links(self, category: str, users: Iterable[str]) -> dict[str, str]:
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
        """
        body = {"category": category, "users": list(users)}
        found = await self._requests.fetch(dict[str, Any], "POST", "/v1/unsubscribe-links", body)
        return {link["user"]: link["path"] for link in found["links"]}

    async def erase_user(self, user: str) -> None:
        """Erase a user everywhere; returns when nothing is left. Needs a token with the scope `admin`.

        Args:
            user: whom to erase.

        Raises:
            Refused: the user's name is not valid.
        """
        body_of(await self._requests.send("DELETE", f"/v1/users/{segment(user)}"), 204)

    async def inbox_of(self, user: str, *, limit: int = 50, unread: bool = False) -> InboxPage:
        """Read the newest messages of a user's inbox. Acknowledges nothing.

        Args:
            user: whose inbox.
            limit: messages at most.
            unread: only messages that are unread.

        Returns:
            The messages, and the counts of the whole inbox.

        Raises:
            Refused: an argument is not valid, or the engine keeps no inboxes.
        """
        return await fetch_inbox(self._requests, user=user, limit=limit, unread=unread)

    async def timeline(self, user: str, id: str) -> dict[str, Any] | None:
        """Read the state and the history of a message.

        Args:
            user: whose message.
            id: of the message, as in its `Result`.

        Returns:
            `{"id", "state", "timeline": [{"at", "event", ...}]}`, or None when the engine knows nothing of it.

        Raises:
            Refused: an argument is not valid.
        """
        answer = await self._requests.send("GET", f"/v1/users/{segment(user)}/messages/{segment(id)}")
        return None if answer.status == 404 else value_of(dict[str, Any], answer)

    # -- buffered ------------------------------------------------------------------------------------------------------
    async def post(self, *, type: str, user: str | None = None, data: Any = None, **members: Unpack[MessageMembers]) -> str:
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
        item = self._item({"user": user, "type": type, "data": data, **members})
        while True:
            self._keep_pumping()
            if len(self._queue) < self._queue_max:
                break
            await self._next_progress()
        self._queue.append(item)
        self._posted += 1
        self._pump.get().arrived.set()
        return item.id

    async def flush(self) -> None:
        """Return when everything posted so far is on durable storage, or was rejected.

        Raises:
            PublishError: messages were rejected since the last flush; the others are accepted.
            Unreachable, Unauthorized, Forbidden: sending stopped. The buffer is kept, and the next call tries again.
        """
        target = self._posted
        self._flushing += 1
        try:
            self._keep_pumping()
            self._pump.get().arrived.set()
            while self._answered < target:
                await self._next_progress()
                if self._failure is not None or self._answered < target:
                    self._keep_pumping()
        finally:
            self._flushing -= 1
        if self._rejected:
            error = PublishError(self._rejected, self._rejected_status, more=self._rejected_more)
            self._rejected, self._rejected_more = [], 0
            raise error

    async def close(self, *, flush: bool = True) -> None:
        """Close the connections. Leaving the context calls it, without flushing when an exception leaves it.

        Args:
            flush: wait for everything posted, as `flush` does.

        Raises:
            PublishError, Unreachable, Unauthorized, Forbidden: of the flush; the connections are closed all the same.
        """
        try:
            if flush and not self._closed:
                await self.flush()
        finally:
            self._closed = True
            pump = self._pump.get()
            if pump.task is not None:
                pump.task.cancel()
                await asyncio.wait({pump.task})
            pump.progress.set()  # whoever waits for room, or for the buffer, learns that it is closed
            await self._parts.close()
            await self._requests.close()

    # -- inside --------------------------------------------------------------------------------------------------------
    def _item(self, fields: Mapping[str, Any]) -> _Item:
        if self._closed:
            raise RuntimeError(CLOSED)
        present = sent_form(fields)
        id_ = str(present["id"] if "id" in present else present.setdefault("id", self._new_id()))
        users = present.get("users")
        return _Item(id_, msgspec.json.encode(present), len(users) if isinstance(users, list | tuple) else 1)

    def _next_batch(self, queue: Iterable[_Item]) -> list[_Item]:
        """The items of the next request from the front of `queue`: at least one, then as many as fit."""
        batch: list[_Item] = []
        size = users = 0
        for item in queue:
            size, users = size + 1 + len(item.body), users + item.users
            if batch and (size > BODY_BYTES_MAX or users > self._batch_max):
                break
            batch.append(item)
        return batch

    def _keep_pumping(self) -> None:
        """Raise the error that stopped the pump, once; the next call starts it again."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._closed:
            raise RuntimeError(CLOSED)
        pump = self._pump.get()
        if pump.task is None or pump.task.done():
            pump.task = asyncio.create_task(self._run_pump(pump), name="engine-publisher")

    async def _next_progress(self) -> None:
        progress = self._pump.get().progress
        progress.clear()
        await progress.wait()

    async def _run_pump(self, pump: Pump) -> None:
        try:
            while True:
                while not self._queue:
                    pump.arrived.clear()
                    await pump.arrived.wait()
                if not self._flushing and len(self._queue) < self._batch_max:
                    await self._linger(pump.arrived)
                batch = self._next_batch(self._queue)
                results, faults, status = await self._send_without_rejected(batch)
                for _ in batch:  # only now: when sending fails, everything unanswered is still in the queue
                    self._queue.popleft()
                self._answered += len(batch)
                self._keep_faults(faults, status)
                pump.progress.set()
                if self._on_result is not None:
                    for result in results:
                        self._on_result(result)
        except Exception as error:
            self._failure = error
            pump.progress.set()

    async def _linger(self, arrived: asyncio.Event) -> None:
        end = time.monotonic() + self._linger_s
        while not self._flushing and len(self._queue) < self._batch_max and (left := end - time.monotonic()) > 0:
            arrived.clear()
            try:
                async with asyncio.timeout(left):
                    await arrived.wait()
            except TimeoutError:
                return

    async def _send_without_rejected(self, batch: Sequence[_Item]) -> tuple[list[Result], list[ItemError], int]:
        """Send a batch; when some of it is rejected, the rest again. Repeating is safe, the ids are the same.

        Returns the results, the errors of rejected items, and the HTTP status of the rejection, 0 for none.
        """
        try:
            return await self._send(batch), [], 0
        except PublishError as error:
            if error.errors[0].index < 0:  # the answer does not say which: halve until it must be this one
                parts = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
                faults: list[ItemError] = []
            else:
                bad = {fault.index for fault in error.errors}
                parts = [[item for index, item in enumerate(batch) if index not in bad]]
                faults = [msgspec.structs.replace(fault, index=-1) for fault in error.errors]
                if error.results:
                    parts = []  # all are decided
            status, results = error.status, error.results
        for part in filter(None, parts):
            more_results, more_faults, more_status = await self._send_without_rejected(part)
            results += more_results
            faults += more_faults
            status = more_status or status
        return results, faults, status

    def _keep_faults(self, faults: Sequence[ItemError], status: int) -> None:
        room = ERRORS_KEPT_MAX - len(self._rejected)
        self._rejected += faults[:room]
        self._rejected_more += max(0, len(faults) - room)
        self._rejected_status = status or self._rejected_status

    async def _send(self, batch: Sequence[_Item]) -> list[Result]:
        """One request, retried under the same ids until it is accepted or rejected."""
        taken: dict[tuple[str, str | None], Result] = {}

        def keep_accepted(answer: Response) -> None:
            taken.update(
                ((result.id, result.user), result) for result in problem_of(answer).results if result.status in ("accepted", "scheduled")
            )

        body = b"[" + b",".join([item.body for item in batch]) + b"]"
        answer = await self._requests.send("POST", PATH, body, f"did not take {len(batch)} items", keep_accepted)
        if answer.status != 202:
            raise_rejection([item.id for item in batch], answer)
        # What an earlier attempt of this request stored is no duplicate to the caller.
        return [taken.get((result.id, result.user), result) for result in results_of(answer)]


def _question(id: str, user: str | None, topic: str | None, **more: str) -> str:
    """The path of a question. Raises ValueError when it is not for exactly one of a user and a topic."""
    if (user is None) == (topic is None):
        raise ValueError("exactly one of `user` and `topic` is asked")
    return with_query(f"/v1/questions/{segment(id)}", user=user, topic=topic, **more)


def _in_time(answer: Response) -> bool:
    if answer.status in (404, 409):
        return False
    body_of(answer)
    return True
