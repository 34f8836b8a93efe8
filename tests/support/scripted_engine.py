"""A mailbox of one user that speaks PROTOCOL.md from the server's side, and misbehaves on demand.

The client's answer to a fault is only provable when the fault can be had at will: a frame sent twice, a socket cut between
two messages, a proxy that refuses upgrades, an epoch that changes. A real engine does none of these on request.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from engine.http import static_files

STATIC = Path(__file__).parents[2] / "engine" / "http" / "static"
TICK_S = 0.01
BEGIN_S = int(time.time())


def token(user: str = "demo", *, ttl_s: float = 3600, **claims: Any) -> str:
    """Shaped like a JWT, the same for the same arguments; the scripted engine compares tokens, it does not verify them."""
    parts = ({"alg": "none"}, {"sub": user, "exp": int(BEGIN_S + ttl_s), "scope": "connect publish admin", **claims})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + ".c2ln"


DIGEST: Final = {"since": 0, "until": 9, "messages": 1, "lines": [], "skipped": {}, "older": False, "model": False}


class ScriptedEngine:
    """Its state is open: tests read what the client said and set what shall go wrong."""

    def __init__(self) -> None:
        self.epoch = "7"
        self.user = "demo"
        self.head = 0
        self.pending: dict[int, dict[str, Any]] = {}
        self.window_full = False  # what is published waits; a high message is sent early
        self.held: list[dict[str, Any]] = []  # pending, and waiting for room
        self.gaps: list[dict[str, int]] = []  # to be told to a polling client
        self.queues: list[asyncio.Queue[dict[str, Any]]] = []  # one per open connection
        self.ended = 0  # connections
        self.cuts = 0
        # What the client said.
        self.connects: list[tuple[str, str | None]] = []  # (transport, cursor)
        self.frames: list[dict[str, Any]] = []  # over WebSocket, and nacks by requests
        self.probes: list[tuple[str, str]] = []  # name of the client, its last number
        self.acks: list[dict[str, Any]] = []  # over any transport
        self.tokens: list[str] = []
        self.urls: list[str] = []
        # What shall go wrong.
        self.refuse: dict[str, int] = {}  # transport -> HTTP status of its requests
        self.retry_after = "0"  # with a 429 or 503
        self.token: str | None = None  # the only good one; None takes any
        self.confirms = True  # refusals
        self.mute = False  # nothing is said any more, the socket stays open
        self.full = False  # a WebSocket takes the place of what is connected: the user has no more connections
        self.status_code = 200
        self.topics: set[str] = set()
        self.keeps_inbox = False
        self.inbox: list[dict[str, Any]] = []  # newest first, with their marks
        self.revision = 0  # of the inbox
        self.choices: dict[str, str] = {}  # of categories
        self.mail_digest: dict[str, Any] | None = None
        self.patches: list[dict[str, Any]] = []  # of preferences
        self.snoozed: list[tuple[list[str], int]] = []  # ids, and until when
        self.answers: list[tuple[str, dict[str, Any]]] = []  # ids of questions, and what was answered
        self.takes_frames = True  # that answer; else only requests do
        self.answered_by = ""  # another device, which was first; "" for none
        # How it is tuned.
        self.welcome: dict[str, Any] = {"heartbeat_ms": 30_000, "timeout_ms": 60_000, "reconnect": {"delays_ms": [30, 60], "jitter": 0.3}}
        self.url = ""

    # -- the mailbox ---------------------------------------------------------------------------------------------------
    def publish(self, title: str = "", /, **fields: Any) -> dict[str, Any]:
        """A new message, sent on every open connection."""
        self.head += 1
        message = {
            "seq": self.head, "id": f"m{self.head}", "event_id": f"{self.epoch}-{self.head}", "type": "post.liked", "priority": "normal",
            "ts": int(time.time() * 1000), "attempt": 1, "data": {"title": title}, **fields,
        }  # fmt: skip
        self.pending[self.head] = message
        self.inbox.insert(0, message | {"read": False, "archived": False})
        self.revision += 1
        if self.window_full:
            self.held.append(message)
            if early := self._early([message]):
                self.say({"type": "early", "messages": early})
        else:
            self.say({"type": "messages", "messages": [message]})
        self.say_counts()
        return message

    def _early(self, held: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Early copies of those that have one."""
        chosen = [message for message in held if message["priority"] == "high" and message["seq"] in self.pending]
        return [{name: value for name, value in one.items() if name != "event_id"} | {"early": True} for one in chosen]

    def make_room(self) -> None:
        """Send what waits, each in its place."""
        held, self.held, self.window_full = self.held, [], False
        for message in held:
            if message["seq"] in self.pending:
                message["attempt"] += message["priority"] == "high"
                self.say({"type": "messages", "messages": [dict(message)]})

    def _sendable(self) -> list[dict[str, Any]]:
        return [dict(self.pending[seq]) for seq in sorted(self.pending) if self.pending[seq] not in self.held]

    def counts(self) -> dict[str, int]:
        unread = sum(not (one["read"] or one["archived"]) for one in self.inbox)
        return {"unread": unread, "unseen": unread, "revision": self.revision}

    def say_counts(self) -> None:
        if self.keeps_inbox:
            self.say({"type": "counts", **self.counts()})

    def mark(self, mark: str, **which: Any) -> None:
        """On any device."""
        for one in self.inbox:
            if which.get("all") or one["id"] in which.get("ids", ()) or one["seq"] <= which.get("upto", 0):
                one["archived" if mark == "archive" else "read"] = True
        self.revision += 1
        self.say_counts()

    def say(self, frame: dict[str, Any]) -> None:
        """Send a frame on every open connection."""
        for queue in self.queues:
            queue.put_nowait(frame)

    def again(self, seq: int) -> None:
        """Send a message once more, as a retry does."""
        message = self.pending[seq]
        message["attempt"] += 1
        self.say({"type": "messages", "messages": [dict(message)]})

    def acknowledge(self, ack: dict[str, Any]) -> None:
        self.acks.append(ack)
        for seq, message in list(self.pending.items()):
            if seq <= ack.get("seq", 0) or message["id"] in ack.get("ids", ()):
                del self.pending[seq]

    def resume(self, transport: str, cursor: str | None) -> str:
        """Take a cursor; says how delivery goes on."""
        self.connects.append((transport, cursor))
        if not cursor:
            return "new"
        epoch, _, seq = cursor.rpartition("-")
        if epoch != self.epoch or int(seq) > self.head:
            return "gap"
        self.acknowledge({"seq": int(seq), "cursor": True})
        return "ok"

    def lose_data(self) -> None:
        """Storage has lost all messages, and numbers begin anew. No connection hears of it."""
        self.epoch = str(int(self.epoch) + 1)
        self.head = 0
        self.pending.clear()

    def gap(self, first: int, last: int) -> None:
        """Announce that these are gone; a polling client gets it with its next answer."""
        self.head = max(self.head, last)
        self.say({"type": "gap", "from": first, "to": last})
        if not self.queues:
            self.gaps.append({"from": first, "to": last})

    def cut(self, code: int = 1012, reason: str = "") -> None:
        """End every connection, after what has been said; a poll that waits is answered."""
        self.cuts += 1
        self.say({"type": "cut", "code": code, "reason": reason})

    def _gone(self, queue: asyncio.Queue[dict[str, Any]]) -> None:
        self.queues.remove(queue)
        self.ended += 1

    async def publish_until_acknowledged(self, title: str = "", /, **fields: Any) -> None:
        """A new message, sent and acknowledged, and so all before it."""
        self.publish(title, **fields)
        await self.until(lambda: not self.pending)

    async def until(self, condition: Any, within_s: float = 30) -> None:
        """Wait until `condition()` holds; fails with the state otherwise."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"{self.connects=} {self.acks=} {self.pending=} {self.frames=}"
            await asyncio.sleep(TICK_S)

    # -- the transports ------------------------------------------------------------------------------------------------
    def _refusal(self, transport: str, given: str) -> Response | None:
        self.tokens.append(given)
        if transport in self.refuse:
            return Response(
                "no", self.refuse[transport], {"Retry-After": self.retry_after} if self.refuse[transport] in (429, 503) else None
            )
        if self.token is not None and given != self.token:
            return JSONResponse({"title": "Unauthorized", "status": 401}, 401, media_type="application/problem+json")
        return None

    def _first_frames(self, transport: str, cursor: str | None) -> list[dict[str, Any]]:
        resumed = self.resume(transport, cursor)
        pending = self._sendable()
        start = min(self.pending, default=self.head + 1)
        about = {"connection": f"c{len(self.connects)}", "user": self.user, "epoch": self.epoch, "seq": self.head, "resumed": resumed}
        welcome = {"type": "welcome", **about, "from": start, "window": 256, **self.welcome}
        counts = [{"type": "counts", **self.counts()}] if self.keeps_inbox else []
        early = self._early(self.held)
        messages = [{"type": kind, "messages": some} for kind, some in (("messages", pending), ("early", early)) if some]
        return [welcome, *counts, *messages]

    async def websocket(self, ws: WebSocket) -> None:
        protocols = ws.scope["subprotocols"]
        given = next((name.removeprefix("bearer.") for name in protocols if name.startswith("bearer.")), "")
        self.urls.append(str(ws.url))
        if self.full:
            self.cut(4409, "too many")
            await self.until(lambda: not self.queues)
        refusal = self._refusal("websocket", given)
        if refusal is not None:
            await ws.send_denial_response(refusal)
            return
        assert "notify.v1.json" in protocols
        await ws.accept("notify.v1.json")
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for frame in self._first_frames("websocket", ws.query_params.get("last_event_id")):
            queue.put_nowait(frame)
        self.queues.append(queue)
        writer = asyncio.create_task(self._write(ws, queue))
        try:
            while True:
                self._heard(json.loads(await ws.receive_text()))
        except (WebSocketDisconnect, RuntimeError):
            pass  # the client has gone, or `cut` ended it
        finally:
            writer.cancel()
            self._gone(queue)

    async def _write(self, ws: WebSocket, queue: asyncio.Queue[dict[str, Any]]) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                frame = await queue.get()
                if frame["type"] == "cut":
                    await ws.close(frame["code"], frame["reason"])
                elif not self.mute:
                    await ws.send_text(json.dumps(frame))

    def _heard(self, frame: dict[str, Any]) -> None:
        self.frames.append(frame)
        if frame["type"] == "ack":
            self.acknowledge(frame)
        elif frame["type"] == "nack" and self.confirms:
            self._bury(frame["ids"])
            self.say({"type": "nacked", "ids": frame["ids"]})
        elif frame["type"] == "answer" and self.takes_frames:
            status, body = self._answered(frame["message"], {name: frame[name] for name in ("answer", "text", "topic")})
            self.say({"type": "answer_result", "ref": frame["ref"], "status": status, **(body if status == 200 else {"problem": body})})
        elif frame["type"] == "ping":
            self.say({"type": "pong", "ts": frame["ts"]})

    async def sse(self, request: Request) -> Response:
        self.urls.append(str(request.url))
        refusal = self._refusal("sse", request.headers.get("Authorization", "").removeprefix("Bearer "))
        if refusal is not None:
            return refusal
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        welcome, *others = self._first_frames("sse", request.query_params.get("last_event_id"))
        for frame in others:
            queue.put_nowait(frame)
        self.queues.append(queue)

        async def body() -> AsyncIterator[str]:
            try:
                yield f"retry: 1000\n: hello\n\nevent: welcome\ndata: {json.dumps(welcome)}\n\n"
                while True:
                    frame = await queue.get()
                    if frame["type"] == "cut":
                        if frame["code"] != 1012:
                            yield f"event: close\ndata: {json.dumps(frame)}\n\n"
                        return
                    for message in frame["messages"] if frame["type"] == "messages" else []:
                        yield f"id: {message['event_id']}\nevent: message\ndata: {json.dumps(message)}\n\n"
                    if frame["type"] != "messages":
                        yield f"event: {frame['type']}\ndata: {json.dumps(frame)}\n\n"
            finally:
                self._gone(queue)

        return StreamingResponse(body(), media_type="text/event-stream")

    async def poll(self, request: Request) -> Response:
        refusal = self._refusal("poll", request.headers.get("Authorization", "").removeprefix("Bearer "))
        if refusal is not None:
            return refusal
        resumed = self.resume("poll", request.query_params.get("last_event_id"))
        deadline, cuts = time.monotonic() + float(request.query_params["wait"]), self.cuts
        while not (self._sendable() or self._early(self.held) or self.gaps or self.cuts > cuts or await request.is_disconnected()):
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(TICK_S)
        last = self.held[0]["seq"] - 1 if self.held else self.head
        answer: dict[str, Any] = {"messages": self._sendable(), "last_event_id": f"{self.epoch}-{last}", "resumed": resumed}
        answer["user"] = self.user
        if early := self._early(self.held):
            answer["early"] = early
        gaps, self.gaps = self.gaps, []
        return JSONResponse(answer | ({"gaps": gaps} if gaps else {}))

    async def subscription(self, request: Request) -> Response:
        topic = request.path_params["topic"]
        if topic == "secret":
            return JSONResponse({"title": "Forbidden", "detail": "the token does not allow it", "status": 403}, 403)
        (self.topics.add if request.method == "PUT" else self.topics.discard)(topic)
        return JSONResponse({"user": "demo", "topics": sorted(self.topics)})

    async def read_inbox(self, request: Request) -> Response:
        if not self.keeps_inbox:
            return JSONResponse({"title": "Not Found", "status": 404}, 404)
        before, limit = int(request.query_params.get("before", self.head + 1)), int(request.query_params["limit"])
        archived = request.query_params.get("archived") == "true"
        found = [one for one in self.inbox if one["seq"] < before and one["archived"] == archived]
        more = {"before": found[limit - 1]["seq"]} if len(found) > limit else {}
        return JSONResponse({"messages": found[:limit], **self.counts(), **more})

    async def mark_inbox(self, request: Request) -> Response:
        which = await request.json()
        if which.get("epoch", self.epoch) != self.epoch:
            return JSONResponse({"title": "Conflict", "detail": "a number of another epoch", "status": 409}, 409)
        self.mark(request.path_params["mark"], **which)
        return JSONResponse(self.counts())

    async def snooze(self, request: Request) -> Response:
        asked = await request.json()
        self.snoozed.append((asked["ids"], asked["until"]))
        self.mark("archive", ids=asked["ids"])
        return JSONResponse({"until": asked["until"], **self.counts()})

    async def answer(self, request: Request) -> Response:
        status, body = self._answered(request.path_params["message"], await request.json())
        return JSONResponse(body, status, media_type="application/json" if status == 200 else "application/problem+json")

    def _answered(self, message: str, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.answers.append((message, given))
        if self.answered_by:
            return 409, {"title": "Conflict", "detail": f"it was answered by {self.answered_by}: Deny", "status": 409}
        return 200, {"by": "demo", "at": 1, **given}

    async def preferences(self, request: Request) -> Response:
        if request.method == "PATCH":
            patch = await request.json()
            self.choices |= patch.get("categories", {})
            self.mail_digest = patch.get("mail_digest", self.mail_digest)
            self.patches.append(patch)
        about = {"user": "demo", "zone": "UTC", "locale": "", "quiet": [], "categories": self.choices, "types": {}, "targets": {}}
        about |= {"channels": {}, "quiet_categories": {"news": []}, "mail_digest": self.mail_digest}
        news = {"title": "News", "may": ["on", "digest", "off"], "default": "on", "choice": self.choices.get("news", "digest")}
        news |= {"channels": {"email": "on"}}
        return JSONResponse({**about, "available": {"news": news}})

    async def ack(self, request: Request) -> Response:
        ack = await request.json() | {"post": True}
        if "seq" in ack and ack.get("epoch", self.epoch) != self.epoch:
            self.acks.append(ack)
            return JSONResponse({"title": "Conflict", "detail": "a number of another epoch", "status": 409}, 409)
        self.acknowledge(ack)
        return JSONResponse({})

    async def nack(self, request: Request) -> Response:
        frame = {"type": "nack", **await request.json()}
        self.frames.append(frame)
        if not self.confirms:
            return JSONResponse({"title": "Service Unavailable", "detail": "no answer in time", "status": 503}, 503)
        self._bury(frame["ids"])
        return JSONResponse({"nacked": True})

    async def heartbeat(self, request: Request) -> Response:
        self.probes.append((request.headers.get("X-Client-ID", ""), request.headers.get("X-Last-Seq", "")))
        return JSONResponse({"online": True, "state": "suspect", "seq": self.head})

    async def digest(self, request: Request) -> Response:
        self.urls.append(str(request.url))
        return JSONResponse(DIGEST)

    def _bury(self, ids: list[str]) -> None:
        self.pending = {seq: message for seq, message in self.pending.items() if message["id"] not in ids}

    # -- what the demo page asks for -----------------------------------------------------------------------------------
    async def post(self, request: Request) -> Response:
        body = await request.json()
        items = body if isinstance(body, list) else [body]
        return JSONResponse({"accepted": len(items), "results": [self._take(item) for item in items]}, 202)

    def _take(self, item: dict[str, Any]) -> dict[str, Any]:
        if item.get("delay"):
            at = int(time.time() * 1000 + item["delay"] * 1000)
            return {"id": "x", "user": item["user"], "status": "scheduled", "scheduled_id": "3-abc", "scheduled_at": at}
        seq = self.publish(**{name: value for name, value in item.items() if name != "user"})["seq"]
        return {"id": f"m{seq}", "user": item["user"], "status": "accepted", "seq": seq}

    async def scheduled(self, request: Request) -> Response:
        return Response(status_code=204)

    async def status(self, request: Request) -> Response:
        totals = {
            "connections": len(self.queues), "published": self.head, "acknowledged": self.head - len(self.pending),
            "pending": len(self.pending), "p50_ms": 2.4, "p95_ms": 7.9, "p99_ms": 18.0,
            "send_p50_ms": 1.4, "send_p95_ms": 3.9, "send_p99_ms": 9.0, "ack_p50_ms": 1.0, "ack_p95_ms": 4.2, "ack_p99_ms": 9.0,
        }  # fmt: skip
        return JSONResponse({"version": "0.1.0", "totals": totals}, self.status_code)

    # -- serving -------------------------------------------------------------------------------------------------------
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                WebSocketRoute("/v1/ws", self.websocket),
                Route("/v1/sse", self.sse),
                Route("/v1/poll", self.poll),
                Route("/v1/preferences", self.preferences, methods=["GET", "PATCH"]),
                Route("/v1/ack", self.ack, methods=["POST"]),
                Route("/v1/nack", self.nack, methods=["POST"]),
                Route("/v1/heartbeat", self.heartbeat),
                Route("/v1/digest", self.digest),
                Route("/v1/subscriptions/{topic:path}", self.subscription, methods=["PUT", "DELETE"]),
                Route("/v1/answers/{message}", self.answer, methods=["POST"]),
                Route("/v1/inbox", self.read_inbox),
                Route("/v1/inbox/snooze", self.snooze, methods=["POST"]),
                Route("/v1/inbox/{mark}", self.mark_inbox, methods=["POST"]),
                Route("/v1/notifications", self.post, methods=["POST"]),
                Route("/v1/scheduled/{sid}", self.scheduled, methods=["DELETE"]),
                Route("/v1/status", self.status),
                Route("/blank", lambda request: HTMLResponse("<!doctype html><link rel=icon href=data:,><title>blank</title>")),
                *(route for route in static_files.routes() if route.path in ("/", "/admin")),  # with their headers
                Mount("/", StaticFiles(directory=STATIC, html=True)),
            ]
        )


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # Ctrl-C belongs to pytest


@contextlib.asynccontextmanager
async def serving(engine: ScriptedEngine, port: int = 0) -> AsyncIterator[ScriptedEngine]:
    """Serve it on a loopback port; its `url` says where."""
    listener = socket.create_server(("127.0.0.1", port))
    engine.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = _Server(uvicorn.Config(engine.app(), log_level="critical", access_log=False, ws="websockets-sansio", lifespan="off"))
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield engine
    finally:
        server.should_exit = server.force_exit = True
        await task
        listener.close()
