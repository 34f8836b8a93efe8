"""Receives a user's notifications: what an application sees of the session, which `engine.client.receiver` keeps connected.

Here messages are handed out and settled, the cursor is reported, and requests beside the connection are made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from ssl import SSLContext
from types import TracebackType
from typing import Any, Final, Self, Unpack

from engine.client.answers import QuestionAnswer
from engine.client.credentials import Credentials, Token, parse_url
from engine.client.digest import Digest
from engine.client.frames import Message
from engine.client.growing_messages import GrownText
from engine.client.http_connection import HttpConnection
from engine.client.links.transport_ladder import TransportLadder
from engine.client.links.transport_link import LinkOptions
from engine.client.protocol import TRANSPORTS, Event, Session, Transport, split_cursor
from engine.client.receiver import Receiver
from engine.client.retried_requests import RetriedRequests, segment, with_query
from engine.client.user_inbox import InboxPage, Mark, Marked, fetch_inbox
from engine.client.user_preferences import PATH as PREFERENCES
from engine.client.user_preferences import PreferenceChanges, UserPreferences
from engine.errors import Unreachable

SUBSCRIPTIONS: Final = "/v1/subscriptions"
YIELD_EVERY: Final = 32  # messages returned without yielding to the loop, which writes the acknowledgements


class Client:
    """Receives one user's notifications, in order, and acknowledges them.

        async with Client("http://127.0.0.1:8000", token) as client:
            async for message in client:
                await handle(message.type, message.data)

    At least once: a message is acknowledged when the next one is requested, or the context is left without an exception, so a message
    whose handler failed or whose process died is delivered again. Repeats of settled messages are dropped by id. A lost connection
    is made again after 1, 2, 5, 10 s with jitter, or after the delay a server gives, and resumes at the cursor.

    Where no WebSocket gets through, messages come over SSE, and where streams are held back too, by polling; the client goes back to a
    better transport as soon as one works. Nothing is lost or repeated by that.

    With `auto_ack=False` settle each message with `await message.ack()` or `await message.nack("why")`, in any order and from any task;
    the engine stops sending at about 256 unsettled messages.

    To resume after a restart of the program, store the cursor passed to `on_cursor`:

        Client(url, token, last_event_id=path.read_text() or None, on_cursor=path.write_text)

    Args:
        url: the engine's address, `http://host:port` or `https://...`.
        token: a JWT with scope `connect`, or a function (plain or async) that returns a fresh one; it is called before a token
            expires and when one is rejected.
        device: a stable name of this device, for the engine's session records.
        last_event_id: the cursor to resume from; None delivers everything pending.
        auto_ack: acknowledge each message when the next one is requested.
        on_cursor: called with the new cursor when messages were settled, at most once per turn of the loop.
        on_event: called with `Connected`, `Disconnected`, `Gap`, `Revoked`, `Draining`, `ServerError`, `Digest`, `Counts` and `Part` in
            order; with a `Gap` before the messages after it are delivered.
        digest: after an absence `on_event` also gets a `Digest` of what was missed, beside the messages themselves.
        counts: `on_event` also gets `Counts` of the inbox, when connected and whenever they change.
        open_timeout_s: how long entering the context waits for the first connection, over all attempts and transports.
        transports: those that may be used, best first.
        upgrade_after_s: on a lesser transport, when a better one is tried again; doubles up to ten minutes.
        ssl: for `https` and `wss`, instead of the system's default.

    Raises (from entering the context, and from the iteration):
        Unreachable: no engine answered within `open_timeout_s`; once connected, reconnecting never gives up.
        Unauthorized: the token was rejected, and so was a fresh one where `token` is a function.
        Forbidden: the token lacks the scope.
        TooManyConnections: newer connections of this user replaced this one.
        Refused: any other answer that retrying does not change, on every transport.

    Raises (from requests, such as `inbox`):
        Unreachable: no engine answered within `open_timeout_s`.
        Unauthorized, Forbidden: the token was rejected.
    """

    def __init__(
        self,
        url: str,
        token: Token,
        *,
        device: str | None = None,
        last_event_id: str | None = None,
        auto_ack: bool = True,
        on_cursor: Callable[[str], object] | None = None,
        on_event: Callable[[Event], object] | None = None,
        digest: bool = False,
        counts: bool = False,
        open_timeout_s: float = 10.0,
        transports: Sequence[Transport] = TRANSPORTS,
        upgrade_after_s: float = 60.0,
        ssl: SSLContext | None = None,
    ) -> None:
        self._address = parse_url(url)
        self._credentials = Credentials(token)
        self._auto_ack = auto_ack
        self._on_cursor = on_cursor
        self._open_timeout_s = open_timeout_s
        self._device = device
        self._ssl = ssl
        self._session = Session(last_event_id, renewable=self._credentials.renewable)
        options = LinkOptions(
            self._address, self._credentials, lambda: self._session.cursor, device, digest, counts, ssl, timeout_s=open_timeout_s
        )
        self._receiver = Receiver(self._session, options, TransportLadder(transports, upgrade_after_s), on_event, self._changed)
        self._entered = self._closed = False
        self._cursor_reported = last_event_id
        self._report_scheduled = False
        self._handling: Message | None = None
        self._returned_in_a_row = 0
        self._readable = asyncio.Event()

    @property
    def cursor(self) -> str | None:
        """`event_id` up to which everything is settled; pass it as `last_event_id` to resume."""
        return self._session.cursor

    @property
    def transport(self) -> Transport | None:
        """The one in use; None while there is no connection."""
        return self._session.transport

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError("a Client can be entered once; create another one")
        self._entered = True
        self._receiver.start()
        try:
            if not await self._receiver.until_opened(self._open_timeout_s):
                reason = self._receiver.reason
                raise Unreachable(f"no engine answered at {self._address.http} within {self._open_timeout_s:g} s: {reason}")
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self._settle_handled()
        await self.close()

    async def close(self) -> None:
        """Send what is settled, close the connection and end the iteration: what was not handed out comes again. Idempotent."""
        self._closed = True
        await self._receiver.close()
        self._report_cursor()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message. Cancelling the wait loses no message."""
        self._settle_handled()
        if self._returned_in_a_row >= YIELD_EVERY:
            self._returned_in_a_row = 0
            await asyncio.sleep(0)
        while self._closed or (message := self._session.next_message()) is None:
            if self._receiver.failure is not None:
                raise self._receiver.failure
            if self._closed or not self._receiver.running:
                raise StopAsyncIteration
            self._returned_in_a_row = 0
            self._readable.clear()
            await self._readable.wait()
        self._returned_in_a_row += 1
        message.__dict__["owner"] = self
        if self._auto_ack:
            self._handling = message
        return message

    def settle(self, message: Message, reason: str | None) -> None:
        """Acknowledge a message, or reject it. `message.ack()` and `message.nack()` call it.

        Args:
            message: of this client.
            reason: why it is rejected; None acknowledges it.
        """
        self._session.settle(message, reason, self._receiver.now_ms())
        self._receiver.send_soon()
        self._schedule_report()

    async def digest(self, *, since: int = 0, limit: int = 20) -> Digest:
        """Tell what the user has missed, in a few lines. Acknowledges nothing. The client need not be entered.

        Args:
            since: ms since the epoch; what came from then on counts though another device has acknowledged it, unless it was read. 0: only
                what is pending.
            limit: lines at most.

        Returns:
            The lines, the most important first.

        Raises:
            Refused: `since` or `limit` is not valid.
        """
        async with self._requests() as requests:
            return await requests.fetch(Digest, "GET", with_query("/v1/digest", since=since, limit=limit))

    async def inbox(
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
        """
        async with self._requests() as requests:
            return await fetch_inbox(requests, before=before, limit=limit, unread=unread, archived=archived, type=type, q=text)

    async def mark(
        self, mark: Mark, *, ids: Sequence[str] | None = None, upto: Message | str | int | None = None, all: bool = False
    ) -> Marked:
        """Mark messages of the inbox, chosen by exactly one of `ids`, `upto` and `all`. Durable on return, idempotent.

        Args:
            mark: `read` and `archive` acknowledge what is pending, on all devices of the user; what is read is seen.
            ids: of the messages.
            upto: all up to this message or its `event_id`, or to a `seq` alone, which is of another message when the engine has lost its
                data meanwhile.
            all: all messages.

        Returns:
            The counts after it, and the ids that the inbox does not have.

        Raises:
            Refused: not exactly one was given, or it is not valid, or the engine keeps no inboxes, or has lost the message (status 409).
            ValueError: `upto` is a text, and no event_id.
        """
        epoch = ""
        if isinstance(upto, Message):
            upto = upto.event_id or upto.seq
        if isinstance(upto, str):
            epoch, upto = split_cursor(upto)
        chosen = {"ids": None if ids is None else list(ids), "upto": upto, "epoch": epoch or None, "all": all or None}
        body = {name: value for name, value in chosen.items() if value is not None}
        async with self._requests() as requests:
            return await requests.fetch(Marked, "POST", f"/v1/inbox/{mark}", body)

    async def answer(self, id: str, answer: str | None = None, *, text: str = "", topic: str = "") -> QuestionAnswer:
        """Answer a question of the user. Durable on return, and idempotent. The client need not be entered.

        Args:
            id: of the message that asks.
            answer: id of one of its `answers`.
            text: in the user's words, where the question takes a text.
            topic: that `ask` names, where the members of a topic are asked.

        Returns:
            The answer as it is stored.

        Raises:
            Refused: it has another answer, which the error tells (status 409), or it does not take this one.
        """
        path = with_query(f"/v1/answers/{segment(id)}", device=self._device)
        async with self._requests() as requests:
            return await requests.fetch(QuestionAnswer, "POST", path, {"answer": answer, "text": text, "topic": topic})

    async def grown(self, id: str, *, generation: int = 0, offset: int = 0, wait_s: float = 0.0) -> GrownText:
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
        """
        wait = f"{min(wait_s, self._open_timeout_s * 0.8):g}"
        async with self._requests() as requests:
            path = with_query(f"/v1/growing/{segment(id)}", generation=generation, offset=offset, wait=wait)
            return await requests.fetch(GrownText, "GET", path)

    async def subscribe(self, *topics: str) -> list[str]:
        """Subscribe the user to topics, until `unsubscribe`. Durable on return.

        Args:
            topics: their names; without any, nothing changes.

        Returns:
            All topics of the user.

        Raises:
            Refused: a topic is not allowed, or there are too many; those before it are changed.
        """
        return await self._change_topics("PUT", topics)

    async def unsubscribe(self, *topics: str) -> list[str]:
        """End subscriptions of the user. Durable on return.

        Args:
            topics: their names; without any, nothing changes.

        Returns:
            The topics that are left.

        Raises:
            Refused: a topic is not allowed; those before it are changed.
        """
        return await self._change_topics("DELETE", topics)

    async def preferences(self) -> UserPreferences:
        """Read what the user has chosen, and may choose. The client need not be entered.

        Returns:
            The choices, and the categories of the application.

        Raises:
            Unreachable, Unauthorized, Forbidden: as every request.
        """
        async with self._requests() as requests:
            return await requests.fetch(UserPreferences, "GET", PREFERENCES)

    async def set_preferences(self, **changes: Unpack[PreferenceChanges]) -> UserPreferences:
        """Change what is named, and leave the rest. Changes of several devices at once are all applied. Durable on return.

        Args:
            changes: `categories={"news": "off"}`, `types={"post.*": None}`, `zone="Asia/Tokyo"`; None removes a choice, or a whole member.

        Returns:
            The preferences as they are now.

        Raises:
            Refused: a change is not valid, or the application does not leave it to users.
        """
        async with self._requests() as requests:
            return await requests.fetch(UserPreferences, "PATCH", PREFERENCES, changes)

    # -- inside --------------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def _requests(self) -> AsyncIterator[RetriedRequests]:
        """For requests beside the connection."""
        carrier = HttpConnection(self._address, connections_max=1, ssl=self._ssl)
        requests = RetriedRequests(lambda: carrier, self._credentials, timeout_s=self._open_timeout_s, retry_for_s=self._open_timeout_s)
        try:
            yield requests
        finally:
            await requests.close()

    async def _change_topics(self, method: str, topics: Sequence[str]) -> list[str]:
        """All topics of the user, after a PUT or DELETE of each of `topics`."""
        paths = [f"{SUBSCRIPTIONS}/{segment(topic)}" for topic in topics]
        async with self._requests() as requests:
            found: dict[str, Any] = {}
            for path in paths:
                found = await requests.fetch(dict[str, Any], method, path)
            names: list[str] = (found or await requests.fetch(dict[str, Any], "GET", SUBSCRIPTIONS))["topics"]
            return names

    def _changed(self) -> None:
        """Messages may have arrived, or the cursor moved: a nack was confirmed, or another device settled what held it."""
        self._readable.set()
        if self._session.cursor != self._cursor_reported:
            self._schedule_report()

    def _settle_handled(self) -> None:
        if self._handling is not None:
            message, self._handling = self._handling, None
            self.settle(message, None)

    def _schedule_report(self) -> None:
        if self._on_cursor is not None and not self._report_scheduled:
            self._report_scheduled = True
            asyncio.get_running_loop().call_soon(self._report)

    def _report_cursor(self) -> None:
        cursor = self._session.cursor
        if self._on_cursor is not None and cursor is not None and cursor != self._cursor_reported:
            self._cursor_reported = cursor
            self._on_cursor(cursor)

    def _report(self) -> None:
        """Call `on_cursor`. An exception from it ends the client: a cursor that is not stored would resume at the wrong message."""
        self._report_scheduled = False
        try:
            self._report_cursor()
        except Exception as error:
            self._receiver.fail(error)
