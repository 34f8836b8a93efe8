"""Which users are online: one state per user, as far as the user's shard can know it.

    offline    no connection, and none is expected
    connected  at least one connection is attached
    suspect    none is attached, and a client may come back by itself: the user is still online, until `offline_after_ms` have passed

    offline   --attach-->                                    connected
    connected --the last connection ends, CLEAN-->           offline, at once
    connected --the last connection ends otherwise-->        suspect
    suspect   --attach-->                                    connected ("back")
    suspect   --heartbeat probe (`GET /v1/heartbeat`)-->     suspect, the time begins anew
    suspect   --`offline_after_ms` without either-->         offline

A connection that ends otherwise while others are attached is remembered for the same time: when the others then end cleanly, its client
is still expected, and the user is suspect. An attach ends every expectation, whichever device it comes from.

Told in `session:stream`: suspect, back and offline. Between two polls a suspicion is silent, since nothing is wrong: neither it nor its end
by the next poll is told; its end by time is, as offline.

The shard owns the state and, with its tick, the only timer: expectations are kept in the order in which they end.

    the edge dies               its link session ends, and with it every connection there, abnormally: suspect
    the link session is reset   the same; the edge announces its connections again on the next session: back
    the client returns on another edge    an attach like any other
    the shard dies              users who are online are in a set in storage, which changes when they come and when they are offline. The
                                successor expects each of them for `offline_after_ms` from its start, since no client can return or probe
                                while there is no shard. It does not know whom its predecessor told suspect: it tells nobody suspect, and
                                back whoever attaches. Edges announce what they still have within a second
    the user's slot moves       as for a dead shard; but nobody is told back, since edges announce at once whom they have
    the shard moves on the wall clock     a step forward ends expectations early; a step back ends the shard (`engine.actors.actor_process`)

Bounds: a counter per connected user, and an expectation (about 400 bytes) per user who is suspect, at most `suspects_max` of them; beyond
it those who have been suspect for longest are offline early.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from msgspec import Struct

from engine.core.model.routing import slot_of
from engine.core.wire.records import POLL

CLEAN: Final = frozenset((1000, 1001, 1005, 4409))
"""Close codes after which no client is expected: it left on purpose (1005 is its close frame without a code, RFC 6455, section 7.1.5), or
newer connections of its user took its place (4409)."""

OFFLINE: Final = "offline"
CONNECTED: Final = "connected"
SUSPECT: Final = "suspect"

_NO_CODE: Final = 0
"""The code of a poll that was answered, and of a connection that its edge has announced to another shard."""


class Client(Struct, frozen=True):
    """The client that was heard last, for `session:stream`: its connection, device and edge, and the transport."""

    session: str = ""
    device: str = ""
    edge: str = ""
    transport: int = 0


class Expectation(Struct):
    """A client of the user may come back until `until_ms`. `told`: that will be told. `code`: of the end of its connection."""

    until_ms: int
    told: bool
    client: Client
    code: int


class Presence:
    """The users of one shard, by mailbox key. Times in milliseconds; the methods return what is to be told.

    Args:
        offline_after_ms: how long a client is expected.
        suspects_max: expectations kept.
    """

    def __init__(self, offline_after_ms: int, suspects_max: int) -> None:
        self._offline_after_ms = offline_after_ms
        self._suspects_max = suspects_max
        self._connections: dict[str, int] = {}  # attached now, of users who have any
        self._expected: dict[str, Expectation] = {}  # in the order in which they end

    @property
    def suspects(self) -> int:
        """Users whose clients are expected."""
        return len(self._expected)

    @property
    def next_ms(self) -> int | None:
        """When the first expectation ends; None while nobody is expected."""
        first = next(iter(self._expected.values()), None)
        return None if first is None else first.until_ms

    def state(self, key: str) -> str:
        """OFFLINE, CONNECTED or SUSPECT."""
        if key in self._connections:
            return CONNECTED
        return SUSPECT if key in self._expected else OFFLINE

    def attached(self, key: str) -> tuple[str, bool]:
        """A connection begins. Returns the state in which it found the user, and whether to tell that the user is back.

        A user with an expected client is found SUSPECT also while other connections are attached.
        """
        expected = self._expected.pop(key, None)
        connections = self._connections.get(key, 0)
        self._connections[key] = connections + 1
        if expected is not None:
            return SUSPECT, expected.told
        return (CONNECTED if connections else OFFLINE), False

    def detached(self, key: str, client: Client, code: int, now_ms: int) -> str:
        """A connection ended with this code. Returns SUSPECT or OFFLINE when that is to be told, else ""."""
        connections = self._connections.get(key, 0) - 1
        if connections > 0:
            self._connections[key] = connections
        else:
            self._connections.pop(key, None)
        if code == _NO_CODE and client.transport != POLL:  # another shard has it
            if connections <= 0:
                self._expected.pop(key, None)
            return ""
        if code not in CLEAN:
            self._expect(key, Expectation(0, False, client, code), now_ms)
        if connections > 0:
            return ""
        expected = self._expected.get(key)
        if expected is None:
            return OFFLINE
        expected.told = expected.code != _NO_CODE
        return SUSPECT if expected.told else ""

    def probed(self, key: str, device: str, now_ms: int) -> str:
        """A client of the user sent a heartbeat probe; `device` is its name for itself, "" for none. Returns the state."""
        state = self.state(key)
        if state == SUSPECT:
            expected = self._expected[key]
            client = Client(expected.client.session, device or expected.client.device, expected.client.edge, expected.client.transport)
            self._expect(key, Expectation(0, expected.told, client, expected.code), now_ms)
        return state

    def assume(self, keys: Iterable[str], now_ms: int, *, told: bool) -> None:
        """These users were online under an earlier owner of their slot: expect them. To be called before anything else of them.

        `told`: that owner may have told that they are suspect.
        """
        for key in keys:
            self._expect(key, Expectation(0, told, Client(), 1006), now_ms)

    def release(self, slots: Container[int]) -> None:
        """These slots are another shard's: nothing is told of their users here any more."""
        for table in (self._connections, self._expected):
            for key in [key for key in table if slot_of(key) in slots]:
                del table[key]

    def forget(self, key: str) -> bool:
        """Nobody is expected any more. Returns whether that makes the user offline."""
        return self._expected.pop(key, None) is not None and key not in self._connections

    def expire(self, now_ms: int) -> list[tuple[str, Expectation]]:
        """Remove the expectations whose time is over, and what exceeds `suspects_max`. Returns the users who are offline by that."""
        over = []
        while self._expected:
            key, expected = next(iter(self._expected.items()))
            if expected.until_ms > now_ms and len(self._expected) <= self._suspects_max:
                break
            del self._expected[key]
            if key not in self._connections:
                over.append((key, expected))
        return over

    def _expect(self, key: str, expectation: Expectation, now_ms: int) -> None:
        expectation.until_ms = now_ms + self._offline_after_ms
        self._expected.pop(key, None)
        self._expected[key] = expectation
