"""Requests an engine started on a recorded data directory, and returns its answers in a form that can be compared.

`expected.json` of a recording lists what to wait for, the requests to send before anybody connects, the users who connect, and the
requests to send then, each with the answer of the version that recorded it. `observe` sends all of them to a running engine and returns
the same structure with that engine's answers.

Left out of the answers, because it may differ: when something was decided by the engine that opened the directory, what only memory
holds of a message (that it was accepted, how often it was sent), sentences for people, and which gaps were announced together. Every
user who connects acknowledges every message, so a directory can be observed once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import httpx
import jwt
from redis.asyncio import Redis
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

DAY_S: Final = 86_400
YEAR_S: Final = 365 * DAY_S

RECORDING: Final = Path(__file__).parents[1] / "data" / "65fafe9"

SETTINGS: Final = {
    "ENGINE_INTERNAL_TTL_S_MAX": str(60 * YEAR_S),
    "ENGINE_TTL_S_DEFAULT": str(60 * YEAR_S),
    "ENGINE_INTERNAL_DELAY_S_MAX": str(60 * YEAR_S),
    "ENGINE_INTERNAL_IDEMPOTENCY_CALLER_S": str(60 * YEAR_S),
    "ENGINE_INTERNAL_COLLAPSE_WINDOW_S_MAX": str(50 * YEAR_S),
    "ENGINE_INTERNAL_CONFLATE_OFFLINE_MIN": "10",
    "ENGINE_RULES_PATH": str(RECORDING / "rules.toml"),
}
"""Environment of the engine that opens the recording: that of the version that recorded it. Without it a repeated publish is rejected:
its times are out of range, and its category unknown."""

PROBE: Final = {"X-Client-ID": "recorder"}
"""Headers of a heartbeat that only requests the newest number."""

_QUIET_S: Final = 3.0  # a connection that has what was expected and receives nothing for so long has received everything
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.1
_MEMORY_STEPS: Final = ("accepted", "sent")
_WELCOME: Final = ("epoch", "user", "seq", "resumed", "from")


class PublicInterface:
    """The public interface of a running engine.

    Args:
        url: `http://host:port`.
        redis_url: of its Redis, where other systems read dead letters.
        secret: signs its tokens.
    """

    def __init__(self, url: str, redis_url: str, secret: str) -> None:
        self.url = url
        self.redis_url = redis_url
        self._secret = secret
        self._http = httpx.AsyncClient(base_url=url, timeout=30, trust_env=False)

    async def __aenter__(self) -> PublicInterface:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._http.aclose()

    def token(self, user: str, scope: str, tenant: str, topics: list[str] | None = None) -> str:
        """A token that is valid for an hour."""
        claims = {"sub": user, "scope": scope, "tenant": tenant, "exp": time.time() + 3600}
        return jwt.encode(claims | ({} if topics is None else {"topics": topics}), self._secret, "HS256")

    async def request(self, question: Mapping[str, Any]) -> tuple[int, Any]:
        """Send one request: `method` and `path`; `tenant`, `user` and `scope` where they are not the defaults; `headers`; `json`, or
        `text` of a media `type`. Returns the status and the body."""
        token = self.token(question.get("user", "app"), question.get("scope", "publish"), question.get("tenant", "default"))
        headers = {"Authorization": f"Bearer {token}", **question.get("headers", {})}
        content = None
        if "json" in question:
            content, headers["Content-Type"] = json.dumps(question["json"]), "application/json"
        elif "text" in question:
            content, headers["Content-Type"] = question["text"], question["type"]
        answer = await self._http.request(question["method"], question["path"], headers=headers, content=content)
        return answer.status_code, answer.json() if answer.content else None

    @contextlib.asynccontextmanager
    async def connected(
        self, user: str, tenant: str, *, cursor: str = "", device: str = "", topics: list[str] | None = None
    ) -> AsyncIterator[UserConnection]:
        """A WebSocket of a user, once its welcome has arrived."""
        params = {name: value for name, value in (("last_event_id", cursor), ("device", device)) if value}
        url = httpx.URL(self.url.replace("http", "ws", 1) + "/v1/ws", params=params)
        headers = {"Authorization": f"Bearer {self.token(user, 'connect', tenant, topics)}"}
        async with connect(
            str(url), subprotocols=[Subprotocol("notify.v1.json")], additional_headers=headers, proxy=None, max_size=None
        ) as socket:
            connection = UserConnection(socket)
            connection.welcome = await connection.until("welcome")
            yield connection


class UserConnection:
    """One WebSocket and what it received: messages by number, the first copy of each in the order of arrival, and gaps."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.welcome: dict[str, Any] = {}
        self.messages: dict[int, dict[str, Any]] = {}
        self.gaps: list[tuple[int, int]] = []

    async def send(self, **frame: Any) -> None:
        """Send one frame."""
        await self._socket.send(json.dumps(frame))

    async def frame(self, within_s: float = 20) -> dict[str, Any]:
        """The next frame; its messages or gap are stored. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            frame: dict[str, Any] = json.loads(await self._socket.recv())
        if frame["type"] == "messages":
            for message in frame["messages"]:
                self.messages.setdefault(message["seq"], message)
        elif frame["type"] == "gap":
            self.gaps.append((frame["from"], frame["to"]))
        return frame

    async def until(self, kind: str) -> dict[str, Any]:
        """The next frame of this type."""
        while (frame := await self.frame())["type"] != kind:
            pass
        return frame

    async def have(self, count: int) -> None:
        """Wait for so many messages, from the beginning."""
        while len(self.messages) < count:
            await self.frame()

    async def drain(self, count: int = 0, gaps: list[list[int]] | None = None) -> None:
        """Acknowledge everything until so many messages and these gaps have arrived, or a minute has passed without a frame; then until
        nothing arrives for some seconds."""
        with contextlib.suppress(TimeoutError):
            while True:
                complete = len(self.messages) >= count and (gaps is None or _joined(self.gaps) == gaps)
                frame = await self.frame(_QUIET_S if complete else _PATIENCE_S)
                if frame["type"] == "messages":
                    await self.send(type="ack", seq=max(self.messages))

    def seen(self) -> dict[str, Any]:
        """Everything received, for comparison."""
        welcome = {name: self.welcome[name] for name in _WELCOME}
        return {"welcome": welcome, "messages": list(self.messages.values()), "gaps": _joined(self.gaps)}


async def observe(engine: PublicInterface, expected: Mapping[str, Any]) -> dict[str, Any]:
    """`expected` with the answers of this engine in place of the recorded ones."""
    recording = expected["recording"]
    await _wait(engine, expected["wait"])
    seen: dict[str, Any] = {"recording": recording, "wait": expected["wait"]}
    seen["before"] = [await _answered(engine, question, recording["killed_ms"]) for question in expected["before"]]
    mailboxes = await asyncio.gather(*(_read(engine, box) for box in expected["mailboxes"]))
    seen["mailboxes"] = list(mailboxes)
    seen["after"] = [await _answered(engine, question, recording["killed_ms"]) for question in expected["after"]]
    seen["dead_letters"] = await _dead_letters(engine, list(expected["dead_letters"]))
    status = await _until(engine, {"method": "GET", "path": "/v1/status", "scope": "operator"}, lambda status, _: status == 200)
    seen["quarantined"] = status["totals"]["quarantined"]
    return seen


async def _wait(engine: PublicInterface, wait: Mapping[str, Any]) -> None:
    """Wait until everything due between recording and opening has happened: timers fired, windows ended."""
    for tenant, sid in wait["timers"]:
        await _until(engine, {"method": "GET", "path": f"/v1/scheduled/{sid}", "tenant": tenant}, lambda status, _: status == 409)
    for tenant, user, seq in wait["heads"]:
        probe = {"method": "GET", "path": "/v1/heartbeat", "tenant": tenant, "user": user, "scope": "connect", "headers": PROBE}
        await _until(engine, probe, partial(_reaches, seq))


def _reaches(seq: int, status: int, body: Any) -> bool:
    return bool(status == 200 and body["seq"] >= seq)


async def _until(engine: PublicInterface, question: Mapping[str, Any], holds: Callable[[int, Any], bool]) -> Any:
    """Repeat a request until `holds(status, body)`; returns the body."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        status, body = await engine.request(question)
        if holds(status, body):
            return body
        if time.monotonic() > deadline:
            raise AssertionError(f"{question['method']} {question['path']} still answers {status} {body}")
        await asyncio.sleep(_POLL_S)


async def _answered(engine: PublicInterface, question: Mapping[str, Any], killed_ms: int) -> dict[str, Any]:
    """The request with the answer of this engine; one past its `valid_until_ms` is not sent and keeps the recorded answer."""
    if question.get("valid_until_ms", 1 << 62) < time.time() * 1000:
        return dict(question)
    status, body = await engine.request(question)
    return {**question, "answer": [status, _stable(question, body, killed_ms, round(time.time() * 1000))]}


async def _read(engine: PublicInterface, box: Mapping[str, Any]) -> dict[str, Any]:
    """Connect as a user, with the cursor if there is one, and receive everything."""
    async with engine.connected(box["user"], box["tenant"], cursor=box.get("cursor", "")) as connection:
        await connection.drain(len(box.get("messages", ())), box.get("gaps"))
        return {**box, **connection.seen()}


async def _dead_letters(engine: PublicInterface, tenants: list[str]) -> dict[str, list[dict[str, Any]]]:
    storage = Redis.from_url(engine.redis_url, decode_responses=True)
    try:
        letters: dict[str, Any] = {tenant: await storage.xrange(f"dead:{tenant}") for tenant in tenants}
        return {tenant: [fields for _, fields in entries] for tenant, entries in letters.items()}
    finally:
        await storage.aclose()


def _stable(question: Mapping[str, Any], body: Any, killed_ms: int, now_ms: int) -> Any:
    """An answer without what may differ from one opening to the next, see the module's docstring."""
    if isinstance(body, dict) and "status" in body and "title" in body:
        return [{name: value for name, value in result.items() if name != "reason"} for result in body.get("results", ())]
    if isinstance(body, dict) and "timeline" in body:
        steps = [step for step in body["timeline"] if step["event"] not in _MEMORY_STEPS]
        return {**body, "timeline": [_recorded(step, killed_ms) for step in steps]}
    if question["path"] == "/v1/explain":
        return {"results": [_decided(result, now_ms) for result in body["results"]]}
    return body


def _recorded(step: dict[str, Any], killed_ms: int) -> dict[str, Any]:
    """A step of a timeline; without time and sentence when it was decided by the engine that opened the directory."""
    if step.get("at", 0) <= killed_ms:
        return step
    return {"event": step["event"], "reason": step.get("reason", "").partition(":")[0]}


def _decided(result: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """A decision without its sentences, and without an end that depends on the current time: of quiet hours, or of a new window."""
    decision = {**result, "reasons": [reason["code"] for reason in result["reasons"]]}
    if decision.get("until", 0) < now_ms + YEAR_S * 1000:
        decision.pop("until", None)
    return decision


def _joined(gaps: list[tuple[int, int]]) -> list[list[int]]:
    """Ranges that touch as one, ascending."""
    joined: list[list[int]] = []
    for first, last in sorted(gaps):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return joined
