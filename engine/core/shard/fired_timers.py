"""Durable timers at a shard, from the moment a scheduler hands them out until it is told what became of them.

    taken --its effect is in the journal, or was before--> FireDone
          --it cannot take effect now--------------------> FireFailed
          --its conditions, or the judgement: not yet----> doubted --storage knows no effect of it--> FireAgain, with its new time
                                                                   --storage knows one--------------> FireDone

Not to be sent is an effect too: why is journalled, then it is done. A shard that dies before the scheduler has its word judges
again what is handed out again, from what is journalled.

"Not yet" is the one answer after which a scheduler may confirm that the timer is cancelled, so it must be true. A mailbox knows the effects
of its last `recent_ids` ids only, fewer after a restart; of a timer whose scheduler died before it heard that it took effect, storage
knows it for `idempotency_caller_s`. Such timers are few, and are looked up together.

A scheduler hands a timer out again when it hears nothing, so there may be copies. While one is taken the others are ignored: the one
answer is for all of them. After `FireAgain` a copy may still be on the link, and from that word on the scheduler may confirm that the
timer is cancelled: the copy must not take effect then, although judging it anew might say so. It is told by its due time, for the timer
itself comes again with another one, and gets the same answer as the first.

In memory only. A shard that dies takes with it what was under way to it, and what a scheduler hands out after it has heard `FireAgain`
carries the new time. So only copies handed out before that matter, and there are no more of them than each scheduler allows to be
unconfirmed (`timer_claims_max`): with that limit, the entry that makes room is not one that still counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.constants import AT_MAX_MS
from engine.core.model.message import timer_effect_id
from engine.core.policy.conditions import Again, Drop, Go, Known, at_fire
from engine.core.shard.output import ShardOutput
from engine.core.wire.records import FireAgain, FireDone, FireFailed, Timer

_LATER_MS: Final = 100
"""A timer comes again this much after it was due at least. Where a scheduler's clock is ahead of this shard's, "not yet" may mean the
very time it came at, and with the same due time it would be taken for a copy for ever."""


_GO: Final = Go()


class Doubt(Struct, frozen=True):
    """A taken timer that is to come again, unless storage remembers that it took effect."""

    timer: Timer
    wanted_ms: int


class FiredTimers:
    """See the module's text.

    Args:
        postponed_max: how many timers that are to come again are remembered.
        output: gets the answers to schedulers.
    """

    def __init__(self, postponed_max: int, output: ShardOutput) -> None:
        self._postponed_max = postponed_max
        self._output = output
        self.doubted: list[Doubt] = []  # to be looked up
        self._taken: dict[str, Timer] = {}
        self._postponed: dict[str, tuple[int, int]] = {}  # scheduled id -> (due time it came with, time it is to come again)

    def take(self, timer: Timer) -> bool:
        """A timer was handed out. False when it needs nothing more: it is taken already, or was answered and this is a copy."""
        sid = timer.sid
        if sid in self._taken:
            return False
        if self._postponed and (move := self._postponed.get(sid)) is not None:
            if move[0] == timer.due_ms:
                self._tell_again([(sid, move[1])])
                return False
            del self._postponed[sid]  # copies come in order: there is none of before behind this one
        self._taken[sid] = timer
        return True

    def taken(self, sid: str) -> Timer:
        """A timer that was taken and not answered yet."""
        return self._taken[sid]

    def verdict(self, sid: str, mailbox: Mailbox, now_ms: int) -> Go | Drop | Again:
        """Is a taken timer sent, by its own conditions, now that the mailbox of its user is there?

        One that took effect before goes on, to be found a repeat: "not yet" would let the scheduler confirm that it is cancelled.
        """
        timer = self._taken[sid]
        if timer.conditions is None or timer_effect_id(sid) in mailbox.recent:
            return _GO
        # Where the clock was set back since, an activity of the future counts like one of now; else its timer would wait for that future.
        mailbox.seen_ms = min(mailbox.seen_ms, now_ms)
        events = {} if mailbox.user_state is None else mailbox.user_state.events
        return at_fire(timer.conditions, Known(mailbox.seen_ms, events, mailbox.topics), now_ms)

    def done(self, sids: Iterable[str]) -> None:
        """These took effect, or never will."""
        self._tell(FireDone, sids)

    def failed(self, sids: Iterable[str]) -> None:
        """These could not take effect now."""
        self._tell(FireFailed, sids)

    def again(self, moves: Iterable[tuple[str, int]]) -> None:
        """These had no effect as far as memory knows: each is to come again at its time, ms, when storage knows none either."""
        self.doubted += [Doubt(self._taken[sid], wanted_ms) for sid, wanted_ms in moves]

    def take_doubted(self) -> list[Doubt]:
        """To be looked up under `timer_effect_id`; answer with `looked_up`, or `failed`."""
        doubts, self.doubted = self.doubted, []
        return doubts

    def looked_up(self, doubts: Iterable[Doubt], effects: Iterable[bool]) -> None:
        """What storage says: did each take effect before?"""
        told, over = [], []
        for doubt, took_effect in zip(doubts, effects, strict=True):
            sid, due_ms, wanted_ms = doubt.timer.sid, doubt.timer.due_ms, doubt.wanted_ms
            if took_effect:
                over.append(sid)
                continue
            del self._taken[sid]
            at_ms = min(max(wanted_ms, due_ms + _LATER_MS), AT_MAX_MS)
            told.append((sid, at_ms))
            self._postponed[sid] = (due_ms, at_ms)
            if len(self._postponed) > self._postponed_max:
                del self._postponed[next(iter(self._postponed))]
        self.done(over)
        self._tell_again(told)

    def _tell(self, record: type[FireDone | FireFailed], sids: Iterable[str]) -> None:
        by_partition: dict[int, list[str]] = {}
        for sid in sids:
            self._taken.pop(sid, None)
            by_partition.setdefault(int(sid.partition("-")[0]), []).append(sid)
        self._output.to_schedulers.extend((partition, record(those)) for partition, those in by_partition.items())

    def _tell_again(self, moves: Iterable[tuple[str, int]]) -> None:
        by_partition: dict[int, list[tuple[str, int]]] = {}
        for move in moves:
            by_partition.setdefault(int(move[0].partition("-")[0]), []).append(move)
        self._output.to_schedulers.extend((partition, FireAgain(those)) for partition, those in by_partition.items())
