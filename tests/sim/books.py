"""The books: what was promised, what storage holds, what clients were shown; and every promise checked at every step it touches.

Three sources feed them, none of them the engine's own opinion of itself:

    storage     every write, as it is applied, with the process that made it
    outside     what publishers were answered, what clients received and sent
    shards      what a core was told and what it sent, in order (`taps`): for the promises that hold from one moment on, such as
                "nothing acknowledged comes again", where messages on their way would blur the moment

A number of a user is *accounted for* when a client acknowledged or refused it, it expired, was trimmed, or was not to be kept.

Checked (numbers of ARCHITECTURE.md's invariants in brackets):
    [1] answered 202: in the journal then, and kept until it is accounted for; 503: never shown
    [2] shown: in the journal; a number names one message for ever
    [3] whatever leaves the journal, a stream or the timers is accounted for, or is kept elsewhere
    [4] only the newest holder of an epoch changes a journal, a page, a stream, a timer partition
    [5] numbers only grow; one id has one number
    [6] a timer's effect: not before its time, once, not after a confirmed cancel, and in the end it happens
    [8] queues stay within their limits
    windows, broadcasts, limits, quiet hours, inboxes, choices: `tests.sim.windowbook`, `broadcastbook`, `limitbook`, `wishbook`,
        `inboxbook`, `choicebook`
    owners, controllers and links: `tests.sim.ownership`
    stores: what is of a slot or a timer partition is in its store; whose store never failed is never refused because of another
    overload: what was refused is not there; a message that another stands for was counted in it, and only that one may be missing
    PROTOCOL: order, gaps, attempts, tries, window, revocation, cursors; nothing acknowledged comes again; a refusal is confirmed when the
        dead letters have it
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from engine.check import Checker, Recorder
from engine.config import Config
from engine.core.journal import journal_records
from engine.core.journal.stored_formats import decode_timer
from engine.core.model.routing import partition_of_timer, slot_of, store_of
from engine.features.windows.core.aggregation_window import Counted, Ended
from engine.store.keys import CONTROLLER_FIELD, META_KEY, offline_key, page_key
from tests.sim.broadcastbook import LOG_KEY, TEAM, BroadcastBook
from tests.sim.choicebook import CHOSEN
from tests.sim.cluster import DATA_EPOCH, MADE_PREFIX
from tests.sim.known import Message, Receiving, Timer, User, Violation
from tests.sim.limitbook import CATEGORIES
from tests.sim.loop import Process
from tests.sim.redis import MiniRedis, Stream
from tests.sim.windowbook import Broken
from tests.support.stored import decode_journal, decode_page

_META: Final = META_KEY.encode()
_KEY: Final = re.compile(rb"(?:shard-(\d+)|s(\d+)|t(\d+)):(\w+)(?::uid:)?(.*)")


class Books:
    """See the module's text.

    Args:
        servers: of the stores, whose writes are watched.
        writer: the process whose command a store applies right now.
    """

    def __init__(
        self, config: Config, servers: Sequence[MiniRedis], writer: Callable[[], Process | None], wall_ms: Callable[[], int]
    ) -> None:
        self._config = config
        self._servers = servers
        self._writer = writer
        self._wall_ms = wall_ms
        self.users: dict[str, User] = {}
        self.timers: dict[str, Timer] = {}
        self.holders: dict[bytes, tuple[Process | None, int]] = {}  # epoch key -> who wrote it, and what
        self.seen: Counter[str] = Counter()  # what really happened, for the coverage table
        self.broadcasts = BroadcastBook(config.broadcasts_max)
        self.is_split: Callable[[], bool] = lambda: False
        self.on_slot_taken: Callable[[Process, int], None] = lambda _holder, _slot: None
        self.on_owner: Callable[[str, Process], None] = lambda _name, _process: None
        self.on_control: Callable[[int], None] = lambda _epoch: None
        self.latest_ms = 0  # the furthest the wall clock ever was
        self.set_back_ms = 0  # and how far when it was last found to be behind
        self._places: dict[bytes, tuple[str, int, str, str]] = {}
        self._undo: set[tuple[str, int]] = set()
        self._checker = Checker()
        self._twice: list[str] = []  # beginnings of what the checker says of ids that the engine made and that have two numbers
        self.history = Recorder(self._happened)
        """What publishers and devices see, for a checker that knows nothing else."""
        self.is_undisturbed: Callable[[str], bool] = lambda _key: False  # this user: whatever fails, it is in another store
        self.serves_beside: Callable[[str], bool] = lambda _key: False
        for store, server in enumerate(servers):
            server.watch = self._written if len(servers) == 1 else partial(self._written_in, store)

    def user(self, key: str) -> User:
        found = self.users.get(key)
        if found is None:
            found = self.users[key] = User(key)
        return found

    def _happened(self, event: dict[str, Any]) -> None:
        self._checker.take_next(event)
        for one in self._checker.violations:
            if one.reason not in {"answer", "number"} or not one.detail.startswith(tuple(self._twice)):
                raise Violation(f"[history] {one}", one.user)

    # -- What is accounted for. ---------------------------------------------------------------------------------------
    def is_accounted(self, user: User, seq: int) -> bool:
        """May this number be gone from storage, or be passed over?"""
        if seq <= user.accounted_floor or user.has_handled(seq):
            return True
        message = user.messages.get(seq)
        if message is None:
            return False
        if message.replaced or message.inbox_only or self.broadcasts.is_gone(message.pos):
            return True
        return not message.retain or message.expires_ms <= self._now() or user.is_crowded_out(seq, self._config.offline_max)

    def is_owed(self, sid: str, timer: Timer) -> bool:
        """Must it have taken effect by now? By the wall clock: one that was set back by an hour makes it an hour later, or quiet again."""
        now_ms = self._wall_ms()
        if not timer.owed or max(timer.dues) > now_ms or self.user(timer.key).wishes.sleeps(now_ms):
            return False
        return self._due_ms(sid) <= now_ms

    def _due_ms(self, sid: str) -> float:
        """When a timer comes that was put off while the clock was ahead: when the clock is there again. 0 for any other."""
        server, partition = self._place_of_timer(sid)
        score = server.cmd_zscore(b"t%d:due" % partition, sid.encode()) if self.set_back_ms else None
        return 0 if score is None else float(score)

    def _stored_timer(self, sid: str) -> bytes | None:
        server, partition = self._place_of_timer(sid)
        return server.cmd_hget(b"t%d:timer" % partition, sid.encode())

    def _place_of_timer(self, sid: str) -> tuple[MiniRedis, int]:
        """The server that has the timer, and its partition."""
        partition = partition_of_timer(sid)
        assert partition is not None, f"{sid} is the id of a timer"
        return self._server(partition), partition

    def look_at_clock(self) -> None:
        """It is about to be set, or was: whatever it said may have been acted upon."""
        self._now()

    def _now(self) -> int:
        wall_ms = self._wall_ms()
        if wall_ms < self.latest_ms:
            self.set_back_ms = self.latest_ms
        self.latest_ms = max(self.latest_ms, wall_ms)
        return self.latest_ms

    def _advance(self, user: User) -> None:
        while self.is_accounted(user, user.accounted_floor + 1):
            user.accounted_floor += 1

    # -- Storage. -----------------------------------------------------------------------------------------------------
    def _place(self, key: bytes) -> tuple[str, int, str, str]:
        """Of a key: whose (shard, slot, timer partition), which of them, what, and the rest."""
        place = self._places.get(key)
        if place is None:
            match = _KEY.fullmatch(key)
            if match is None:
                place = ("", 0, key.decode(), "")
            else:
                number = next(index for index in (1, 2, 3) if match[index] is not None)
                place = (("shard", "slot", "partition")[number - 1], int(match[number]), match[4].decode(), match[5].decode())
            self._places[key] = place
        return place

    def _server(self, index: int) -> MiniRedis:
        """Of the store that has the slot or the timer partition of this index."""
        return self._servers[store_of(index, len(self._servers))]

    def _written_in(self, store: int, how: str, key: bytes, detail: Any) -> None:
        whose, number, what, _ = self._place(key)
        is_shared = key == LOG_KEY or what.startswith("dead:")
        if (whose and store_of(number, len(self._servers)) != store) or (is_shared and store):
            raise Violation(f"[stores] {self._writer()} wrote {key.decode()} to store {store}")
        self._written(how, key, detail)

    def _written(self, how: str, key: bytes, detail: Any) -> None:
        whose, number, what, rest = self._place(key)
        if not whose:
            self._written_of_nobody(how, key, what, detail)
            return
        if what == "epoch":
            self._took_over(key, int(detail))
        elif what == "journal":
            self._check_holder(b"s%d:epoch" % number, "the journal", whose, number)
            self._journal(how, number, detail)
        elif what == "page" and how == "hset":
            self._check_holder(b"s%d:epoch" % number, "a page", whose, number)
            self.seen["pages"] += 1
        elif what == "offline":
            if how == "xadd":
                self._check_holder(b"s%d:epoch" % number, "an offline stream", whose, number)
            elif how in {"xtrim", "xdel"}:
                self._left_stream(rest, detail[0][0])
            else:
                for entry_id in detail.entries:
                    self._left_stream(rest, entry_id[0])
        elif what in {"timer", "due"}:
            self._check_holder(b"t%d:epoch" % number, "timers", whose, number)

    def _written_of_nobody(self, how: str, key: bytes, what: str, detail: Any) -> None:
        """What belongs to no shard, slot or partition."""
        if key == LOG_KEY:
            self._log(how, detail)
        elif key == _META and how == "hset":
            name, writer = detail[0].decode(), self._writer()
            if name == CONTROLLER_FIELD:
                self.on_control(int(detail[1]))
            elif writer is not None and name == writer.name:
                self.on_owner(name, writer)
        elif how == "xadd" and what.startswith("dead:"):
            letter = dict(zip(detail[1][::2], detail[1][1::2], strict=True))
            self.user(f"{what.removeprefix('dead:')}:{letter[b'user'].decode()}").dead.add(letter[b"id"].decode())

    def _took_over(self, key: bytes, epoch: int) -> None:
        before = self.holders.get(key)
        if before is not None and epoch < before[1]:
            raise Violation(f"[4] {key.decode()} went back from epoch {before[1]} to {epoch}")
        self.holders[key] = self._writer(), epoch
        whose, number, _, _ = self._place(key)
        if whose == "slot" and before is not None and before[0] is not None:
            self.on_slot_taken(before[0], number)

    def _check_holder(self, epoch_key: bytes, what: str, whose: str, number: int) -> None:
        holder = self.holders.get(epoch_key)
        if holder is not None and holder[0] is not self._writer():
            raise Violation(f"[4] {self._writer()} wrote {what} of {whose} {number}, which {holder[0]} holds under epoch {holder[1]}")

    def _journal(self, how: str, slot: int, detail: tuple[tuple[int, int], list[bytes]]) -> None:
        (epoch, _), fields = detail
        records = decode_journal(fields[fields.index(b"b") + 1])
        if how == "xadd":
            for user in self.users.values():
                if slot_of(user.key) == slot:
                    user.wishes.next_group()
            for record, following in zip(records, [*records[1:], None], strict=True):
                for key in journal_records.keys_of([record]):
                    if slot_of(key) != slot:
                        self.fail(f"the journal of slot {slot} has something of slot {slot_of(key)}: nobody would read it", key)
                if not isinstance(record, journal_records.Marked):  # its answer counts
                    self._added(record, following, epoch)
        elif how == "xdel":
            for record in reversed(records):
                self._removed(record)
        else:
            for record in records:
                self._trimmed(record)
        self.seen["groups" if how == "xadd" else "rolled back" if how == "xdel" else "groups trimmed"] += 1

    def _added(self, record: journal_records.Record, following: journal_records.Record | None, epoch: int) -> None:
        """A record is in the journal; `following` comes next in its group."""
        if isinstance(record, journal_records.Adopted):
            for key, seq in record.numbers:
                self._adopted(self.user(key), record, seq)
            return
        user = self.user(record.key)
        if isinstance(record, journal_records.StoredMessage):
            self._journalled(user, record)
        elif isinstance(record, journal_records.Handled):
            self._handled(user, record.floor, record.acked)
        elif isinstance(record, journal_records.Decided):
            self._blaming(user, user.choices.decided, record)
            self.seen[record.entry.event] += 1
        elif isinstance(record, journal_records.Topics):
            user.taken.subscribe(record.topics)
            self.seen["subscribed"] += 1
        elif isinstance(record, journal_records.Profiled):
            user.wishes.change(record)
            self.seen["profiles"] += 1
        elif isinstance(record, Counted):
            item = record.item
            if not record.seq and item.envelope.id in user.seq_of and not item.envelope.id.startswith(MADE_PREFIX):
                raise Violation(
                    f"{item.envelope.id} of {user.key} counts in a window, and was delivered as {user.seq_of[item.envelope.id]}", user.key
                )
            user.remember(item.envelope.id, item.timer)
            self._blaming(user, user.windows.count, record, named=not item.envelope.id.startswith(MADE_PREFIX))
            if item.timer and not record.seq:
                self._effect(user, item.timer)
            self.seen["counted"] += 1
        elif isinstance(record, Ended):
            count = self._blaming(user, user.windows.end, record, following, self._now())
            self.seen["windows closed"] += 1
            self.seen["merged"] += count > 1
        else:
            self.fail(f"a {type(record).__name__} is not part of this world", user.key)

    def _removed(self, record: journal_records.Record) -> None:
        """A record's group is rolled back; of a group the last record comes first."""
        if isinstance(record, journal_records.Adopted):
            for key, seq in reversed(record.numbers):
                del self.user(key).taken.seq_of[record.pos]
                self._rolled_back(self.user(key), seq)
        elif isinstance(record, journal_records.StoredMessage):
            self._rolled_back(self.user(record.key), record.seq)
        elif isinstance(record, journal_records.Handled):
            self.user(record.key).acknowledgements_rolled_back()
        elif isinstance(record, journal_records.Topics):
            self.user(record.key).taken.rolled_back()
        elif isinstance(record, journal_records.Profiled):
            self.user(record.key).wishes.rolled_back()
        elif isinstance(record, Counted | Ended):
            user = self.user(record.key)
            self._blaming(user, user.windows.rolled_back, record)
            if isinstance(record, Counted) and record.item.timer and not record.seq:
                self.timers[record.item.timer].fired = False

    def _trimmed(self, record: journal_records.Record) -> None:
        """A record left the journal, because a checkpoint covers it."""
        if isinstance(record, journal_records.Adopted):
            for key, seq in record.numbers:
                self._left_journal(self.user(key), seq, self.broadcasts.entries[record.pos].envelope.id)
        elif isinstance(record, journal_records.StoredMessage):
            self._left_journal(self.user(record.key), record.seq, record.envelope.id)
        elif isinstance(record, Counted | Ended):
            page = self._page(record.key)
            if page is None or page.windows is None or page.windows.applied < record.number:
                raise Violation(f"[3] window record {record.number} of {record.key} left the journal, and no page has it", record.key)

    def _page(self, key: str) -> journal_records.MailboxPage | None:
        slot = slot_of(key)
        blob = self._server(slot).cmd_hget(page_key(slot).encode(), key.encode())
        return None if blob is None else decode_page(key, blob)

    def _blaming(self, user: User, check: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return check(*args, **options)
        except Broken as error:
            raise Violation(f"{error} ({user.key})", user.key) from error

    def _log(self, how: str, detail: Any) -> None:
        (pos, _), fields = detail
        if how == "xadd":
            self.broadcasts.appended(pos, fields[1])
            self.seen["broadcasts"] += 1
        else:
            self.broadcasts.dropped(pos, self._now())
            self.seen["broadcasts dropped"] += 1

    def _adopted(self, user: User, record: journal_records.Adopted, seq: int) -> None:
        entry = self._blaming(user, self.broadcasts.take, user.taken, record.pos, seq)
        stored = journal_records.StoredMessage(user.key, seq, entry.envelope, entry.expires_ms, record.accepted_ms, pos=record.pos)
        self._journalled(user, stored)
        self.seen["adopted"] += 1
        self.seen["adopted by members"] += entry.topic == TEAM

    def _journalled(self, user: User, record: journal_records.StoredMessage) -> None:
        if record.seq <= user.head:
            raise Violation(f"[5] number {record.seq} of {user.key} is given to {record.envelope.id}, and {user.head} exists", user.key)
        shown = user.shown.get(record.seq)
        if shown is not None and shown != record.envelope.id:
            raise Violation(f"[2] number {record.seq} of {user.key} was shown as {shown}, now it is {record.envelope.id}", user.key)
        if (other := user.seq_of.get(record.envelope.id)) is not None and not record.timer:
            if self._must_know(user, record.envelope.id):
                raise Violation(f"[5] {record.envelope.id} of {user.key} has the numbers {other} and {record.seq}", user.key)
            self._twice += (f"{record.envelope.id}: ", f"{record.envelope.id} is both ")
            user.former_seq[record.seq] = other
        user.remember(record.envelope.id, record.timer)
        message = user.messages[record.seq] = Message(record)
        user.seq_of[record.envelope.id] = user.head = record.seq
        if not record.inbox_only:
            user.to_send.append(record.seq)
        self._now()
        self.seen["limited"] += self._blaming(user, user.limits.count, record, self.set_back_ms)
        self.seen["not in quiet hours"] += self._blaming(user, user.wishes.check, record)
        self.seen["of a chosen category"] += self._blaming(user, user.choices.numbered, record)
        if record.supersedes:
            self._stands_for(user, message)
        if record.timer:
            self._effect(user, record.timer)

    def _stands_for(self, user: User, newer: Message) -> None:
        older = user.messages.get(newer.supersedes)
        if older is None or older.collapse != newer.collapse or older.replaced or newer.count != older.count + 1:
            raise Violation(f"{newer.id} of {user.key} stands for {newer.supersedes}, and counts {newer.count}", user.key)
        told = msgspec.json.decode(b"{%b}" % newer.body).get("count")
        if told != newer.count:
            raise Violation(f"{newer.id} of {user.key} stands for {newer.count} messages, and says {told}", user.key)
        older.replaced = True
        self.seen["conflated"] += 1

    def _must_know(self, user: User, id: str) -> bool:
        """Ids that publishers gave are kept for a day, those the engine made only with a mailbox's last ones."""
        return not id.startswith(MADE_PREFIX) or user.remembered - user.place_of[id] <= journal_records.PAGE_RECENT_IDS

    def _effect(self, user: User, sid: str) -> None:
        timer = self.timers.setdefault(sid, Timer(user.key, set()))
        if timer.fired:
            raise Violation(f"[6] timer {sid} of {user.key} took effect twice", user.key)
        if timer.cancelled:
            raise Violation(f"[6] timer {sid} of {user.key} took effect, and its cancel was confirmed", user.key)
        if timer.dues and self._now() < min(timer.dues):
            raise Violation(f"[6] timer {sid} of {user.key} took effect {min(timer.dues) - self._now()} ms early", user.key)
        timer.fired = True
        self.seen["timers fired"] += 1

    def _rolled_back(self, user: User, seq: int) -> None:
        message = user.messages[seq]
        if user.accepted.get(message.id) == seq:
            raise Violation(f"[1] {message.id} of {user.key} was answered 202 and is rolled back", user.key)
        if seq in user.shown:
            raise Violation(f"[2] {message.id} of {user.key} was shown and is rolled back", user.key)
        del user.messages[seq], user.seq_of[message.id]
        if not message.inbox_only:
            user.to_send.remove(seq)
        user.limits.rolled_back(seq)
        user.accounted_floor = min(user.accounted_floor, seq - 1)  # one that is not kept was accounted for at once
        user.head = max(user.messages, default=user.accounted_floor)
        if message.supersedes:
            user.messages[message.supersedes].replaced = False
            user.accounted_floor = min(user.accounted_floor, message.supersedes - 1)
        if message.timer:
            self.timers[message.timer].fired = False

    def _handled(self, user: User, floor: int, acked: Iterable[int]) -> None:
        """The journal says that these are acknowledged: storage may forget them from now on."""
        self._advance(user)
        for seq in [*range(user.accounted_floor + 1, floor + 1), *acked]:
            if not self.is_accounted(user, seq):
                raise Violation(f"[3] {seq} of {user.key} is journalled as handled, and nobody acknowledged it", user.key)
        numbers = [seq for seq in (*range(1, floor + 1), *acked) if seq <= user.acked_through or seq in user.acked]
        user.acked_by_last_group = [seq for seq in numbers if seq not in user.durably_acked]
        user.durably_acked.update(user.acked_by_last_group)

    def _left_journal(self, user: User, seq: int, id: str) -> None:
        """A checkpoint covers this number: the page must be past it, and the message kept or accounted for."""
        key = user.key
        page = self._page(key)
        if page is None or page.head < seq:
            raise Violation(f"[5] {seq} of {key} left the journal, and no page knows that the number is given", key)
        stream = self._server(slot_of(key)).data.get(offline_key(key).encode())
        kept = isinstance(stream, Stream) and (seq, 0) in stream.entries
        if not kept and not self.is_accounted(user, seq):
            raise Violation(f"[3] {id} ({seq} of {key}) left the journal and is in no stream", key)

    def _left_stream(self, key: str, seq: int) -> None:
        user = self.user(key)
        if not self.is_accounted(user, seq):
            raise Violation(f"[3] {seq} of {key} left the offline stream, and nobody has handled it", key)

    # -- Publishers. --------------------------------------------------------------------------------------------------
    def asked(self, key: str, id: str, category: str, *, retain: bool) -> None:
        """A publish is on its way."""
        user = self.user(key)
        user.open_attempts[id] += 1
        if category in CHOSEN:
            user.choices.publishing(id, category, retain=retain)

    def answered(self, key: str, id: str, status: str, seq: int) -> None:
        """Its answer: accepted or duplicate, with a number."""
        user = self.user(key)
        user.told = max(user.told, seq)
        message = user.messages.get(seq)
        if message is None or message.id != id:
            raise Violation(f"[1] {id} of {key} is answered {status} as {seq}, and the journal has {message and message.id}", key)
        if user.accepted.setdefault(id, seq) != seq:
            raise Violation(f"[5] {id} of {key} is answered as {seq}, before it was {user.accepted[id]}", key)
        self.seen[status] += 1
        self.seen["accepted while another store is away"] += self.serves_beside(key)

    def refused(self, key: str, what: str) -> None:
        """A publisher is told that the engine is not available, or has waited too long for its answer."""
        if self.is_undisturbed(key):
            raise Violation(f"[stores] {what} of {key} is refused, and only another store failed", key)

    def answered_unavailable(self, key: str, id: str) -> None:
        """503, and nothing was accepted. It must not be there, unless another attempt brought it."""
        user = self.user(key)
        user.open_attempts[id] -= 1
        user.unavailable.add(id)
        self.seen["503"] += 1
        if id in user.shown.values() and not user.open_attempts[id]:
            raise Violation(f"[1] {id} of {key} is answered 503, and it was shown", key)

    def answered_overloaded(self, key: str, id: str) -> None:
        """429: it was refused at the door, so it is nowhere, unless another attempt brought it."""
        user = self.user(key)
        user.open_attempts[id] -= 1
        user.unavailable.add(id)
        self.seen["429"] += 1
        if not user.open_attempts[id] and (id in user.seq_of or id in user.windows.counted) and id not in user.accepted:
            raise Violation(f"[1] {id} of {key} is answered 429, and it was taken", key)

    def answered_merged(self, key: str, id: str) -> None:
        """202: it counts in a window."""
        user = self.user(key)
        if id not in user.windows.counted:
            raise Violation(f"[1] {id} of {key} is answered as merged, and counts nowhere", key)
        self.seen["answered merged"] += 1

    def answered_suppressed(self, key: str, id: str, category: str, reason: str) -> None:
        """202, and it is not delivered: its category is used up, or its user does not want it."""
        if category in CHOSEN:
            self._blaming(self.user(key), self.user(key).choices.told_suppressed, id)
            self.seen["answered suppressed"] += 1
            return
        cap = CATEGORIES[category].cap or 1 if category else 0
        if not cap or reason.partition(":")[0] != ("cap" if category == "few" else "same_type"):
            raise Violation(f"{id} of {key} is suppressed: {reason}", key)
        if self.user(key).limits.ever(category) < cap:
            raise Violation(f"{id} of {key} is suppressed, and {category} was never used up: {reason}", key)
        self.seen["answered suppressed"] += 1

    def answered_announced(self, key: str, topic: str, id: str) -> None:
        """202: a broadcast is in the log."""
        if not self.broadcasts.has(topic, id):
            raise Violation(f"[1] the broadcast {id} is answered 202, and is not in the log", key)
        self.seen["announced"] += 1

    def profiled(self, key: str) -> None:
        """204: the user's profile is kept."""
        if not self.user(key).wishes.wanted:
            raise Violation(f"[1] the profile of {key} was taken, and the journal does not have it", key)

    # -- Delayed messages. --------------------------------------------------------------------------------------------
    def scheduled(self, key: str, sid: str, due_ms: int) -> None:
        """202: it will happen."""
        timer = self.timers.setdefault(sid, Timer(key, set()))
        timer.dues.add(due_ms)
        self.seen["scheduled"] += 1
        if self._stored_timer(sid) is None and timer.owed:
            raise Violation(f"[6] timer {sid} of {key} is answered 202, and storage does not have it", key)

    def moving(self, sid: str, due_ms: int) -> None:
        """Somebody asks for another time: from now on either may be."""
        self.timers[sid].dues.add(due_ms)

    def cancelling(self, sid: str) -> None:
        """Somebody asks for its cancel: from now on it may never happen."""
        self.timers[sid].cancels += 1

    def cancelled(self, sid: str) -> None:
        timer = self.timers[sid]
        if timer.fired:
            raise Violation(f"[6] the cancel of {sid} is confirmed, and it has taken effect", timer.key)
        timer.cancelled = True
        self.seen["cancelled"] += 1

    # -- Clients. -----------------------------------------------------------------------------------------------------
    def acknowledges(self, key: str, through: int, others: Iterable[int] = ()) -> None:
        """A client is about to say that it has handled these."""
        user = self.user(key)
        user.acked_through = max(user.acked_through, through)
        user.acked.update(others)

    def refuses(self, key: str, seqs: Iterable[int]) -> None:
        """A client is about to say that it cannot handle these."""
        user = self.user(key)
        for seq in seqs:
            if not user.has_handled(seq):
                user.refused_first.add(user.messages[seq].id)
            user.refused.add(seq)

    def nacked(self, to: Receiving, ids: Iterable[str]) -> None:
        """A client is told that what it refused is safe, or was settled before; what it says on one connection arrives in order."""
        user = to.user
        for id in ids:
            self.seen["nacked"] += 1
            if user.devices > 1 or id in user.dead or id not in user.refused_first:
                continue  # another device may have been faster
            seq = user.seq_of.get(id, 0)
            message = user.messages.get(seq)
            if message is None or message.replaced or self.broadcasts.is_gone(message.pos):
                continue
            if message.retain and message.expires_ms > self._now() and not user.is_crowded_out(seq, self._config.offline_max):
                raise Violation(f"{to.name} is told that {id} ({seq}) is refused, and no dead letter has it", user.key)

    def welcomed(self, to: Receiving, head: int, first: int, resumed: str, cursor: tuple[str, int]) -> None:
        """A connection is attached.

        While two incarnations of a shard are alive, the old one may still greet with what it knew: it can write nothing, so the
        worst is a gap that is none. So may one that was taken for dead, whose slots others have.
        """
        user = to.user
        if head < to.told and not self.is_split():
            raise Violation(f"[5] {to.name} is told that {head} is the newest, and {to.told} was told before", user.key)
        expected = "new" if not cursor[0] else "ok" if cursor[0] == DATA_EPOCH and cursor[1] <= head else "gap"
        if resumed != expected:
            raise Violation(f"{to.name} presents {cursor} and is told {resumed!r}, head {head}", user.key)
        self._advance(user)
        for seq in range(user.accounted_floor + 1, first):
            if not self.is_accounted(user, seq):
                raise Violation(f"[3] {to.name} begins at {first}, and nobody has handled {seq}", user.key)
        to.high = first - 1
        self.seen[f"resumed {resumed}"] += 1

    def joined(self, to: Receiving) -> None:
        """The client of a connection whose token names TEAM is welcomed. Positions in the log are microseconds."""
        to.user.taken.members[to.name] = self._now() * 1000

    def ended(self, to: Receiving) -> None:
        """A connection is over, for its client."""
        to.user.taken.members.pop(to.name, None)

    def received(self, to: Receiving, seq: int, attempt: int, id: str) -> None:
        """A client is shown a message."""
        user = to.user
        message = user.messages.get(seq)
        if message is None:
            raise Violation(f"[2] {to.name} is shown {id} as {seq}, which is not in the journal", user.key)
        if message.id != id or user.shown.setdefault(seq, id) != id:
            raise Violation(f"[2] {to.name} is shown {id} as {seq}, which is {message.id}", user.key)
        if to.high < 0:
            raise Violation(f"{to.name} is shown {seq} before it is welcomed", user.key)
        user.told = max(user.told, seq)
        if id in user.unavailable and not user.open_attempts[id]:
            raise Violation(f"[1] {id} of {user.key} was answered 503, and {to.name} is shown it", user.key)
        before = to.seen.get(seq)
        if before is not None:
            self.seen["repeats"] += 1
            if not to.repeats:
                raise Violation(f"{to.name} is shown {seq} again, on a stream that does not repeat", user.key)
        elif seq <= to.high and seq in to.passed:
            self.seen["repeats"] += 1
        elif seq <= to.high:
            raise Violation(f"order: {to.name} is shown {seq} for the first time, after {to.high}", user.key)
        else:
            for skipped in range(to.high + 1, seq):
                if not self._may_skip(to, skipped):
                    raise Violation(f"order: {to.name} is shown {seq} after {to.high}, and nobody said why not {skipped}", user.key)
                if not any(first <= skipped <= last for first, last in to.gaps):
                    to.passed.add(skipped)
            to.high = seq
        to.seen[seq] = attempt
        to.times[seq] += 1
        self.seen["shown"] += 1

    def copied(self, to: Receiving, seq: int, id: str) -> None:
        """A client is shown an early copy."""
        user = to.user
        message = user.messages.get(seq)
        if message is None or message.id != id or user.shown.setdefault(seq, id) != id:
            raise Violation(f"[2] {to.name} is shown an early copy of {id} as {seq}, which is {message and message.id}", user.key)
        if to.high < 0 or (seq <= to.high and seq not in to.seen and seq not in to.passed):  # else a repeat, of a new incarnation
            raise Violation(f"order: {to.name} at {to.high} is shown an early copy of {seq}", user.key)
        if not message.high:
            raise Violation(f"{to.name} is shown an early copy of {seq}, which is not of high priority", user.key)
        if id in user.unavailable and not user.open_attempts[id]:
            raise Violation(f"[1] {id} of {user.key} was answered 503, and {to.name} is shown it", user.key)
        user.told = max(user.told, seq)
        self.seen["early copies"] += 1

    def _may_skip(self, to: Receiving, seq: int) -> bool:
        user = to.user
        if user.has_handled(seq) or any(first <= seq <= last for first, last in to.gaps):
            return True
        message = user.messages.get(seq)
        return message is not None and (message.inbox_only or message.id in to.revoked)

    def poll_begins(self, to: Receiving, first: int) -> None:
        """A poll is answered from this number on: nothing before it is pending."""
        user = to.user
        self._advance(user)
        for seq in range(user.accounted_floor + 1, first):
            if not self.is_accounted(user, seq):
                raise Violation(f"[3] {to.name} is answered from {first} on, and nobody has handled {seq}", user.key)
        to.high = first - 1

    def fail(self, what: str, user: str) -> None:
        """Something else that must not be."""
        raise Violation(what, user)

    def gap(self, to: Receiving, first: int, last: int) -> None:
        user = to.user
        if to.high < 0 or first > last:
            raise Violation(f"{to.name} at {to.high} is told of a gap {first} to {last}", user.key)
        for seq in range(max(first, to.high + 1), last + 1):
            if not self.is_accounted(user, seq):
                raise Violation(f"[3] {to.name} is told that {seq} is gone, and it is pending", user.key)
        to.gaps.append((first, last))
        for skipped in range(to.high + 1, first):
            if not self._may_skip(to, skipped):
                raise Violation(f"order: {to.name} at {to.high} is told of a gap from {first}, and nobody said why not {skipped}", user.key)
        to.high = max(to.high, last)
        self.seen["gaps"] += 1

    def marked(self, key: str, seq: int) -> None:
        """Everything up to this number is marked as seen, an answer said."""
        inbox = self.user(key).inbox
        inbox.seen_through = max(inbox.seen_through, seq)
        self.seen["marked"] += 1

    def counted(self, to: Receiving, unread: int, unseen: int, revision: int) -> None:
        """A client is told the counts of its user's inbox."""
        try:
            to.user.inbox.counted(unread, unseen, revision)
        except Broken as broken:
            raise Violation(f"{to.name}: {broken}", to.user.key) from None
        self.seen["counts"] += 1

    def revoked(self, to: Receiving, ids: Iterable[str]) -> None:
        for id in ids:
            # An id that the engine made may have two numbers, see `_must_know`.
            if not any(
                message.id == id and (message.replaced or to.user.has_handled(message.seq)) for message in to.user.messages.values()
            ):
                raise Violation(f"{to.name} is told that {id} was handled elsewhere, and it was not", to.user.key)
            to.revoked.add(id)
            self.seen["revoked"] += 1

    # -- The end. -----------------------------------------------------------------------------------------------------
    def pending(self) -> list[tuple[User, int]]:
        """Numbers that are in the journal and not accounted for."""
        found = []
        for user in self.users.values():
            self._advance(user)
            found += [(user, seq) for seq in range(user.accounted_floor + 1, user.head + 1) if not self.is_accounted(user, seq)]
        return found

    def unfinished(self) -> Iterator[tuple[User, str]]:
        """Windows whose time is over, and broadcasts that users have not got."""
        now_ms = self._wall_ms()
        for user in self.users.values():
            for collapse, window in user.windows.open.items():
                if window.closes_ms <= now_ms:
                    yield user, f"the window {collapse} of {user.key} is over, and not closed"
            for id in self.broadcasts.owed(user.taken, self._now()):
                yield user, f"[3] the broadcast {id} never reached {user.key}"

    def check_end(self) -> None:
        """After everything was healed and time has passed."""
        for user, seq in self.pending():
            raise Violation(f"[3] {seq} of {user.key} never reached a client that acknowledges", user.key)
        for user, what in self.unfinished():
            raise Violation(what, user.key)
        for user in self.users.values():
            for id in user.accepted:
                if id not in user.seq_of:
                    raise Violation(f"[1] {id} of {user.key} was answered 202 and is nowhere", user.key)
        for sid, timer in self.timers.items():
            if self.is_owed(sid, timer):
                raise Violation(f"[6] timer {sid} of {timer.key} never took effect", timer.key)
            if timer.owed and (due_ms := self._due_ms(sid)) > self._wall_ms():
                stored = self._stored_timer(sid)
                assert stored is not None, "it is due"
                self.history.moved(timer.key, decode_timer(stored).envelope.id, due_ms)
        self.history.complete(self._wall_ms())
