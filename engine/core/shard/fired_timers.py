"""Durable timers at a shard, from the delivery by a scheduler until the answer to it.

    taken --its effect is in the journal, or was before--> FireDone
          --likewise, and late steps will ask for it-------> awaited --storage remembers it for longer--> FireDone
          --its conditions hold, and it has an action-----> acting --storage has the action, or had---> FireDone
          --it cannot take effect now--------------------> FireFailed
          --its conditions, or the policy: not yet --------> doubted --storage has no effect of it--> FireAgain, with its new time
                                                                   --storage has one--------------> FireDone

The effect of an action is its entry in the stream of its target, which storage makes once for a timer: when the shard dies before the
scheduler has the answer, the timer comes again, and the append finds the effect. After it, nothing of the action is at the shard.

A decision not to send is an effect too: its reason is journalled, then the timer is done. If a shard dies before the scheduler has
the answer, the scheduler sends the timer again, and the next incarnation evaluates it again from the journal.

"Not yet" is the one answer after which a scheduler may confirm that the timer is cancelled, so it must be true. A mailbox stores the
effects of its last `recent_ids` ids only, fewer after a restart. If a scheduler died before it received the `FireDone` of a timer,
storage keeps the effect of the timer for `idempotency_caller_s`. Such timers are few, and are looked up together.

A scheduler sends a timer again when it receives no answer, so there may be copies. While one is taken the others are ignored: one
answer serves all of them. After `FireAgain` a copy may still be on the link, and from that answer on the scheduler may confirm that the
timer is cancelled: the copy must not take effect then, although a new evaluation might allow it. A copy is recognised by its due time,
because the timer itself comes again with another one; the copy gets the same answer as the first.

This state is in memory only. When a shard dies, the copies on the way to it are lost too, and what a scheduler sends after it has
received `FireAgain` carries the new time. So only copies sent before that matter, and there are no more of them than each scheduler
allows to be unconfirmed (`timer_claims_max`): with that limit, an evicted entry is never one that still matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from engine.core.commit.first_result import packed_result
from engine.core.commit.judge import NO_JUDGE, Judge
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.category import DAY_MS
from engine.core.model.constants import AT_MAX_MS
from engine.core.model.message import timer_effect_id
from engine.core.policy.conditions import GO, Again, Drop, Go
from engine.core.shard.output import ShardOutput
from engine.core.wire.records import FireAgain, FireDone, FireFailed, Timer

_LATER_MS: Final = 100
"""Least delay, ms, from the due time of a timer to its next one. Where a scheduler's clock is ahead of this shard's, "not yet" may give
the same due time again, and the timer would then be treated as a copy for ever."""


class Doubt(Struct, frozen=True):
    """A taken timer that is to come again at `wanted_ms`, unless storage has an effect of it."""

    timer: Timer
    wanted_ms: int

    @property
    def effects(self) -> list[tuple[str, str]]:
        """What is to be looked up: mailbox key and id of its effect, and of that of the delayed message whose step it is."""
        key, terms = self.timer.key, None if self.timer.conditions is None else self.timer.conditions.step
        sids = [self.timer.sid] if terms is None or not terms.sid else [self.timer.sid, terms.sid]
        return [(key, timer_effect_id(sid)) for sid in sids]


class Awaited(Struct, frozen=True):
    """An effect for whose number a late step will ask.

    Args:
        sid: of the timer that is told when storage has heard of it.
        pair: mailbox key and id of its effect.
        value: what storage has under it, packed.
        second: from which on it is to be remembered as long as if it had taken effect then, since the epoch.
    """

    sid: str
    pair: tuple[str, str]
    value: bytes
    second: int


class FiredTimers:
    """The fired timers of one shard; see the module's text.

    Args:
        remembered_ms: how long storage remembers an effect.
        postponed_max: limit of stored timers that are to come again; the oldest is evicted.
        output: receives the answers to schedulers.
        judge: evaluates conditions.
    """

    def __init__(self, postponed_max: int, output: ShardOutput, judge: Judge = NO_JUDGE, remembered_ms: int = DAY_MS) -> None:
        self._remembered_ms = remembered_ms
        self._postponed_max = postponed_max
        self._judge = judge
        self._output = output
        self.doubted: Final[list[Doubt]] = []  # to be looked up
        self.awaited: Final[list[Awaited]] = []  # to be remembered for longer
        self.acting: Final[list[Timer]] = []  # whose actions are to be appended to the streams of their targets
        self._taken: dict[str, Timer] = {}
        self._numbers: dict[str, int] = {}  # scheduled id of a step -> the number of its message, if it was looked up; 0: there was none
        self._postponed: dict[str, tuple[int, int]] = {}  # scheduled id -> (due time it came with, time it is to come again)

    def take(self, timer: Timer) -> bool:
        """Accept a timer from a scheduler. Returns False when it needs no more work: already taken, or a copy of an answered one."""
        sid = timer.sid
        if sid in self._taken:
            return False
        if self._postponed and (move := self._postponed.get(sid)) is not None:
            if move[0] == timer.due_ms:
                self._tell_again([(sid, move[1])])
                return False
            del self._postponed[sid]  # copies come in order: no older copy follows this one
        self._taken[sid] = timer
        return True

    def taken(self, sid: str) -> Timer:
        """The timer with this id, which is taken and not answered yet. Raises KeyError for any other."""
        return self._taken[sid]

    def keys(self) -> Iterable[str]:
        """Keys of the timers that are taken and not answered yet."""
        return [timer.key for timer in self._taken.values()]

    def verdict(self, sid: str, mailbox: Mailbox, now_ms: int) -> Go | Drop | Again:
        """Evaluate the conditions of a taken timer against its user's mailbox.

        A timer that took effect before returns `Go`, and is later found to be a repeat: "not yet" would let the scheduler confirm that
        it is cancelled.
        """
        timer = self._taken[sid]
        conditions = timer.conditions
        if conditions is None or timer_effect_id(sid) in mailbox.recent:
            return GO
        return self._judge.at_fire(timer, conditions, mailbox, self._numbers.get(sid), now_ms)

    def acts(self, sid: str) -> bool:
        """Whether a taken timer whose conditions hold has an action, which is added to `acting` then, in place of a message."""
        timer = self._taken[sid]
        if timer.action is None:
            return False
        self.acting.append(timer)
        return True

    def take_acting(self) -> list[Timer]:
        """Remove and return the timers whose actions are to be stored under `timer_effect_id`; answer with `done` or `failed`."""
        acting = self.acting.copy()
        self.acting.clear()
        return acting

    def numbered(self, sid: str, seq: int) -> bool:
        """Whether late steps will ask for the number of a taken timer's message, which is added to `awaited` then.

        A step that is due soon finds it without that: an effect is remembered for a day.
        """
        timer = self._taken.get(sid)
        terms = None if timer is None else timer.envelope.policy_terms
        if timer is None or terms is None or seq <= 0 or terms.limits.steps_ms < self._remembered_ms // 2:
            return False
        second = -(-(timer.due_ms + terms.limits.steps_ms) // 1000)
        self.awaited.append(Awaited(sid, (timer.key, timer_effect_id(sid)), packed_result(timer.envelope.digest, seq, ""), second))
        return True

    def take_awaited(self) -> list[Awaited]:
        """Remove and return those that storage is to remember for longer; answer with `done` or `failed`."""
        awaited = self.awaited.copy()
        self.awaited.clear()
        return awaited

    def done(self, sids: Iterable[str]) -> None:
        """Answer `FireDone` for these: they took effect, or never will."""
        self._tell(FireDone, sids)

    def failed(self, sids: Iterable[str]) -> None:
        """Answer `FireFailed` for these: they could not take effect now."""
        self._tell(FireFailed, sids)

    def again(self, moves: Iterable[tuple[str, int]]) -> None:
        """Add (id, time in ms) to `doubted`: memory has no effect of them, and each comes again at its time if storage has none either."""
        self.doubted.extend(Doubt(self._taken[sid], wanted_ms) for sid, wanted_ms in moves)

    def take_doubted(self) -> list[Doubt]:
        """Remove and return the doubts, to look up their `effects`; answer with `looked_up` or `failed`."""
        doubts = self.doubted.copy()
        self.doubted.clear()
        return doubts

    def asked_later(self, doubts: Iterable[Doubt], effects: Mapping[tuple[str, str], int]) -> list[Awaited]:
        """The effects of delayed messages whose steps come again so late that storage has to remember them for longer.

        Args:
            effects: as of `looked_up`.
        """
        return [
            Awaited(doubt.timer.sid, effect, packed_result(doubt.timer.envelope.digest, effects[effect], ""), -(-doubt.wanted_ms // 1000))
            for doubt in doubts
            if doubt.wanted_ms - doubt.timer.due_ms >= self._remembered_ms // 2
            for effect in doubt.effects[1:]
            if effects.get(effect, 0) > 0
        ]

    def looked_up(self, doubts: Iterable[Doubt], effects: Mapping[tuple[str, str], int]) -> None:
        """Answer each doubt: `FireDone` if storage has an effect of it, else `FireAgain`.

        A step whose delayed message has come, which the mailbox does not remember any more, comes again at once, and knows its number then.

        Args:
            effects: those of the doubts' `effects` that storage has, with the number of the message, 0 for none.
        """
        told, over = [], []
        for doubt in doubts:
            sid, due_ms, wanted_ms = doubt.timer.sid, doubt.timer.due_ms, doubt.wanted_ms
            own, *message = doubt.effects
            if own in effects:
                over.append(sid)
                continue
            number = next((effects[effect] for effect in message if effect in effects), 0)
            if number and not self._numbers.get(sid):
                wanted_ms = due_ms
            if message:
                self._numbers[sid] = number or self._numbers.get(sid, 0)
            del self._taken[sid]
            at_ms = min(max(wanted_ms, due_ms + _LATER_MS), AT_MAX_MS)
            told.append((sid, at_ms))
            self._postponed[sid] = (due_ms, at_ms)
            if len(self._postponed) > self._postponed_max:
                oldest = next(iter(self._postponed))
                del self._postponed[oldest]
                self._numbers.pop(oldest, None)
        self.done(over)
        self._tell_again(told)

    def _tell(self, record: type[FireDone | FireFailed], sids: Iterable[str]) -> None:
        by_partition: dict[int, list[str]] = {}
        for sid in sids:
            self._taken.pop(sid, None)
            self._numbers.pop(sid, None)
            by_partition.setdefault(int(sid.partition("-")[0]), []).append(sid)
        self._output.to_schedulers.extend((partition, record(those)) for partition, those in by_partition.items())

    def _tell_again(self, moves: Iterable[tuple[str, int]]) -> None:
        by_partition: dict[int, list[tuple[str, int]]] = {}
        for move in moves:
            by_partition.setdefault(int(move[0].partition("-")[0]), []).append(move)
        self._output.to_schedulers.extend((partition, FireAgain(those)) for partition, those in by_partition.items())
