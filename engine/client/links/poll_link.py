"""A link over long polling, for network paths that hold streams back: each answer is complete, and the next request asks for what follows.

Every request presents the cursor, which acknowledges. What an answer had and the application has not settled comes again with the next
one, at once: so the next request waits until all of it is settled, and for 1, 2, 5, 10 s at most, in which others wait too.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from engine.client.frames import Reconnect
from engine.client.http_connection import HttpConnection
from engine.client.links.transport_link import LinkEnded, LinkOptions, SettlingRequests, broken, refusal_of
from engine.client.protocol import Transport

POLL_WAIT_S: Final = 25  # as long as the engine lets a request wait; a welcome allows 60 s of silence
_PAUSES: Final = Reconnect()


class _Seq(Struct):
    seq: int


class _Gap(Struct):
    from_: int = msgspec.field(name="from")
    to: int


class _Answer(Struct):
    messages: list[Raw]
    last_event_id: str
    resumed: str = "ok"
    gaps: list[_Gap] = []
    early: Raw = Raw(b"")
    frames: list[Raw] = []


_answers: Final = msgspec.json.Decoder(_Answer)
_seq: Final = msgspec.json.Decoder(_Seq)


def _messages(some: list[Raw]) -> list[bytes]:
    return [b'{"type":"messages","messages":[%b]}' % b",".join(map(bytes, some))] if some else []


class PollLink:
    """A `Link`. The first request does not wait, so that polling is known to work.

    An answer of another epoch, as the first one, makes the `welcome` that polling does not have.
    """

    transport: Transport = "poll"
    duplex = False

    def __init__(self, options: LinkOptions) -> None:
        self._options = options
        self.presented = options.cursor()
        self._settling = SettlingRequests(options)
        self._http = HttpConnection(options.address, connections_max=1, ssl=options.ssl)
        self._first: list[bytes] = []
        self._epoch: str | None = None  # of the last answer
        self._unsettled: tuple[str, int] | None = None  # epoch and number of the last message of the last answer
        self._settled = asyncio.Event()
        self._step = 0

    async def open(self, timeout_s: float) -> None:
        try:
            self._first = await self._ask(self.presented, 0, timeout_s)
        except BaseException:
            self.abort()
            raise

    async def receive(self) -> Sequence[bytes]:
        if self._first:
            frames, self._first = self._first, []
            return frames
        await self._pause()
        return await self._ask(self._options.cursor(), POLL_WAIT_S, POLL_WAIT_S + self._options.timeout_s)

    async def _ask(self, cursor: str | None, wait_s: int, timeout_s: float) -> list[bytes]:
        path = f"/v1/poll{self._options.query(cursor, wait=str(wait_s))}"
        try:
            response = await self._http.request("GET", path, await self._options.authorization(), timeout_s=timeout_s)
        except TimeoutError as error:
            raise LinkEnded(f"no answer within {timeout_s:g} s", silent=True) from error
        except OSError as error:
            raise broken(error) from error
        if response.status != 200:
            raise refusal_of(response)
        try:
            return self._frames(_answers.decode(response.body))
        except (msgspec.DecodeError, ValueError) as error:
            raise LinkEnded(f"the answer is not an engine's: {error}") from error

    def _frames(self, answer: _Answer) -> list[bytes]:
        epoch, _, last = answer.last_event_id.rpartition("-")
        seqs = [_seq.decode(message).seq for message in answer.messages]
        self._unsettled = (epoch, max(seqs)) if seqs else None
        frames = []
        if epoch != self._epoch or answer.resumed == "gap":
            self._epoch = epoch
            first = seqs[0] if seqs else int(last) + 1
            about = {"epoch": epoch, "seq": int(last), "resumed": answer.resumed, "from": first}
            frames.append(msgspec.json.encode({"type": "welcome", **about}))
        at = 0
        for gap in answer.gaps:  # each in its place: ahead of a lower message it would settle that
            below = bisect_left(seqs, gap.from_, at)
            frames += _messages(answer.messages[at:below])
            frames.append(b'{"type":"gap","from":%d,"to":%d}' % (gap.from_, gap.to))
            at = below
        frames += _messages(answer.messages[at:])
        if answer.early:
            frames.append(b'{"type":"early","messages":%b}' % bytes(answer.early))
        frames += [bytes(frame) for frame in answer.frames]
        return frames

    async def _pause(self) -> None:
        """Wait until the last answer is settled, or a while."""
        if self._all_settled():
            self._step = 0
            return
        delay_s = _PAUSES.delays_ms[min(self._step, len(_PAUSES.delays_ms) - 1)] / 1000 * (1 + _PAUSES.jitter * (2 * random.random() - 1))
        self._step += 1
        try:
            async with asyncio.timeout(delay_s):
                while not self._all_settled():
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            return
        self._step = 0

    def _all_settled(self) -> bool:
        if self._unsettled is None:
            return True
        epoch, _, seq = (self._options.cursor() or "-0").rpartition("-")
        return epoch == self._unsettled[0] and int(seq) >= self._unsettled[1]

    async def send(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """One request for each; then the next poll need not wait."""
        answers = await self._settling.post(frames)
        self._settled.set()
        return answers

    async def close(self) -> None:
        """As `abort`: there is nothing to say."""
        self.abort()

    def abort(self) -> None:
        self._settling.close()
        self._http.close()
