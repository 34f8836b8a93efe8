"""What an engine with everything going on answers to the admin page: every figure there is, and whatever users wrote is markup."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.async_api import Page, Route

NASTY = '<img src=x onerror="document.title=1"><b>bold</b>'


def now_ms() -> int:
    return int(time.time() * 1000)


def status() -> dict[str, Any]:
    def row(role: str, index: int = 0, **more: Any) -> dict[str, Any]:
        about = {"role": role, "index": index, "pid": 4000 + index, "node": "10.0.0.1", "alive": True, "ready": True, "restarts": index}
        return {**about, "cpu_pct": 31.4 * (index + 1), "rss_bytes": 91_000_000, "started_ms": now_ms() - 3_600_000, **more}

    totals = {
        "connections": 1200, "users": 900, "pending": 31, "published": 120_345, "delivered": 120_300, "acknowledged": 120_314,
        "retried": 12, "dead_lettered": 3, "expired": 1, "quarantined": 2, "send_p50_ms": 1.4, "send_p95_ms": 3.9, "send_p99_ms": 9.0,
        "ack_p50_ms": 1.0, "ack_p95_ms": 4.2, "ack_p99_ms": None,
    }  # fmt: skip
    edges = [
        row("edge", connections={"websocket": 900, "sse": 300, "poll": 0}, awaiting=3, delay_ms=0.4, shed={"low": 7}, degraded={}),
        row("edge", 1, connections={}, awaiting=0, delay_ms=0, degraded={"rules": f"line 3: {NASTY}"}),
    ]
    shards = [row("shard", users=900, pending=31, lag_ms=0, storage="ok"), row("shard", 1, alive=False, ready=False)]
    decision = {"at_ms": now_ms(), "role": "shards", "action": "scale", "have": 2, "wanted": 3, "reason": "busy for 10 s"}
    scaling = {
        "settled": False, "wanted": {"shards": 3, "schedulers": 1, "edges": 2}, "have": {"shards": 2, "schedulers": 1, "edges": 2},
        "by": NASTY, "slots_left": 12, "joining": ["shard-2"], "leaving": [], "upgrading": [], "autoscale": "on", "decisions": [decision],
        "waiting": [{"actor": "shard-2", "resource": "engine_shard", "offered": 2}],
    }  # fmt: skip
    redis = {"alive": True, "version": "8.1.0", "pid": 99, "uptime_s": 4000, "used_memory_bytes": 12_000_000, "aof_bytes": 55_000_000}
    return {
        "version": "1.2.3", "ready": True, "edges": edges, "shards": shards, "schedulers": [row("scheduler", armed=44, fired=9, lag_ms=0)],
        "archivists": [row("archivist", waiting=0, lag_ms=0, database="ok")],
        "controller": row("controller"), "redis": {**redis, "restarts": 0}, "scaling": scaling, "totals": totals,
    }  # fmt: skip


def load() -> dict[str, Any]:
    """Half an hour, with a gap in it."""
    end = now_ms()
    points = [
        {
            "at": end - back * 10_000, "over_ms": 10_000, "published": 400 + (back * 37) % 130, "delivered": 500, "acknowledged": 390,
            "connections": 1000 + back, "users": 900, "pending": 30, "timers": 40, "shard_cpu_pct": 40.5, "edge_cpu_pct": 20.1,
            "send_p95_ms": 3 + back % 5, "ack_p95_ms": 6.5, "redis_bytes": 12_000_000, "retried": back % 3,
        }
        for back in range(180, -1, -1)
        if not 60 < back < 75
    ]  # fmt: skip
    return {"every_ms": 10_000, "points": points}


def letters(count: int = 3) -> list[dict[str, Any]]:
    about = {"at": now_ms() - 90_000, "user": NASTY, "type": NASTY, "priority": "normal", "attempts": 2, "reason": NASTY}
    return [{"letter": f"{number}-0", "id": f"d{number}", "seq": number, **about} for number in range(count, 0, -1)]


def user(name: str) -> dict[str, Any]:
    since = now_ms() - 60_000
    connection = {"edge": "edge-0", "session": "e0-1", "device": NASTY, "transport": "websocket", "since": since, "sent": 17, "rtt_ms": 20}
    message = {
        "seq": 17,
        "id": NASTY,
        "type": NASTY,
        "priority": "high",
        "ts": since,
        "expires": since + 9_000_000,
        "count": 1,
        "data": NASTY,
    }
    timer = {"scheduled_id": "3-x", "scheduled_at": since + 200_000, "created_at": since, "user": name, "notification": {"type": NASTY}}
    profile = {"zone": "UTC", "quiet": [{"from": "22:00", "to": "07:00"}]}
    return {
        "tenant": "default", "user": name, "presence": "connected", "active_at": since, "head": 17, "floor": 15, "pending": 2,
        "in_memory": 1, "connections": [{**connection, "unacknowledged": 2, "oldest": since, "exhausted": 1}], "topics": [NASTY],
        "windows": [{"collapse": NASTY, "count": 3, "closes_ms": since + 100_000}], "events": {NASTY: since},
        "profile": {**profile, "mute": {"types": [NASTY], "targets": []}, "digest": {"types": []}},
        "decisions": [{"id": NASTY, "at": since, "event": "suppressed", "reason": NASTY}], "messages": [message], "timers": [timer],
    }  # fmt: skip


def busy_user(name: str) -> dict[str, Any]:
    """One with as many rows in every list as the engine answers."""
    found = user(name)
    lists = {"messages": 50, "timers": 50, "decisions": 32, "connections": 12}
    for member, count in lists.items():
        found[member] = [{**found[member][0], **_numbered(member, number)} for number in range(count)]
    topics = [f"topic-{number}" for number in range(60)]
    return {**found, "pending": 70, "in_memory": 60, "topics": topics}


def _numbered(member: str, number: int) -> dict[str, Any]:
    """What differs between the rows of a list: ids as publishers and the engine make them."""
    id, type = f"01a0bc5e-7d3f-7abc-9def-{number:012d}", f"post.{'liked' if number % 2 else 'commented'}"
    if member == "messages":
        return {"seq": 70 - number, "id": id, "type": type}
    if member == "timers":
        return {"scheduled_id": f"17-{id}", "notification": {"type": type}}
    if member == "connections":
        return {"session": f"e0-{id}", "device": f"phone-{number}"}
    return {"id": id, "reason": "2 an hour"}


def busy_history(query: dict[str, list[str]]) -> dict[str, Any]:
    """Sixty rows, as many at a time as are asked for."""
    begin, limit = int(query.get("before", ["0"])[0]), int(query.get("limit", ["50"])[0])
    rows = [{"at": now_ms(), "event": "sent", **_numbered("messages", number)} for number in range(begin, min(begin + limit, 60))]
    return {"tenant": "default", "history": rows, **({"before": str(begin + limit)} if begin + limit < 60 else {})}


def history(name: str) -> dict[str, Any]:
    row = {"at": now_ms(), "user": name, "event": "sent", "id": NASTY, "type": NASTY, "device": NASTY, "reason": NASTY, "attempt": 2}
    return {"tenant": "default", "history": [row, {**row, "event": "acknowledged", "rtt_ms": 20, "skew_ms": -900}]}


def rules(active: int, staged: dict[str, Any] | None) -> dict[str, Any]:
    about = {"at": now_ms(), "by": NASTY}
    states = {active: "active", (staged or {}).get("version"): "staged"}
    versions = [{"version": number, "rules": 3, "bytes": 900, "state": states.get(number, "stored"), **about} for number in (3, 2)]
    rule = {"name": NASTY, "events": [NASTY], "type": NASTY, "category": "touch", "matched": 9, "sent": 5, "skipped": 4}
    edges = [{"edge": "edge-0", "version": active, "staged": 0, "share": 0, "refused": f"line 3: {NASTY}"}]
    return {
        "revision": "r1", "source": "stored", "active": active, **({"staged": staged} if staged else {}), "versions": versions,
        "edges": edges, "file": {"path": "rules.toml", "refused": NASTY}, "rules": [rule],
        "changes": [{"what": "staged", "version": 3, "share": 0.1, **about}],
    }  # fmt: skip


SLOW = {
    "tenant": "default", "user": NASTY, "behind": 4, "edge": "edge-0", "session": "s", "device": NASTY, "transport": "sse", "since": 1,
    "sent": 4, "unacknowledged": 2, "oldest": 5, "rtt_ms": 0, "exhausted": 0,
}  # fmt: skip
RECORD = {"part": "shard-0", "origin": NASTY, "at": 5, "bytes": 100, "beginning": "0102", "key": "shard-0:quarantine"}
TENANT = {"tenant": "default", "users": 95, "stored_bytes": 5000, "topics": 1, "signal_names": 0}


class OperatorAnswers:
    """Answers the page's requests in the browser. `asked` has what it wanted: method and address."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.bodies: list[Any] = []
        self.letters = letters()
        self.failing: dict[str, int] = {}  # path -> status
        self.busy = False  # the user has much of everything
        self.active = 2  # version of the rules
        self.staged: dict[str, Any] | None = None  # likewise, and its share

    async def serve(self, page: Page) -> None:
        await page.route("**/v1/**", self._answer)

    async def _answer(self, route: Route) -> None:
        url = urlsplit(route.request.url)
        self.asked.append(f"{route.request.method} {url.path}{'?' if url.query else ''}{url.query}")
        body = route.request.post_data_json if route.request.post_data else None
        if body is not None:
            self.bodies.append(body)
        failing = self.failing.get(url.path, 0)
        if failing:
            problem = {"status": failing, "title": "no", "detail": f"not now: {NASTY}"}
            await route.fulfill(status=failing, body=json.dumps(problem), content_type="application/problem+json")
            return
        if url.path.startswith("/v1/rules/versions/"):
            await route.fulfill(body=f"# {NASTY}", content_type="application/toml")
            return
        await route.fulfill(body=json.dumps(self._of(url.path, parse_qs(url.query), body)), content_type="application/json")

    def _of(self, path: str, query: dict[str, list[str]], body: Any) -> Any:
        if path == "/v1/status":
            return status()
        if path == "/v1/load":
            return load()
        if path == "/v1/tenants":
            return {"tenants": [TENANT], "quotas": {"tenant_users_max": 100, "tenant_stored_bytes_max": 5000}}
        if path == "/v1/topics":
            return {"tenant": query["tenant"][0], "total": 1, "topics": [{"topic": NASTY, "subscribers": 95}]}
        if path == "/v1/slow-clients":
            return {"slow_ms": 1000, "clients": [SLOW, {**SLOW, "exhausted": 1}]}
        if path == "/v1/quarantine":
            return {"total": 2, "records": [RECORD]}
        if path == "/v1/explain":
            return {"results": [{"user": "u", "decision": "suppress", "reasons": [{"code": "cap", "detail": NASTY}]}]}
        if path == "/v1/history":
            return busy_history(query) if self.busy else history(query["user"][0])
        if path.startswith("/v1/rules"):
            return self._rules(path, body)
        if path.startswith("/v1/dead-letters"):
            return self._letters(path, body)
        if "/messages/" in path:
            return {"id": NASTY, "state": "sent", "timeline": [{"at": now_ms(), "event": "sent", "reason": NASTY}]}
        return busy_user("ann") if self.busy else user(NASTY)

    def _rules(self, path: str, body: Any) -> Any:
        if path == "/v1/rules/dry-run":
            event = {"tenant": "default", "type": NASTY, "user": NASTY, "id": "", "at": now_ms()}
            counts = {NASTY: {"now": 5, "then": 6}}
            return {"against": 2, "events": 9, "same": 8, "rules": counts, "differences": [{"event": event, "added": [{}]}]}
        if path == "/v1/rules/stage":
            self.staged = body
        elif path == "/v1/rules/rollback":
            self.staged = None
        return rules(self.active, self.staged)

    def _letters(self, path: str, body: Any) -> Any:
        if body is None and path == "/v1/dead-letters":
            return {"tenant": "default", "total": len(self.letters), "dead_letters": self.letters}
        if body is None:
            return {"letter": "3-0", "notification": {"data": NASTY}}
        chosen = [letter for letter in self.letters if letter["letter"] in body["letters"]]
        self.letters = [letter for letter in self.letters if letter not in chosen]
        if path.endswith("drop"):
            return {"dropped": len(chosen)}
        return {"results": [{"letter": letter["letter"], "status": "accepted"} for letter in chosen]}
