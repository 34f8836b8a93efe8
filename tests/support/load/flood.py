"""Publishers that send at a fixed rate whatever comes back, never repeat what is refused, and remember what was accepted.

`python -m tests.support.load.flood < TASK` floods from a process of its own, at the lowest priority: on a machine shared with the engine,
a generator that comes first would measure itself. Times are of the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from tests.support.load.poster import Poster

NICENESS: Final = 19
_RETRIES_KEPT: Final = 2000


class Wave(msgspec.Struct):
    """One priority's part of a flood. `size`: items per request."""

    priority: str
    rate: float
    size: int
    connections: int
    users: list[str]


class Flood(msgspec.Struct):
    """What a process is to send, from `start` on (monotonic seconds)."""

    port: int
    token: str
    start: float
    seconds: float
    waves: list[Wave]


class Outcome(msgspec.Struct):
    """What became of one wave. `unsent`: due, and no connection was free; `accepted`: user -> sequence numbers."""

    priority: str
    due: int = 0
    unsent: int = 0
    statuses: dict[str, int] = {}
    http: dict[str, int] = {}
    retry_after_s: list[int] = []
    answers_s: list[float] = []  # to a 202
    refusals_s: list[float] = []  # to a 429
    accepted: dict[str, list[int]] = {}


class Report(msgspec.Struct):
    outcomes: list[Outcome]
    cpu_s: float


class _Result(msgspec.Struct):
    user: str
    status: str
    seq: int = 0


class _Answer(msgspec.Struct):
    results: list[_Result] = []


class Data(msgspec.Struct):
    """The payload: when it was meant to be sent."""

    due: float
    note: str = "paid by card, thank you for your order"
    amount: str = "129.90"


_answers: Final = msgspec.json.Decoder(_Answer)
_encode: Final = msgspec.json.Encoder().encode


async def pour(port: int, token: str, wave: Wave, start: float, seconds: float) -> Outcome:
    """One wave; returns when every request was answered."""
    outcome = Outcome(wave.priority)
    statuses: Counter[str] = Counter()
    http: Counter[str] = Counter()
    free: asyncio.Queue[Poster] = asyncio.Queue()
    for _ in range(wave.connections):
        free.put_nowait(await Poster.open(port, f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"))
    turn = 0

    async def send(poster: Poster, dues: Sequence[float]) -> None:
        nonlocal turn
        items = []
        for due in dues:
            items.append({"user": wave.users[turn % len(wave.users)], "type": "bench.flood", "priority": wave.priority, "data": Data(due)})
            turn += 1
        before = time.monotonic()
        status, headers, body = await poster.request("POST", "/v1/notifications", _encode(items))
        took = time.monotonic() - before
        http[str(status)] += 1
        (outcome.answers_s if status == 202 else outcome.refusals_s).append(took)
        if status == 429 and len(outcome.retry_after_s) < _RETRIES_KEPT:
            outcome.retry_after_s.append(int(headers["retry-after"]))
        results = _answers.decode(body).results
        for result in results:
            statuses[result.status] += 1
            if result.status == "accepted":
                outcome.accepted.setdefault(result.user, []).append(result.seq)
        statuses["refused whole"] += 0 if results else len(items)
        free.put_nowait(poster)

    sent = 0
    await asyncio.sleep(max(start - time.monotonic(), 0))
    async with asyncio.TaskGroup() as requests:
        # A request leaves when its last message is due; the others have waited for it, as they would at a publisher.
        while (due_s := (sent + wave.size - 1) / wave.rate) < seconds and (elapsed := time.monotonic() - start) < seconds:
            if elapsed < due_s:
                await asyncio.sleep(due_s - elapsed)
                continue
            poster = await free.get()
            requests.create_task(send(poster, [start + n / wave.rate for n in range(sent, sent + wave.size)]))
            sent += wave.size
    outcome.due = int(wave.rate * seconds)
    outcome.unsent = outcome.due - sent
    outcome.statuses, outcome.http = dict(statuses), dict(http)
    while not free.empty():
        free.get_nowait().close()
    return outcome


async def flood(task: Flood) -> Report:
    """All waves at once."""
    outcomes = await asyncio.gather(*(pour(task.port, task.token, wave, task.start, task.seconds) for wave in task.waves))
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Report(list(outcomes), used.ru_utime + used.ru_stime)


async def flood_elsewhere(task: Flood) -> Report:
    """As `flood`, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.load.flood", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate(_encode(task))
    if process.returncode or not output:
        raise RuntimeError(f"the flood ended with {process.returncode} and said {len(output)} bytes")
    return msgspec.json.decode(output, type=Report)


def main() -> None:
    import uvloop

    os.nice(NICENESS - os.nice(0))
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Flood)
    sys.stdout.buffer.write(_encode(uvloop.run(flood(task))))


if __name__ == "__main__":
    main()
