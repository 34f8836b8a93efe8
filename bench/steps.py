"""Steps: 10 000 messages for 500 users who are away, of a category without steps, and of one with two; what steps cost.

Of the second, a share of the users reads everything before a step is due; each other user gets two mails of each message, at a real SMTP
server in this process. CPU is taken while messages are published, and from the first due time until each step is decided and each mail is
there. The CPU of an idle engine in that time is left out. Where everybody reads, two timers of each message fire for nothing. Compare that
with a delayed message that is cancelled, which is a timer and its cancelling, and with a timer of `timers`, which ends in a message.
"""

from __future__ import annotations

import asyncio
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import uvloop

from bench.books import now_s
from bench.processes import CpuMeter
from bench.progress import Phases
from bench.server import Engine, engine
from bench.system import per_message_us
from bench.workloads import BATCH
from tests.support.mail_server import MailServer, mail_server

USERS = 500
MESSAGES = 10_000
AFTER_S = 30
_IDLE_S = 5.0
_LOOK_S = 0.5
_AT_ONCE = 32
_PATIENCE_S = 300.0
_RULES = """
[category.plain]
[category.stepped]
steps = [{{ channel = "email", after = "{0}s", unless = "read" }}, {{ channel = "email", after = "{0}s", unless = "read" }}]
"""


async def measure(running: Engine, mails: MailServer, messages: int, readers: int, phases: Phases) -> dict[str, Any]:
    """One result; `readers`: users who read everything."""
    users = [f"away-{readers}-{n}" for n in range(USERS)]
    headers = {"Authorization": f"Bearer {running.token('bench', 'publish')}"}
    mails.mails.clear()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{running.port}", headers=headers, timeout=60, trust_env=False) as client:
        for user in users:
            (await client.put(f"/v1/users/{user}/channels", json={"email": f"{user}@example.org"})).raise_for_status()
        meter, began = CpuMeter(running.processes), now_s()
        await asyncio.sleep(_IDLE_S)
        idle = {role: spent / (now_s() - began) for role, spent in meter.spent_s().items()}
        spent: dict[str, dict[str, float]] = {}
        if readers == USERS:
            began, meter = now_s(), CpuMeter(running.processes)
            with phases.phase("delayed messages, cancelled"):
                await _cancel(client, await _publish(client, users, "plain", messages, delay=3600))
            spent["cancelled"] = _without(meter.spent_s(), idle, now_s() - began)
        stepped_s = published_s = now_s()
        for category in ("plain", "stepped"):
            began, meter = now_s(), CpuMeter(running.processes)
            with phases.phase(f"publishing, {category}"):
                await _publish(client, users, category, messages)
            spent[category] = _without(meter.spent_s(), idle, now_s() - began)
            stepped_s, published_s = began, now_s()
        for user in users[:readers]:
            (await client.post(f"/v1/inbox/read?user={user}", json={"all": True})).raise_for_status()
        in_time = now_s() < stepped_s + AFTER_S
        await asyncio.sleep(max(0.0, stepped_s + AFTER_S - now_s()))
        began, meter = now_s(), CpuMeter(running.processes)
        wanted = 2 * messages * (USERS - readers) // USERS
        give_up_s = published_s + AFTER_S + _PATIENCE_S
        with phases.phase("steps"):
            while (len(mails.mails) < wanted or now_s() < published_s + AFTER_S + 5) and now_s() < give_up_s:
                await asyncio.sleep(_LOOK_S)
        spent["due"] = _without(meter.spent_s(), idle, now_s() - began)
    per = {name: per_message_us(seconds, messages) for name, seconds in spent.items()}
    return {
        "bench": "steps",
        "system": running.name,
        "case": {"messages": messages, "steps": 2, "read": readers / USERS},
        "mails": len(mails.mails),
        "mails_wanted": wanted,
        "messages_mailed": len({mail.message["Message-ID"] for mail in mails.mails}),
        "read_in_time": in_time,
        "cpu_us_per_message": {"publish": per["plain"], "publish_with_steps": per["stepped"], "due": per["due"]},
        **({"cpu_us_per_timer_cancelled": per["cancelled"]} if "cancelled" in per else {}),
        "cpu_us_per_step_skipped" if readers == USERS else "cpu_us_per_step": round(
            (per["stepped"]["total"] - per["plain"]["total"] + per["due"]["total"]) / 2, 1
        ),
    }


async def _publish(client: httpx.AsyncClient, users: list[str], category: str, messages: int, **members: Any) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    message = {"type": "alert", "category": category, **members}
    for start in range(0, messages, BATCH):
        numbers = range(start, min(start + BATCH, messages))
        items = [{"user": users[n % USERS], "data": {"title": f"Disk {n} is full"}, **message} for n in numbers]
        results += (await client.post("/v1/notifications", json=items)).raise_for_status().json()["results"]
    return results


async def _cancel(client: httpx.AsyncClient, results: list[dict[str, Any]]) -> None:
    """Cancel delayed messages, some at once, each by a request."""
    waiting = iter(results)

    async def some() -> None:
        for result in waiting:
            (await client.delete(f"/v1/scheduled/{result['scheduled_id']}")).raise_for_status()

    await asyncio.gather(*(some() for _ in range(_AT_ONCE)))


def _without(spent: dict[str, float], idle: dict[str, float], seconds: float) -> dict[str, float]:
    """CPU by role but for what an idle engine spends in so many seconds."""
    return {role: max(0.0, cpu - idle.get(role, 0.0) * seconds) for role, cpu in spent.items()}


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=MESSAGES, help="of each category (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start a mail server and an engine, measure with all users reading and with half of them, stop both."""
    with tempfile.TemporaryDirectory(prefix="engine-bench-steps-") as folder, mail_server() as mails:
        rules = Path(folder, "rules.toml")
        rules.write_text(_RULES.format(AFTER_S))
        with engine(rules_path=str(rules), smtp_url=mails.url, mail_from="bench@example.com") as running:
            for readers in (USERS, USERS // 2):
                yield uvloop.run(measure(running, mails, args.messages, readers, args.phases))
