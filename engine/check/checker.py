"""Decides whether a history keeps the promises of PROTOCOL.md. It shares no code with the engine.

One pass over the events, with what is known of each user: published ids with payloads and answers; numbers with the id each names; numbers
that clients acknowledged or were told are gone. A statement that a history cannot decide is no violation: a call without an answer may have
been accepted, an acknowledgement may have been lost on its way.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

REASONS: Final = {
    "lost": "a message that was answered 202 neither came nor is in an announced gap",
    "invented": "a message came that nobody had published",
    "altered": "a message came with another payload than it was published with",
    "refused": "a message came though every call for it was refused or suppressed",
    "order": "a new number came after a higher one on the same connection",
    "hole": "a message was skipped that nobody acknowledged, no gap or revocation announced and the inbox alone did not get",
    "number": "a number names two messages, or a message has two numbers",
    "attempt": "a repeat on the same connection has no higher `attempt`, and nothing was disturbed",
    "answer": "the number in an answer is not that of the message",
    "repeat": "a repeat of an accepted id was accepted as a new message, or refused",
    "conflict": "another payload under an accepted id was not answered 409, or a 409 had no reason",
    "resumed": "a connection resumed as `ok` in another epoch than its cursor's, or as `gap` though nothing is gone",
    "due": "a delayed message came before the time in its answer",
    "quiet": "a message that was published in quiet hours came in them",
    "cap": "more messages of a category were accepted within a time than its cap allows",
    "counts": "one revision of the counts has two values",
    "mark": "an inbox does not show a mark that was answered",
    "winner": "a question has two answers",
    "history": "the history itself is not well-formed",
}
"""What a violation means, by its reason."""

OK: Final = 200
ACCEPTED: Final = 202
CONFLICT: Final = 409

_TAKEN: Final = frozenset(("accepted", "scheduled", "merged", "duplicate"))

_EVERYBODY: Final = ""
"""The user of a broadcast."""

_MARKS: Final[dict[str, tuple[tuple[str, bool], ...]]] = {
    "read": (("read", True), ("seen", True)),
    "unread": (("read", False),),
    "seen": (("seen", True),),
    "archive": (("archived", True),),
    "unarchive": (("archived", False),),
}


class Violation(NamedTuple):
    """A broken promise.

    Attributes:
        reason: a key of `REASONS`.
        line: of the event that shows it, from 1.
        user: empty for everybody.
        detail: what.
    """

    reason: str
    line: int
    user: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.user}: {self.detail}"


@dataclass(slots=True)
class _Id:
    """What is known of an id of a user. Payloads are digests."""

    first_line: int
    began_ms: float | None  # of its first call
    lasting: bool  # nothing lets it go: no `ttl`, no `collapse`, not `retain: false`, no rule that may suppress it when it is due
    inbox_only: bool  # or may be: the answer to a repeat does not tell
    payloads: set[bytes] = field(default_factory=set)  # of all calls
    accepted: bytes | None = None  # the payload of the first call that was answered 202
    accepted_line: int = 0
    statuses: set[str] = field(default_factory=set)  # of its results that took it
    seqs: set[int] = field(default_factory=set)  # that answers named
    dues_ms: list[float] = field(default_factory=list)  # in answers, and as somebody wanted it later
    open: int = 0  # calls without an answer
    cancelled: bool = False
    came: bool = False


@dataclass(slots=True)
class _User:
    ids: dict[str, _Id] = field(default_factory=dict)
    ids_of: dict[tuple[str, int], str] = field(default_factory=dict)  # (epoch, number) -> id
    seq_of: dict[tuple[str, str], int] = field(default_factory=dict)  # (epoch, id) -> number
    gone: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # epoch -> ranges acknowledged or announced
    acked: set[str] = field(default_factory=set)  # ids, acknowledged singly
    announced: set[int] = field(default_factory=set)  # numbers that a gap announced
    revoked: set[str] = field(default_factory=set)
    epochs: set[str] = field(default_factory=set)
    counts: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # by epoch and revision
    quiet: list[tuple[float, float]] = field(default_factory=list)
    touched_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # category -> when calls began that were accepted
    marks: dict[tuple[str, str], bool | None] = field(default_factory=dict)  # (id, mark) -> its value; None: not known
    winners: dict[str, str] = field(default_factory=dict)  # question -> answer

    def pass_over(self, epoch: str, first: int, last: int) -> None:
        """These numbers need not come."""
        ranges = self.gone.setdefault(epoch, [])
        if first == 1:
            ranges[:] = [one for one in ranges if one[1] > last]
        ranges.append((first, last))


@dataclass(slots=True)
class _Connection:
    user: str
    epoch: str
    reached: int | None  # the highest number it is known to have passed
    attempts: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Call:
    event: Mapping[str, Any]
    settled_before: bool = False  # the id had been accepted before the call began


class Checker:
    """Takes a history, one event after the other.

    Attributes:
        violations: found so far.
    """

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._line = 0
        self._users: dict[str, _User] = defaultdict(_User)
        self._calls: dict[int, _Call] = {}
        self._connections: dict[int, _Connection] = {}
        self._epochs: set[str] = set()  # of connections
        self._lost_line = 0  # the first of the newest epoch, if there was another: storage may have lost what was accepted before
        self._twice: set[Violation] = set()  # those that such a loss explains
        self._caps: dict[str, tuple[int, float]] = {}
        self._disturbed = False
        self._holes: list[tuple[int, _Connection, int]] = []  # (line, connection, number)

    def take_next(self, event: Mapping[str, Any]) -> None:
        self._line += 1
        try:
            getattr(self, f"_on_{event['event']}")(event)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._found("history", "", f"{type(error).__name__}: {error}")

    def take_line(self, line: str) -> None:
        """One event, as JSON."""
        try:
            event = json.loads(line)
        except ValueError as error:
            self._line += 1
            self._found("history", "", str(error))
        else:
            self.take_next(event)

    def _found(self, reason: str, user: str, detail: str) -> None:
        self.violations.append(Violation(reason, self._line, user, detail))

    def _found_twice(self, reason: str, user: str, detail: str) -> None:
        """A message that had been accepted before. A new epoch may tell later that storage had lost it meanwhile."""
        self._found(reason, user, detail)
        self._twice.add(self.violations[-1])

    # -- Publishers. ---------------------------------------------------------------------------------------------------
    def _on_publish(self, event: Mapping[str, Any]) -> None:
        ids, id, members = self._users[event["user"]].ids, event["id"], event.get("members", {})
        if id not in ids:
            ruled = bool(members.get("suppressible"))
            lasting = not members.keys() & {"ttl", "collapse", "suppressible"} and members.get("retain", True)
            ids[id] = _Id(self._line, event.get("at_ms"), lasting, ruled)
        self._calls[event["call"]] = _Call(event, ids[id].accepted is not None)
        ids[id].payloads.add(_digest(event["payload"]))
        ids[id].open += 1

    def _on_answer(self, event: Mapping[str, Any]) -> None:
        call = self._calls.pop(event["call"])
        getattr(self, f"_answered_{call.event['event']}")(call, event["status"], event.get("result", {}), event.get("at_ms"))

    def _answered_publish(self, call: _Call, status: int, result: Mapping[str, Any], at_ms: float | None) -> None:
        name, id, payload = call.event["user"], call.event["id"], _digest(call.event["payload"])
        known = self._users[name].ids[id]
        outcome = result.get("status", "accepted" if status == ACCEPTED else "refused")
        known.open -= "may have been accepted" not in result.get("reason", "")
        if known.accepted_line < self._lost_line:
            known.accepted, call.settled_before = None, False
        same = known.accepted in (None, payload)
        if status == CONFLICT:
            if call.settled_before and same:
                self._found_twice("repeat", name, f"{id}: a repeat with the same payload was answered 409")
            elif known.payloads == {payload}:
                self._found("conflict", name, f"{id}: nothing else was published under the id")
        if outcome not in _TAKEN:  # of a batch, some may be accepted when others are not
            return
        if not same:
            self._found_twice("conflict", name, f"{id}: another payload was answered {outcome}")
        elif call.settled_before and outcome == "accepted":
            self._found_twice("repeat", name, f"{id}: a repeat was accepted as a new message")
        if known.accepted is None:
            known.accepted, known.accepted_line = payload, self._line
        known.statuses.add(outcome)
        known.inbox_only |= result.get("reason", "").startswith("inbox: ")
        if result.get("scheduled_at"):
            known.dues_ms.append(result["scheduled_at"])
        if result.get("seq"):
            known.seqs.add(result["seq"])
            self._same_number(name, id, known)
        category = call.event.get("members", {}).get("category")
        if outcome == "accepted" and category in self._caps and at_ms is not None and known.began_ms is not None:
            self._capped(name, category, known.began_ms, at_ms)

    def _capped(self, name: str, category: str, began_ms: float, at_ms: float) -> None:
        """All of them were accepted between the first beginning and now."""
        count, window_ms = self._caps[category]
        began = self._users[name].touched_ms[category]
        began[:] = [one for one in began if one >= at_ms - window_ms] + [began_ms] * (began_ms >= at_ms - window_ms)
        if len(began) > count:
            self._found("cap", name, f"{len(began)} of {category} in {at_ms - min(began):.0f} ms, {count} allowed")

    def _same_number(self, name: str, id: str, known: _Id) -> None:
        user = self._users[name]
        delivered = {user.seq_of[epoch, id] for epoch in user.epochs if (epoch, id) in user.seq_of}
        if len(user.epochs) <= 1 and len(known.seqs | delivered) > 1:
            self._found("answer", name, f"{id}: {sorted(known.seqs)} in answers, {sorted(delivered)} in messages")

    def _on_cancel(self, event: Mapping[str, Any]) -> None:
        self._users[event["user"]].ids[event["id"]].cancelled = True

    def _on_move(self, event: Mapping[str, Any]) -> None:
        self._users[event["user"]].ids[event["id"]].dues_ms.append(event["due_ms"])

    # -- Clients. ------------------------------------------------------------------------------------------------------
    def _on_welcome(self, event: Mapping[str, Any]) -> None:
        name, epoch, cursor, resumed = event["user"], event["epoch"], event["cursor"], event["resumed"]
        user = self._users[name]
        of, _, at = (cursor or "").rpartition("-")
        if resumed == "ok" and of != epoch:
            self._found("resumed", name, f"`ok` with cursor {cursor} in epoch {epoch}")
        elif resumed == "gap" and ((of == epoch and (epoch, int(at)) in user.ids_of) or not cursor):
            self._found("resumed", name, f"`gap` with cursor {cursor} in epoch {epoch}")
        user.epochs.add(epoch)
        if epoch not in self._epochs and self._epochs:
            self._lost_line = self._line
            self.violations = [one for one in self.violations if one not in self._twice]
        self._epochs.add(epoch)
        self._connections[event["connection"]] = _Connection(name, epoch, int(at) if resumed == "ok" else None)

    def _on_message(self, event: Mapping[str, Any]) -> None:
        connection = self._connections[event["connection"]]
        seq, id, attempt = event["seq"], event["id"], event["attempt"]
        self._named(connection, seq, id)
        self._content(connection.user, id, event)
        if seq in connection.attempts:
            if attempt <= connection.attempts[seq] and not self._disturbed:
                self._found("attempt", connection.user, f"number {seq} came again as attempt {attempt}")
        elif connection.reached is not None and seq <= connection.reached:
            self._found("order", connection.user, f"number {seq} came after {connection.reached}")
        elif connection.reached is not None:
            for hole in self._holes_between(connection, connection.reached + 1, seq - 1):
                self._holes.append((self._line, connection, hole))
        connection.attempts[seq] = attempt
        connection.reached = max(connection.reached or 0, seq)

    def _on_early(self, event: Mapping[str, Any]) -> None:
        """An early copy has its number, and no place in the order."""
        connection = self._connections[event["connection"]]
        self._named(connection, event["seq"], event["id"])
        self._content(connection.user, event["id"], event)

    def _named(self, connection: _Connection, seq: int, id: str) -> None:
        user, epoch = self._users[connection.user], connection.epoch
        if user.ids_of.setdefault((epoch, seq), id) != id:
            self._found("number", connection.user, f"{seq} is both {user.ids_of[epoch, seq]} and {id}")
        elif user.seq_of.setdefault((epoch, id), seq) != seq:
            self._found("number", connection.user, f"{id} is both {user.seq_of[epoch, id]} and {seq}")
        elif id in user.ids:
            self._same_number(connection.user, id, user.ids[id])

    def _content(self, name: str, id: str, event: Mapping[str, Any]) -> None:
        user, at_ms = self._users[name], event.get("at_ms")
        known = user.ids.get(id) or self._users[_EVERYBODY].ids.get(id)
        if known is None:
            if "count" not in event:  # a summary of several has an id of its own
                self._found("invented", name, id)
            return
        if "payload" in event:
            payload = _digest(event["payload"])
            if payload != known.accepted and (known.accepted is not None or payload not in known.payloads):
                self._found("altered", name, id)
        if not known.statuses and not known.open:
            self._found("refused", name, id)
        if at_ms is not None and not known.came and known.began_ms is not None:
            if (early_ms := min(known.dues_ms, default=at_ms) - at_ms) > 0:
                self._found("due", name, f"{id}: {early_ms:.0f} ms too early")
            if any(from_ms <= known.began_ms and at_ms < to_ms for from_ms, to_ms in user.quiet):
                self._found("quiet", name, id)
        known.came = True

    def _holes_between(self, connection: _Connection, first: int, last: int) -> Iterator[int]:
        """Those of these numbers that nobody acknowledged and nothing announced until now."""
        user = self._users[connection.user]
        at = first
        while at <= last:
            ends = [end for begin, end in user.gone.get(connection.epoch, ()) if begin <= at <= end]
            id = user.ids_of.get((connection.epoch, at))
            if ends:
                at = max(ends)
            elif id is None or (id not in user.revoked and id not in user.acked):
                yield at
            at += 1

    def _on_gap(self, event: Mapping[str, Any]) -> None:
        connection = self._connections[event["connection"]]
        user = self._users[connection.user]
        user.pass_over(connection.epoch, event["from"], event["to"])
        user.announced.update(range(event["from"], event["to"] + 1))

    def _on_ack(self, event: Mapping[str, Any]) -> None:
        user = self._users[event["user"]]
        if "cursor" in event:
            epoch, _, seq = event["cursor"].rpartition("-")
            user.pass_over(epoch, 1, int(seq))
        user.acked.update(event.get("ids", ()))

    def _on_revoke(self, event: Mapping[str, Any]) -> None:
        self._users[self._connections[event["connection"]].user].revoked.update(event["ids"])

    def _on_counts(self, event: Mapping[str, Any]) -> None:
        connection = self._connections[event["connection"]]
        counts, found = self._users[connection.user].counts, (event["unread"], event["unseen"])
        if counts.setdefault((connection.epoch, event["revision"]), found) != found:
            self._found("counts", connection.user, f"revision {event['revision']} is {found} too")

    # -- Inboxes and questions. ----------------------------------------------------------------------------------------
    def _on_mark(self, event: Mapping[str, Any]) -> None:
        self._calls[event["call"]] = _Call(event)
        self._mark(event, known=False)

    def _answered_mark(self, call: _Call, status: int, _: Mapping[str, Any], __: float | None) -> None:
        others = {
            (id, mark)
            for other in self._calls.values()
            if other.event["event"] == "mark" and other.event["user"] == call.event["user"]
            for id in other.event["ids"]
            for mark, _ in _MARKS.get(other.event["mark"], ())
        }
        if status == OK:
            self._mark(call.event, known=True, but=others)

    def _mark(self, event: Mapping[str, Any], *, known: bool, but: Iterable[tuple[str, str]] = ()) -> None:
        marks = self._users[event["user"]].marks
        for id in event["ids"]:
            marks.update({(id, mark): value if known else None for mark, value in _MARKS.get(event["mark"], ()) if (id, mark) not in but})

    def _on_inbox(self, event: Mapping[str, Any]) -> None:
        name = event["user"]
        user = self._users[name]
        for message in event["messages"]:
            id = message["id"]
            if id not in user.ids and id not in self._users[_EVERYBODY].ids:
                self._found("invented", name, f"{id} in the inbox")
            for mark in ("read", "seen", "archived"):
                wanted = user.marks.get((id, mark))
                if wanted is not None and mark in message and message[mark] != wanted:
                    self._found("mark", name, f"{id} is {'' if message[mark] else 'not '}{mark}")

    def _on_reply(self, event: Mapping[str, Any]) -> None:
        self._calls[event["call"]] = _Call(event)

    def _answered_reply(self, call: _Call, status: int, result: Mapping[str, Any], _: float | None) -> None:
        if status not in (OK, CONFLICT):
            return
        name, id = call.event["user"], call.event["id"]
        answer = call.event["answer"] if status == OK else result["answer"]
        winner = self._users[name].winners.setdefault(id, answer)
        if winner != answer:
            self._found("winner", name, f"{id} is answered {winner} and {answer}")

    # -- What is decided in the end. -----------------------------------------------------------------------------------
    def finish(self) -> None:
        """The history ends here, perhaps before everything came: whose number was skipped is known now, if it ever is."""
        for line, connection, seq in self._holes:
            self._line = line
            user = self._users[connection.user]
            id = user.ids_of.get((connection.epoch, seq)) or next((id for id, known in user.ids.items() if seq in known.seqs), None)
            if id is not None and not (id in user.ids and user.ids[id].inbox_only):
                self._found("hole", connection.user, f"number {seq}, which is {id}, was skipped")
        self._holes.clear()

    # -- Of the run. ---------------------------------------------------------------------------------------------
    def _on_disturbed(self, _: Mapping[str, Any]) -> None:
        self._disturbed = True

    def _on_quiet(self, event: Mapping[str, Any]) -> None:
        self._users[event["user"]].quiet.append((max(event["from_ms"], event["at_ms"]), event["to_ms"]))

    def _on_cap(self, event: Mapping[str, Any]) -> None:
        self._caps[event["category"]] = (event["count"], event["window_ms"])

    def _on_complete(self, event: Mapping[str, Any]) -> None:
        self.finish()
        now_ms = event.get("now_ms", math.inf)
        for name, user in self._users.items():
            numbered = set(user.seq_of.values()).union(*(known.seqs for known in user.ids.values()))
            nameless = len(user.announced - numbered)  # numbers that are gone, of messages whose answers named none
            for id, known in user.ids.items() if name != _EVERYBODY else ():
                taken = bool(known.statuses & {"accepted", "scheduled"} or known.seqs)
                owed = taken and known.lasting and not known.cancelled and not known.inbox_only
                excused = known.accepted_line < self._lost_line or known.seqs & user.announced
                waits = max(known.dues_ms, default=-math.inf) > now_ms
                if not owed or waits or excused or known.came or id in user.revoked or id in user.acked:
                    continue
                if not known.seqs and nameless:
                    nameless -= 1
                    continue
                self._found("lost", name, f"{id}, published in line {known.first_line}")


def _digest(payload: Any) -> bytes:
    return hashlib.blake2b(json.dumps(payload, sort_keys=True).encode(), digest_size=16).digest()


def check(lines: Iterable[str]) -> list[Violation]:
    """All violations of a history, by its lines."""
    checker = Checker()
    for line in lines:
        checker.take_line(line)
    checker.finish()
    return checker.violations
