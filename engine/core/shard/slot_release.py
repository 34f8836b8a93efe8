"""Slots on their way from this shard to another: at most one hand-over at a time.

    serving    --begin-->       closing    What comes for the slots is answered `Moved` to the version of the slot map after this one, so
                                           edges keep it until that is there. Connections are detached with the same answer; they are
                                           announced to the new owner, with what they were sent
    closing    --not `waits`--> quiet      What had been taken is committed and answered: posts, changes, fired timers. No write to the
                                           first store is under way. Nothing changes the mailboxes any more
    quiet      --checkpoint-->  written    Storage has all of them: pages with what they normally leave out, and every message. They leave
                                           memory, and their journals are trimmed
    written    --not `appends`--> left     No append or rollback under way has an entry of these slots: nothing more is written to them
    left       --slot map-->    serving    The map names the new owner

The first store has the streams that all shards share. It may be away while the store of these slots is there, so what waits for it
does not hold up the hand-over:

    session events    the new owner writes them: the script that stores the slot map stores them with it
    dead letters      they are dropped. The pages have their messages as pending, and the edges repeat their nacks at the new owner
    erasures          pages and streams are deleted with the checkpoint; edges are answered `Moved`, and ask the new owner for the rest
    being written     the hand-over waits for the reply, or for the timeout of the client (`redis_timeout_ms`)

The shell (`engine.actors.slot_mover`) carries it out. What a crash does: before the slot map is stored, the successor owns the slots as
before; from then on the new owner does. Either finds them in pages and journals.

`retain: false` messages that a client has been sent and has not acknowledged, or has refused, are in memory only, as ever, once a
checkpoint has passed them: the new owner cannot repeat them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engine.core.commit.group import PostQueue
from engine.core.journal.journal_records import Checkpoint
from engine.core.model.routing import slot_of
from engine.core.shard.connections import Connections
from engine.core.shard.delivery import Delivery
from engine.core.shard.fired_timers import FiredTimers
from engine.core.shard.mailbox_store import MailboxStore
from engine.core.shard.output import SessionEvent, ShardOutput
from engine.core.shard.page_wait import PageWait
from engine.core.shard.user_requests import UserRequests


class SlotRelease:
    """The hand-over of one shard; see the module's text. `ShardCore.release` begins it."""

    def __init__(
        self,
        mailbox_store: MailboxStore,
        post_queue: PostQueue,
        page_wait: PageWait,
        connections: Connections,
        user_requests: UserRequests,
        fired_timers: FiredTimers,
        delivery: Delivery,
        output: ShardOutput,
    ) -> None:
        self.slots: frozenset[int] = frozenset()
        self.session_events: Sequence[SessionEvent] = ()  # that the new owner is to write
        self._version = 0
        self._mailbox_store = mailbox_store
        self._post_queue = post_queue
        self._page_wait = page_wait
        self._connections = connections
        self._user_requests = user_requests
        self._fired_timers = fired_timers
        self._delivery = delivery
        self._output = output

    def begin(self, slots: Collection[int], version: int) -> None:
        """Detach the connections of these slots. The caller refuses what comes for them from now on, until this version of the slot map."""
        assert not self.slots, "one hand-over at a time"
        self.slots = frozenset(slots)
        self._version = version
        mailboxes = self._mailbox_store.mailboxes
        self._mailbox_store.judge.deadlines.leave(self.slots)
        self._connections.release(self.slots, [mailboxes[key] for key in self._mailbox_store.keys_in(self.slots)], version)

    def waits(self) -> bool:
        """Whether something that was taken for these slots is not over yet."""
        slots = self.slots
        dying = self._mailbox_store.release_dead_letters(slots)
        return any(
            slot_of(key) in slots
            for keys in (
                self._post_queue.busy(),
                self._user_requests.changing(),
                self._page_wait.keys(),
                self._fired_timers.keys(),
                dying,
                self._output.written_of(),
            )
            for key in keys
        )

    def quiet(self) -> None:
        """Nothing is waited for any more. To be called at once after `waits`."""
        self.session_events = self._output.release_session_events(self.slots)

    def take_checkpoint(self) -> Checkpoint | None:
        """The checkpoint of all that storage lacks. It is filled and done like any other."""
        return self._mailbox_store.take_whole(self.slots, quiet=True)

    def written(self) -> None:
        """Storage has everything: forget it."""
        keys = self._mailbox_store.keys_in(self.slots)
        self._connections.forget(keys)
        self._delivery.forget(keys)
        self._user_requests.release(self.slots, self._version)
        self._mailbox_store.drop(keys)
        self._mailbox_store.judge.deadlines.forget_slots(self.slots)

    def appends(self) -> bool:
        """Whether the group that is being appended has an entry of these slots: acknowledgements that the pages have."""
        group = self._post_queue.group
        return group is not None and not self.slots.isdisjoint(group.payloads)

    def end(self, *, handed_over: bool) -> None:
        """The slots are another shard's, with their session events; or they are this one's again."""
        if not handed_over:
            self._output.session_events.extend(self.session_events)
        self.session_events = ()
        self.slots = frozenset()
        self._mailbox_store.judge.deadlines.leave(())
