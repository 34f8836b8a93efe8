"""Every kind of key in Redis: whether it has a user's data, which part of an export names them, and what an erasure does.

A new key fails the first test until it has a row here.
"""

from __future__ import annotations

import re

from engine.features.audit.keys import AUDIT_KEY
from tests.support.all_keys import all_keys

NO_USER = {
    *("engine:slots", "engine:meta", "engine:epoch", "engine:replicated", "engine:lease", "engine:link-key", "engine:load"),
    *(
        "engine:unsubscribe-key",
        "engine:push-key",
        "rules:tenants",
        "trimmed:*",
        "events:*",
        "event:*",
        "s:epoch",
        "s:mark",
        "s:floor",
        "ids:state",
        "s:head",
    ),
    *("t:claimed", "t:owner", "t:epoch", "rules:state*", "rules:texts*", "signals:sums:*"),
    *("signals:writer:*", "tenants:*", "actions:targets", "outcomes:state", "ray:state", "ray:told", "ray:deaths", "ray:unhealthy"),
    "growing:tenants",
    *("revoked:state", "revoked:tenants", "revoked:useless", "broadcasts:*"),
}
"""Fences, counts, settings, and messages to topics."""

NAMES_ONLY = {
    "s:windows",
    "s:looks",
    "s:held",
    "s:online",
    "t:unpaged",
    "questions:due",
    "growing:due",
    "s:growing:*",
    "t:due",
    "t:user:*",
    "t:collapse",
    "t:young",
}
"""Indexes of what the rows below keep. They hold names of users or ids, and go with what they lead to."""

EXPORTED = {
    "s:page": "profile",
    "s:topics": "topics",
    "s:offline:uid:*": "messages",
    "s:journal": "messages",  # the groups since the last checkpoint, in the pages after it
    "t:timer": "scheduled",
    "dead:*": "entries",
    "session:stream": "entries",
    "actions:to:*": "entries",
    "channels:of:*": "channels",
    "channels:caught": "caught_mails",  # only where no mail is sent
    "s:questions:*": "questions",
    "s:answers:*": "questions",
    "s:votes:*": "questions",
    "s:growth:*": "growing",
    "rules:events": "sampled_events",
    "outcomes:stream": "history",  # until they are in the database
    "audit:acts": "acts",
}
"""The member of an export. An erasure deletes all of it but `acts`; the answer to a topic only loses the name."""

STAYS = {
    "audit:acts": "acts are to be kept whoever is erased; `audit_entries_max` bounds them",
    "revoked:log": "a revoked token of the user must stay refused until it expires",
    "revoked:entries": "likewise",
    "revoked:expiries": "likewise",
    "ids:*": "hashes of ids, for a day: a repeat of a message must not arrive after the erasure",
    "s:id:*": "likewise, of broadcasts and actions",
    "t:cancelled": "ids of cancelled timers, for a day, likewise",
    "shard:quarantine": "damaged bytes that nobody can read; an operator looks at them and deletes them",
    "t:quarantine": "likewise",
    "shard:events": "session events between two owners of a slot, for seconds, then in `session:stream`",
    "channels:asked:*": "digests of a user or address, with a count of mails of confirmation; it expires",
    "channels:told:*": "a digest of a user, category and channel, with times and digests of steps; it expires with the cap",
    "channels:erased:*": "a digest of an erased user, so that links of before confirm no address; it expires with them",
    "ray:running": "whom the end of a running job is to be told; it goes when the job ends",
}


def kind_of(key: str) -> str:
    key = re.sub(r"^(s|shard|t)-?\d+:", r"\1:", key)
    exact = NO_USER | NAMES_ONLY | EXPORTED.keys() | STAYS.keys()
    if key in exact:
        return key
    fitting = [row for row in exact if row.endswith("*") and key.startswith(row[:-1])]
    return max(fitting, key=len, default=f"no row has {key}")


def test_every_key_of_redis_has_a_row() -> None:
    kinds = {kind_of(key) for key in all_keys()}
    assert kinds == NO_USER | NAMES_ONLY | EXPORTED.keys() | STAYS.keys()


def test_no_key_is_in_two_lists_but_the_acts() -> None:
    lists = (NO_USER, NAMES_ONLY, EXPORTED.keys(), STAYS.keys())
    twice = {row for number, rows in enumerate(lists) for others in lists[number + 1 :] for row in rows & others}
    assert twice == {AUDIT_KEY}
