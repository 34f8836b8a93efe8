"""What docs/PROTOCOL-RECEIVING.md asks of a client, one function each.

Its docstring is the promise. An assertion that fails tells how it was broken.

The client runs against a scripted server, whose state the functions read and set: what it was sent, what it was told, what goes wrong.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.conformance.client_under_test import ClientUnderTest
from tests.conformance.connections import DEADLINE_S, TRANSPORTS, Transport
from tests.support.scripted_engine import ScriptedEngine, serving, token

TICK_S = 0.02
STAYS_AWAY_S = 1.0  # a client that must not come back would have, 15 times
REFUSALS_MAX = 3  # one on each transport, or of as many tokens
SLOW_MS = 800  # between attempts, after those that did not last
RANDOM_STEPS = 60
SWITCHES = 2  # to each transport
WINDOW = 256
FRAME_BYTES_MAX = 64 << 10


class Trial:
    """A client under test and the server that it has been given."""

    def __init__(self, client: ClientUnderTest, server: ScriptedEngine) -> None:
        self.client = client
        self.server = server

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            about = f"{self.server.connects=} {self.server.acks=} {self.server.frames=} pending={sorted(self.server.pending)}"
            assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S} s; {about}"[:3000]
            await asyncio.sleep(TICK_S)

    async def until_shown(self, count: int) -> list[int]:
        deadline = time.monotonic() + DEADLINE_S
        while len(shown := await self.client.shown()) < count:
            assert time.monotonic() < deadline, f"{count} messages: shown were {shown}; {self.server.connects=}"
            await asyncio.sleep(TICK_S)
        return shown

    async def shows(self, expected: list[int]) -> None:
        """These and no others so far, in this order."""
        shown = await self.until_shown(len(expected))
        assert shown == expected, f"shown were {shown}, not {expected}"

    async def connected(self, times: int = 1) -> None:
        def holds() -> bool:
            connects = self.server.connects
            return len(connects) >= times and (bool(self.server.queues) or connects[-1][0] == "poll")

        await self.until(holds, f"connection {times}")

    async def all_acknowledged(self) -> None:
        await self.until(lambda: not self.server.pending, "acknowledgements")

    async def cut(self, code: int = 1012) -> None:
        """End all connections and wait for the next one."""
        before = len(self.server.connects)
        self.server.cut(code)
        await self.connected(before + 1)

    @property
    def cursor(self) -> str | None:
        """What the client presented when it came last."""
        return self.server.connects[-1][1]


ClientPromise = Callable[[Trial, random.Random], Awaitable[None]]
PROMISES: list[ClientPromise] = []
MANUAL: set[ClientPromise] = set()
NEEDS: dict[ClientPromise, Transport] = {}


def promise(
    *, manual: bool = False, needs: Transport = "websocket", also: tuple[Transport, ...] = ()
) -> Callable[[ClientPromise], ClientPromise]:
    """Add to those that are checked.

    Args:
        manual: with a client that acknowledges when it is told to.
        needs: of clients that fall back so far. Transports above this one are refused when it begins.
        also: the same is checked over these, as a promise of its own.
    """

    def add(check: ClientPromise) -> ClientPromise:
        for transport in (needs, *also):
            variant = check if transport == needs else _over(check, transport)
            PROMISES.append(variant)
            NEEDS[variant] = transport
            if manual:
                MANUAL.add(variant)
        return check

    return add


def _over(check: ClientPromise, transport: Transport) -> ClientPromise:
    async def variant(trial: Trial, random: random.Random) -> None:
        await check(trial, random)
        assert {used for used, _ in trial.server.connects} == {transport}

    variant.__name__ = f"{check.__name__}_over_{transport}"
    variant.__doc__ = f"Over {transport} too: {check.__doc__}"
    return variant


def promises_of(client: ClientUnderTest) -> list[ClientPromise]:
    return [check for check in PROMISES if NEEDS[check] in client.transports]


@asynccontextmanager
async def trial_of(client: ClientUnderTest, check: ClientPromise) -> AsyncIterator[Trial]:
    """The client on a scripted server of its own, which has what the promise needs to be in place."""
    async with serving(ScriptedEngine()) as server:
        if "silent" in check.__name__:
            server.welcome |= {"heartbeat_ms": 400, "timeout_ms": 1500}
        if "probes" in check.__name__:
            server.welcome |= {"heartbeat_ms": 900}
        if "slows" in check.__name__:
            server.welcome |= {"reconnect": {"delays_ms": [30, SLOW_MS], "jitter": 0.0}}
        server.refuse = {"sse": {"websocket": 404}, "poll": {"websocket": 404, "sse": 404}}.get(NEEDS[check], {})
        await client.start(server.url, token(), manual=check in MANUAL)
        try:
            yield Trial(client, server)
        finally:
            await client.stop()


# -- once, in order, acknowledged --------------------------------------------------------------------------------------
@promise()
async def shows_once_in_order(trial: Trial, _random: random.Random) -> None:
    """Every message is shown once, in order, and acknowledged."""
    await trial.connected()
    for _ in range(20):
        trial.server.publish()
    await trial.all_acknowledged()
    await trial.shows(list(range(1, 21)))


@promise(also=("sse", "poll"))
async def resumes(trial: Trial, _random: random.Random) -> None:
    """After a break the client comes back with its cursor, and misses nothing."""
    await trial.connected()
    trial.server.publish()
    await trial.all_acknowledged()
    await trial.cut()
    assert trial.cursor == "7-1"
    trial.server.publish()
    await trial.all_acknowledged()
    await trial.shows([1, 2])


@promise(also=("sse", "poll"))
async def acknowledges_repeats_of_settled(trial: Trial, _random: random.Random) -> None:
    """A repeat of a settled message is not shown, and is acknowledged again: the server has not heard."""
    await trial.connected()
    message = trial.server.publish()
    await trial.all_acknowledged()
    trial.server.pending[1] = message
    trial.server.again(1)
    await trial.all_acknowledged()
    trial.server.publish()
    await trial.shows([1, 2])


@promise(manual=True, also=("sse",))
async def ignores_repeats_of_unsettled(trial: Trial, _random: random.Random) -> None:
    """A repeat of a message that is being handled is neither shown again nor acknowledged."""
    await trial.connected()
    trial.server.publish()
    await trial.until_shown(1)
    trial.server.again(1)
    trial.server.publish()
    await trial.shows([1, 2])
    await trial.client.ack("m2")
    await trial.until(lambda: 2 not in trial.server.pending, "the acknowledgement of m2")
    assert sorted(trial.server.pending) == [1]


@promise(manual=True, also=("sse",))
async def cursor_waits(trial: Trial, _random: random.Random) -> None:
    """The cursor does not pass a message that is not settled: presenting it would acknowledge that one."""
    await trial.connected()
    trial.server.publish()
    trial.server.publish()
    await trial.until_shown(2)
    await trial.client.ack("m2")
    await trial.until(lambda: sorted(trial.server.pending) == [1], "the acknowledgement of m2")
    await trial.cut()
    assert trial.cursor in (None, "7-0")
    await trial.client.ack("m1")
    await trial.all_acknowledged()
    await trial.cut()
    assert trial.cursor == "7-2"


@promise(manual=True)
async def acknowledges_in_frames_that_fit(trial: Trial, _random: random.Random) -> None:
    """Acknowledgements by id are frames of 64 KiB at most: a longer one ends the connection."""
    server = trial.server
    ids = [f"{number:通>128}" for number in range(WINDOW)]
    await trial.connected()
    for id in ids:
        server.publish(id=id)
    await trial.until_shown(WINDOW)
    server.refuse = dict.fromkeys(TRANSPORTS, 503)
    server.cut()
    await trial.until(lambda: not server.queues, "the end of the connection")
    for id in ids[1:]:
        await trial.client.ack(id)
    del server.refuse["websocket"]  # a client whose next try is by another way would send no frame
    await trial.until(lambda: sorted(server.pending) == [1], "acknowledgements")
    sizes = [len(json.dumps(frame, ensure_ascii=False).encode()) for frame in server.frames]
    assert max(sizes) <= FRAME_BYTES_MAX, f"a frame has {max(sizes)} bytes"


@promise(manual=True, also=("sse", "poll"))
async def repeats_nacks(trial: Trial, _random: random.Random) -> None:
    """A refusal is repeated on every new connection until it is confirmed; until then the cursor does not pass the message."""
    nack = {"type": "nack", "ids": ["m1"], "reason": "no such post"}
    trial.server.confirms = False
    await trial.connected()
    trial.server.publish()
    await trial.until_shown(1)
    await trial.client.nack("m1", "no such post")
    await trial.until(lambda: nack in trial.server.frames, "the refusal")
    trial.server.frames.clear()
    await trial.cut()
    assert trial.cursor in (None, "7-0")
    await trial.until(lambda: nack in trial.server.frames, "the refusal on the new connection")
    trial.server.confirms = True
    await trial.cut()
    await trial.until(lambda: not trial.server.pending, "the confirmed refusal")
    for _ in range(10):  # the client may not have read the confirmation yet
        await trial.cut()
        if trial.cursor == "7-1":
            break
    assert trial.cursor == "7-1"
    assert not any("m1" in ack.get("ids", ()) for ack in trial.server.acks), "a refused message was acknowledged"


@promise(manual=True, also=("sse", "poll"))
async def cuts_long_reasons(trial: Trial, _random: random.Random) -> None:
    """The reason of a refusal is at most 1 024 characters of valid Unicode: the engine takes no other, and its frame has 64 KiB at most."""
    reason = "\ud83d" + "be😀cause!" * 1000
    await trial.connected()
    trial.server.publish()
    await trial.until_shown(1)
    await trial.client.nack("m1", reason)
    await trial.until(lambda: not trial.server.pending, "the refusal")
    (said,) = {frame["reason"] for frame in trial.server.frames if frame["type"] == "nack"}
    assert said.encode()
    assert said[1:] == reason[1:1024]


# -- early copies ------------------------------------------------------------------------------------------------------
@promise(also=("sse", "poll"))
async def shows_early_copies_once(trial: Trial, _random: random.Random) -> None:
    """An early copy is shown at once, acknowledged by its id alone, and dropped when it comes again in its place."""
    server = trial.server
    await trial.connected()
    server.publish()
    await trial.all_acknowledged()
    server.window_full = True
    server.publish()
    server.publish()
    copied = server.publish(priority="high")
    await trial.shows([1, 4])
    await trial.until(lambda: 4 not in server.pending, "the acknowledgement of the early copy")
    assert sorted(server.pending) == [2, 3], "messages below the early copy were acknowledged with it"
    server.pending[4] = copied  # its acknowledgement was lost
    server.make_room()
    await trial.all_acknowledged()
    await trial.shows([1, 4, 2, 3])
    await trial.cut()
    assert trial.cursor in ("7-3", "7-4")


@promise(manual=True, also=("sse",))
async def cursor_stays_below_early_copies(trial: Trial, _random: random.Random) -> None:
    """The cursor reaches an early copy in its place only, and a repeat of one that is being handled is not shown."""
    server = trial.server
    await trial.connected()
    server.publish()
    server.window_full = True
    server.publish()
    server.publish(priority="high")
    server.publish(priority="high")
    await trial.shows([1, 3, 4])
    await trial.client.ack("m1")
    await trial.client.ack("m4")
    await trial.until(lambda: sorted(server.pending) == [2, 3], "two acknowledgements")
    await trial.cut()
    assert trial.cursor == "7-1"
    server.make_room()
    await trial.shows([1, 3, 4, 2])
    await trial.client.ack("m2")
    await trial.until(lambda: sorted(server.pending) == [3], "the acknowledgement of m2")
    await trial.cut()
    assert trial.cursor == "7-2"
    await trial.client.ack("m3")
    await trial.all_acknowledged()
    await trial.cut()
    assert trial.cursor in ("7-3", "7-4")


# -- what the server announces -----------------------------------------------------------------------------------------
@promise(manual=True, also=("sse",))
async def takes_revokes(trial: Trial, _random: random.Random) -> None:
    """What was handled on another device is settled here too."""
    await trial.connected()
    trial.server.publish()
    await trial.until_shown(1)
    del trial.server.pending[1]
    trial.server.say({"type": "revoke", "ids": ["m1"]})
    await trial.cut()
    assert trial.cursor == "7-1"


@promise(also=("sse",))
async def shows_a_new_message_under_a_revoked_id(trial: Trial, _random: random.Random) -> None:
    """A message that the client never had may be revoked. Days later a message under the same id is a new one."""
    await trial.connected()
    trial.server.say({"type": "revoke", "ids": ["daily"]})
    trial.server.publish(id="daily")
    await trial.all_acknowledged()
    await trial.shows([1])


@promise(also=("sse", "poll"))
async def takes_gaps(trial: Trial, _random: random.Random) -> None:
    """The cursor passes numbers that are announced to be gone."""
    await trial.connected()
    trial.server.gap(1, 9)
    trial.server.publish()
    await trial.all_acknowledged()
    await trial.cut()
    assert trial.cursor == "7-10"


@promise(manual=True, also=("sse", "poll"))
async def takes_gaps_in_their_places(trial: Trial, _random: random.Random) -> None:
    """A gap between two messages, in one answer with them, settles neither."""
    await trial.connected()
    trial.server.publish()
    trial.server.gap(2, 9)
    trial.server.publish()
    await trial.shows([1, 10])
    await trial.cut()
    assert trial.cursor in (None, "7-0")
    assert sorted(trial.server.pending) == [1, 10]


@promise(also=("sse", "poll"))
async def survives_a_lost_epoch(trial: Trial, _random: random.Random) -> None:
    """When storage has lost data the client goes on in the new epoch."""
    await trial.connected()
    for _ in range(3):
        trial.server.publish()
    await trial.all_acknowledged()
    trial.server.epoch = "8"
    await trial.cut()
    trial.server.publish()
    await trial.all_acknowledged()
    await trial.shows([1, 2, 3, 4])
    await trial.cut()
    assert trial.cursor == "8-4"


@promise(manual=True, also=("sse",))
async def shows_once_what_is_open_over_a_lost_epoch(trial: Trial, _random: random.Random) -> None:
    """Messages that are being handled when storage has lost data may come again, under other numbers: they are not shown again."""
    server = trial.server
    await trial.connected()
    server.publish(id="settled")
    server.publish(id="refused")
    await trial.until_shown(2)
    server.lose_data()
    server.window_full = True  # what is published is not sent yet
    server.publish(id="settled")
    server.publish(id="refused")
    server.publish(id="new")
    await trial.cut()
    await trial.client.nack("refused", "no")
    server.make_room()
    await trial.shows([1, 2, 3])
    await trial.client.ack("settled")
    await trial.client.ack("new")
    await trial.all_acknowledged()


@promise(manual=True, needs="sse", also=("poll",))
async def acknowledges_numbers_with_their_epoch(trial: Trial, _random: random.Random) -> None:
    """A request that acknowledges a number has its epoch. So a late one settles no message of a new epoch, which the client then shows."""
    server = trial.server
    await trial.connected()
    server.publish()
    await trial.until_shown(1)
    server.lose_data()
    server.window_full = True  # what is published is not sent yet
    server.publish(id="n1")
    await trial.client.ack("m1")
    await trial.connected(2)
    assert sorted(server.pending) == [1], f"what was never shown is acknowledged: {server.acks}"
    server.make_room()
    await trial.shows([1, 1])
    await trial.client.ack("n1")
    await trial.all_acknowledged()


@promise(also=("sse",))
async def ignores_the_unknown(trial: Trial, _random: random.Random) -> None:
    """Frames of unknown types and unknown fields are ignored."""
    await trial.connected()
    trial.server.say({"type": "of-the-future", "x": {"y": 1}})
    trial.server.say({"type": "of-the-future", "messages": 3, "ids": {"m1": 1}, "from": "here", "reconnect": [], "epoch": 9})
    trial.server.publish(of_the_future=[1])
    await trial.all_acknowledged()
    assert len(trial.server.connects) == 1


# -- coming back -------------------------------------------------------------------------------------------------------
@promise(also=("sse",))
async def honours_a_drain(trial: Trial, _random: random.Random) -> None:
    """After `drain` the client comes back when it was told to, not before."""
    await trial.connected()
    trial.server.say({"type": "drain", "after_ms": 800})
    begin = time.monotonic()
    await trial.cut()
    assert time.monotonic() - begin > 0.4, "it came back at once"


@promise()
async def waits_for_a_drain_once(trial: Trial, _random: random.Random) -> None:
    """The time of a `drain` begins with it, not with the end of the connection."""
    await trial.connected()
    trial.server.say({"type": "drain", "after_ms": 3000})
    begin = time.monotonic()
    await trial.until(lambda: time.monotonic() - begin > 3 or len(trial.server.connects) > 1, "the end of the drain")
    if len(trial.server.connects) == 1:
        trial.server.cut(1012)
    await trial.connected(2)
    assert time.monotonic() - begin < 5.5, "it waited once more"


@promise()
async def leaves_a_silent_server(trial: Trial, _random: random.Random) -> None:
    """Pings keep a connection up; a server that answers none within `timeout_ms` is left for a new connection."""
    await trial.connected()
    await trial.until(lambda: sum(frame["type"] == "ping" for frame in trial.server.frames) >= 3, "three pings")
    assert len(trial.server.connects) == 1
    trial.server.mute = True
    await trial.until(lambda: len(trial.server.connects) >= 2, "a new connection")
    trial.server.mute = False


@promise()
async def tries_again(trial: Trial, _random: random.Random) -> None:
    """A server that refuses to upgrade for a while is tried again."""
    await trial.connected()
    trial.server.refuse = dict.fromkeys(trial.client.transports, 503)
    trial.server.cut()
    refusals = len(trial.server.tokens)
    await trial.until(lambda: len(trial.server.tokens) >= refusals + 2, "two further attempts")
    trial.server.refuse = {}
    trial.server.publish()
    await trial.all_acknowledged()


@promise(also=("sse",))
async def probes_while_it_cannot_connect(trial: Trial, _random: random.Random) -> None:
    """A client that lost its connection and cannot make another one sends heartbeat probes, until it is connected."""
    server = trial.server
    refused = dict(server.refuse)
    await trial.connected()
    assert not server.probes, "it is connected"
    server.publish()
    await trial.all_acknowledged()
    server.refuse = dict.fromkeys(TRANSPORTS, 503)
    server.cut(1011)
    await trial.until(lambda: len(server.probes) >= 3, "three probes")
    assert len({client for client, _ in server.probes}) == 1, "the client has one name"
    assert server.probes[0][0], "the client has a name"
    assert {last for _, last in server.probes} == {"1"}
    before = len(server.connects)
    server.refuse = refused
    await trial.connected(before + 1)
    server.publish()
    await trial.all_acknowledged()
    count = len(server.probes)
    await asyncio.sleep(STAYS_AWAY_S)  # the promise is that nothing happens
    assert len(server.probes) == count, "it probes while it is connected"


@promise(also=("sse",))
async def stays_away_when_told(trial: Trial, _random: random.Random) -> None:
    """After 4409 (too many connections of this user) the client stays away: two devices would throw each other out for ever."""
    await _stays_away_after_close(trial, 4409)


@promise(also=("sse",))
async def stays_away_when_forbidden(trial: Trial, _random: random.Random) -> None:
    """After 4403 the client stays away: its user has been erased, or the token does not allow to connect."""
    await _stays_away_after_close(trial, 4403)


async def _stays_away_after_close(trial: Trial, code: int) -> None:
    await trial.connected()
    trial.server.cut(code)
    await trial.until(lambda: not trial.server.queues, "the end")
    await asyncio.sleep(STAYS_AWAY_S)  # the promise is that nothing happens
    assert len(trial.server.connects) == 1


@promise()
async def gives_up_without_the_right(trial: Trial, _random: random.Random) -> None:
    """A client that is answered 403 on each of its transports stays away."""
    await _gives_up_after_status(trial, 403)


@promise()
async def gives_up_with_a_refused_token(trial: Trial, _random: random.Random) -> None:
    """A client whose token is refused (401) asks for another one, and stays away when these are refused too."""
    await _gives_up_after_status(trial, 401)


async def _gives_up_after_status(trial: Trial, status: int) -> None:
    await trial.connected()
    trial.server.refuse = dict.fromkeys(TRANSPORTS, status)
    before = len(trial.server.tokens)
    trial.server.cut()
    await trial.until(lambda: len(trial.server.tokens) > before, "an attempt")
    await asyncio.sleep(STAYS_AWAY_S)  # the promise is that nothing happens
    assert len(trial.server.tokens) <= before + REFUSALS_MAX, "it goes on"


@promise()
async def comes_back_after_other_ends(trial: Trial, _random: random.Random) -> None:
    """After every other close code the client comes back."""
    await trial.connected()
    for code in (1001, 1008, 1009, 1011, 4408, 4413, 4429):
        await trial.cut(code)
    trial.server.publish()
    await trial.all_acknowledged()


@promise()
async def waits_as_told(trial: Trial, _random: random.Random) -> None:
    """A client that is refused with `Retry-After` tries each of its transports, and none again before that time."""
    server = trial.server
    await trial.connected()
    server.retry_after = "2"
    server.refuse = dict.fromkeys(TRANSPORTS, 429)
    before = len(server.tokens)
    server.cut()
    await trial.until(lambda: len(server.tokens) > before, "an attempt")
    begin = time.monotonic()
    await asyncio.sleep(STAYS_AWAY_S)  # the promise is that nothing happens
    assert len(server.tokens) <= before + REFUSALS_MAX, "it does not wait"
    server.refuse = {}
    await trial.connected(len(server.connects) + 1)
    assert time.monotonic() - begin > 2 * STAYS_AWAY_S * 0.9


@promise()
async def slows_down(trial: Trial, _random: random.Random) -> None:
    """A server that welcomes the client and ends each connection at once is tried less and less often."""
    await trial.connected()
    await trial.cut()
    begin = time.monotonic()
    await trial.cut()
    assert time.monotonic() - begin > SLOW_MS / 2000, "it came back as fast as at first"


# -- other transports --------------------------------------------------------------------------------------------------
@promise(needs="sse")
async def falls_back_to_sse(trial: Trial, _random: random.Random) -> None:
    """Where WebSockets are refused, messages come over SSE, and are acknowledged."""
    await _falls_back(trial, "sse")


@promise(needs="poll")
async def falls_back_to_polling(trial: Trial, _random: random.Random) -> None:
    """Where streams are refused too, messages come by polling."""
    await _falls_back(trial, "poll")


async def _falls_back(trial: Trial, transport: Transport) -> None:
    await trial.until(lambda: trial.server.connects, "a connection")
    assert trial.server.connects[0][0] == transport
    for _ in range(3):
        trial.server.publish()
    await trial.all_acknowledged()
    await trial.shows([1, 2, 3])


@promise(needs="sse")
async def goes_back_to_the_better_one(trial: Trial, _random: random.Random) -> None:
    """As soon as a WebSocket gets through again it takes over, and nothing is lost or shown twice."""
    await trial.connected()
    trial.server.publish()
    await trial.all_acknowledged()
    trial.server.refuse = {}
    await trial.until(lambda: trial.server.connects[-1][0] == "websocket", "a WebSocket")
    trial.server.publish()
    await trial.all_acknowledged()
    await trial.shows([1, 2])


@promise(manual=True, needs="sse")
async def keeps_refusals_across_transports(trial: Trial, _random: random.Random) -> None:
    """A refusal that was not confirmed is repeated over the next transport; no cursor passes the message until then."""
    server = trial.server
    nack = {"type": "nack", "ids": ["m1"], "reason": "no such post"}
    server.confirms = False
    server.refuse = {}
    await trial.until(lambda: server.connects and server.connects[-1][0] == "websocket", "a WebSocket")
    server.publish()
    server.publish()
    await trial.until_shown(2)
    await trial.client.nack("m1", "no such post")
    await trial.client.ack("m2")
    await trial.until(lambda: nack in server.frames, "the refusal")
    server.refuse = {"websocket": 502}
    server.frames.clear()
    await trial.cut()
    await trial.until(lambda: server.connects[-1][0] == "sse", "a stream")
    assert trial.cursor in (None, "7-0")
    await trial.until(lambda: nack in server.frames, "the refusal by a request")
    server.confirms = True
    await trial.all_acknowledged()
    assert not any("m1" in ack.get("ids", ()) for ack in server.acks), "a refused message was acknowledged"
    await trial.shows([1, 2])


# -- everything at once ------------------------------------------------------------------------------------------------
@promise(needs="poll")
async def switches_transports_under_cuts(trial: Trial, random: random.Random) -> None:
    """Whatever transport is the only one to get through, again and again, and however they are cut: nothing is lost, or shown twice."""
    server = trial.server
    server.refuse = {}
    await trial.until(lambda: server.connects and server.connects[-1][0] == "websocket", "a WebSocket")
    settled: list[dict[str, Any]] = []
    for passes in random.sample(TRANSPORTS * SWITCHES, len(TRANSPORTS) * SWITCHES):
        settled += [server.publish() for _ in range(random.randint(1, 4))]
        server.refuse = {other: random.choice((404, 502)) for other in TRANSPORTS if other != passes}
        server.cut(random.choice((1001, 1006, 1011, 1012)))
        if random.random() < 0.5:
            settled.append(server.publish())
        await trial.until(lambda: server.connects[-1][0] == passes, f"a connection over {passes}")  # noqa: B023
        if random.random() < 0.5:
            message = random.choice(settled)  # its acknowledgement was lost
            server.pending.setdefault(message["seq"], message)
            server.again(message["seq"])
        if random.random() < 0.3:
            await trial.all_acknowledged()
    server.refuse = {}
    await trial.until(lambda: server.connects[-1][0] == "websocket", "the best transport")
    settled.append(server.publish())
    server.cut()
    await trial.all_acknowledged()
    await trial.shows(list(range(1, server.head + 1)))
    assert {used for used, _ in server.connects} == set(TRANSPORTS)


@promise()
async def survives_random_faults(trial: Trial, random: random.Random) -> None:
    """Whatever is cut, repeated, or refused, and whenever: everything is shown once, in order, and acknowledged."""
    server = trial.server
    await trial.connected()
    settled: list[dict[str, Any]] = []
    for _ in range(RANDOM_STEPS):
        fault = random.choice(("publish", "publish", "publish", "cut", "drop", "repeat", "lost ack", "refuse", "allow", "wait"))
        if fault == "publish":
            settled += [server.publish() for _ in range(random.randint(1, 5))]
        elif fault in {"cut", "drop"}:
            server.cut(random.choice((1001, 1006, 1011, 1012)) if fault == "drop" else 1012)
        elif fault == "repeat" and server.pending:
            server.again(random.choice(sorted(server.pending)))
        elif fault == "lost ack" and settled:
            message = random.choice(settled)  # as a server does that was restarted before it had stored the acknowledgement
            server.pending.setdefault(message["seq"], message)
        elif fault == "refuse":
            server.refuse = {transport: random.choice((502, 503)) for transport in trial.client.transports if random.random() < 0.5}
        elif fault == "allow":
            server.refuse = {}
        else:
            await asyncio.sleep(random.random() * 0.05)
    server.refuse = {}
    server.cut()
    await trial.all_acknowledged()
    await trial.shows(list(range(1, server.head + 1)))
