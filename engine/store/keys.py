"""Every key of the kernel in Redis: a constant, or a function of what the key is of. Keys that only a feature has are in its folder.

No other module builds a key.

These are names within a store. On a Redis Cluster the store's hash tag stands before each (`engine.store.cluster`). So one script may write
any keys of a store, and only that tag has braces.

Words that this code chooses come first, and texts of users after them: no text makes a key of another kind.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from engine.core.model.routing import SLOTS, slot_of

EPOCH_FIELD: Final = "epoch"
"""Field of `META_KEY` with the data epoch: first half of every cursor."""

CONTROLLER_FIELD: Final = "controller"
"""Field of `META_KEY`: epoch of the controller that may replace actors (`engine.store.epoch`)."""

WANTED_FIELD: Final = "wanted"
"""Field of `META_KEY`: how many actors are wanted, `engine.core.controller.wanted.WantedNumbers` as JSON."""


SLOTS_KEY: Final = "engine:slots"
"""String: the slot map, `engine.core.model.routing.SlotMap` as MessagePack."""

META_KEY: Final = "engine:meta"
"""Hash: facts about the data as a whole, the data epoch among them."""

EPOCH_KEY: Final = "engine:epoch"
"""String: the last fencing epoch issued, one sequence for all writers of a cluster."""

REPLICATION_KEY: Final = "engine:replicated"
"""String, always empty: written before every WAIT and WAITAOF, see `engine.store.lua.Replicas`."""

ABSENT_KEY: Final = "engine:absent"
"""Never exists: declared by every script, see `engine.store.lua`."""

LEASE_KEY: Final = "engine:lease"
"""String, which expires: name of the engine that uses this database (`engine.store.redis_lease`)."""

LINK_KEY_KEY: Final = "engine:link-key"
"""String: 32 secret bytes, the key that links between nodes are proven with (`engine.store.stored_secret`)."""


def trimmed_mark_key(stream: str) -> str:
    """String: the id of the first entry that the last trimming of a stream left."""
    return f"trimmed:{stream}"


# -- of a slot ---------------------------------------------------------------------------------------------------------
def slot_epoch_key(slot: int) -> str:
    """String: epoch of the shard that owns the slot; writes with an older one are rejected."""
    return f"s{slot}:epoch"


def slot_mark_key(slot: int) -> str:
    """String: `<epoch>-<number>` of the last write to the slot's pages and streams."""
    return f"s{slot}:mark"


def journal_key(slot: int) -> str:
    """Stream: what group commits have of the slot's users since its last checkpoint."""
    return f"s{slot}:journal"


def journal_head_key(slot: int) -> str:
    """String: `<epoch>-<number>` of the last group with an entry here; `<epoch>-<number>u` when that group was rolled back (undone)."""
    return f"s{slot}:head"


def page_key(slot: int) -> str:
    """Hash: mailbox key -> page, the cold state of a mailbox."""
    return f"{PAGES_PREFIX}{slot}:page"


PAGES_PREFIX: Final = "s"
"""What every `page_key` begins with, for a script that makes these itself."""


def online_key(slot: int) -> str:
    """Set: mailbox keys of the users who are online (`engine.core.shard.presence`), as of their last event in `session:stream`."""
    return f"s{slot}:online"


def deadlines_key(slot: int) -> str:
    """Sorted set: keys of mailboxes for which the judge has something to do, scored by when, ms. The name is that of stored data."""
    return f"s{slot}:windows"


def looks_key(slot: int) -> str:
    """Sorted set: mailbox keys whose page the sweep is to look at, scored by when, ms."""
    return f"s{slot}:looks"


def floor_key(slot: int) -> str:
    """String: the highest sequence number of the slot's deleted pages; no user without a page gets one up to it."""
    return f"s{slot}:floor"


def held_key(slot: int) -> str:
    """Hash: mailbox key -> bytes of its offline stream as of its last checkpoint, where it has any."""
    return f"s{slot}:held"


def topics_key(slot: int) -> str:
    """Hash: mailbox key -> subscriptions, joined by line feeds, as counted for the tenant."""
    return f"s{slot}:topics"


def offline_prefix(slot: int) -> str:
    """Prefix; with a mailbox key of the slot appended, its `offline_key`."""
    return f"s{slot}:offline:uid:"


def offline_key(key: str) -> str:
    """Stream: messages kept for one user, entry id = `<seq>-0`; `key` is the mailbox key `tenant:user`."""
    return offline_prefix(slot_of(key)) + key


IDS_STATE_KEY: Final = "ids:state"
"""Hash: how many buckets of ids there are, and how far they are swept (`engine.store.accepted_ids`)."""

IDS_PREFIX: Final = "ids:"
"""Prefix; with the number of a bucket appended, a hash: hash of an id -> the first result under it."""


def idempotency_key(key: str, id: str) -> str:
    """String: the first result under the id of a broadcast or an action. `key` is a mailbox key or an audience key.

    The value is `<16 hex digits of the digest>|<seq>|<scheduled id or empty>`; immediate and delayed publishing share the
    keys, so an id means the same message whichever way it is published.

    Both texts may contain a colon, so the length of the first in characters precedes it: no two pairs share a key.
    """
    return f"s{crc32(key.encode()) % SLOTS}:id:{len(key)}:{key}:{id}"  # `slot_of` in place: once per published message


# -- of a shard --------------------------------------------------------------------------------------------------------
def journal_quarantine_key(shard: int) -> str:
    """Stream: journal entries and pages that could not be decoded."""
    return f"shard-{shard}:quarantine"


def handed_events_key(shard: int) -> str:
    """Hash: version of a slot map -> session events of users whom it gives to the shard, unwritten by their last owner
    (`engine.store.external_streams`)."""
    return f"shard-{shard}:events"


# -- of a timer partition ----------------------------------------------------------------------------------------------
def timer_due_key(partition: int) -> str:
    """Sorted set: scheduled ids by due time, ms. This due time is authoritative; the one in the timer's record is not updated."""
    return f"t{partition}:due"


def timer_key(partition: int) -> str:
    """Hash: scheduled id -> packed `Timer`."""
    return f"t{partition}:timer"


def timer_user_prefix(partition: int) -> str:
    """Prefix; with a mailbox key appended, a sorted set: that user's scheduled ids by due time, ms."""
    return f"t{partition}:user:"


def timer_collapse_key(partition: int) -> str:
    """Hash: scheduled id -> collapse key, for the timers that have one."""
    return f"t{partition}:collapse"


def timer_cancelled_key(partition: int) -> str:
    """Sorted set, tombstones of cancelled timers: `<tenant>:<scheduled id>`, scored by when they are deleted, ms."""
    return f"t{partition}:cancelled"


def timer_quarantine_key(partition: int) -> str:
    """Stream: timers that could not be decoded, with their scheduled ids."""
    return f"t{partition}:quarantine"


def timer_claimed_key(partition: int) -> str:
    """String: the claim horizon, ms (`engine.core.scheduler.claim_horizon`). Timers due up to it may have been sent to a shard."""
    return f"t{partition}:claimed"


def timer_young_key(partition: int) -> str:
    """Hash: scheduled ids due up to the inherited horizon that were stored or moved since the take-over."""
    return f"t{partition}:young"


def timer_unpaged_key(partition: int) -> str:
    """Set: mailbox keys of users who have timers and no page, and are counted as users of their tenants for these."""
    return f"t{partition}:unpaged"


def timer_owner_key(partition: int) -> str:
    """String: name of the scheduler that has taken the partition over and not released it."""
    return f"t{partition}:owner"


def timer_epoch_key(partition: int) -> str:
    """String: epoch of the scheduler that owns the partition; writes with an older one are rejected."""
    return f"t{partition}:epoch"


# -- of the broadcast log ----------------------------------------------------------------------------------------------
BROADCAST_LOG_KEY: Final = "broadcasts:log"
"""Stream: broadcasts of all tenants, entry id = `<position>-0`."""

BROADCAST_STATE_KEY: Final = "broadcasts:state"
"""Hash: `last`, the last position assigned; `bytes` of all entries; `drops`, how many have left; `horizon` of `BROADCAST_LOST_KEY`."""

BROADCAST_PARTS_KEY: Final = "broadcasts:parts"
"""Sorted set: tenant -> its part of the log, the sum of its entries' shares of both limits."""

BROADCAST_DROPPED_KEY: Final = "broadcasts:dropped"
"""Sorted set: `<position> <audience>` of an entry that has left the log -> the number of that drop. The newest only."""

BROADCAST_LOST_KEY: Final = "broadcasts:lost"
"""Sorted set: audience, `<tenant> <topic>` -> position of its newest retained entry that has left. Those above the horizon only."""

BROADCAST_POSITIONS_PREFIX: Final = "broadcasts:of:"
"""Prefix; with a tenant appended, a sorted set: the positions of its entries."""


# -- of tenants --------------------------------------------------------------------------------------------------------
def tenants_key(figure: str) -> str:
    """Sorted set: tenant -> how much of `figure` it has in storage (`engine.store.tenant_usage`)."""
    return f"tenants:{figure}"


SUBSCRIBERS_PREFIX: Final = "tenants:subscribers:"
"""Prefix; with a tenant appended, a hash: topic -> how many of the tenant's users are subscribed to it."""

# -- actions -----------------------------------------------------------------------------------------------------------
ACTION_TARGETS_KEY: Final = "actions:targets"
"""Set: targets of actions that have a stream."""


def action_stream_key(target: str) -> str:
    """Stream: actions that fired and that the target has not done yet."""
    return f"actions:to:{target}"


# -- history -----------------------------------------------------------------------------------------------------------
OUTCOME_STREAM_KEY: Final = "outcomes:stream"
"""Stream: batches of outcomes, see `engine.store.outcome_stream`."""

OUTCOME_STATE_KEY: Final = "outcomes:state"
"""Hash: `bytes` of the batches and `waiting` outcomes that are not in the database yet, how many were `dropped`, and what is kept for
consumers of events, see `engine/features/history/outcomes_settle.lua`."""

# -- read by other systems -----------------------------------------------------------------------------------------
SESSION_STREAM_KEY: Final = "session:stream"
"""Stream: connects, disconnects and presence of all tenants."""


def dead_letter_key(tenant: str) -> str:
    """Stream: a tenant's dead letters, messages that a client rejected with `nack`."""
    return f"dead:{tenant}"
