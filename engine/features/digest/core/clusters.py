"""Messages to clusters: each message is in exactly one cluster, or skipped with a reason.

    missed -> sorted by time -> skipped?   expired, unwanted by now (muted), replaced by a newer one
                             -> stage 1    an intent by rules (`engine.features.digest.core.intents`)
                             -> stage 2    the others, in windows, for a model to group; without its answer: one text, one cluster
           -> clusters: messages of one intent, each at most a window after the one before
           -> at most `lines_max`: clusters of one intent are joined, then the least important ones become one

A window is `WINDOW_MS`, or `FOCUS_WINDOW_MS` behind a message that came while the user was active: who was looking then remembers the
beginning, so less belongs together. Active is up to `FOCUS_MS` after a sign of the user (a connect, an acknowledgement, an event).

Nothing depends on the order in which messages are given. Time is an argument.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from engine.core.model.category import OFF
from engine.core.policy.profile import NO_PROFILE, Profile
from engine.features.digest.core.intents import Intent, intent_of, template_of
from engine.features.digest.core.missed import Missed
from engine.features.policy.core.choices import channel_choice
from engine.features.policy.core.contact_policy import muted

WINDOW_MS: Final = 120_000
FOCUS_WINDOW_MS: Final = 45_000
FOCUS_MS: Final = 120_000

EXPIRED: Final = "expired"
MUTED: Final = "muted"
REPLACED: Final = "replaced"

SAID: Final = "said"
"""Verb of what a model grouped, or a template did: the line is one of the texts."""

OTHER: Final = Intent("other", "", "")
"""Of the least important clusters, where there are more than lines."""


class Cluster(Struct):
    """Messages of one intent, oldest first. `ruled`: by stage 1."""

    intent: Intent
    messages: list[Missed]
    ruled: bool = True

    @property
    def last_ms(self) -> int:
        """When the newest message happened."""
        return self.messages[-1].at_ms

    @property
    def count(self) -> int:
        """How many messages they stand for."""
        return sum(missed.count for missed in self.messages)

    @property
    def people(self) -> list[str]:
        """Who did it, each once."""
        return list(dict.fromkeys(name for missed in self.messages for name in missed.actors))

    @property
    def high(self) -> bool:
        """Whether a message in it has high priority."""
        return any(missed.high for missed in self.messages)


class Sorted(Struct):
    """What stage 1 made of messages: `ruled` by intent, windows of what no rule settled, and of skipped ones id and reason."""

    ruled: dict[Intent, list[Missed]]
    rest: list[list[Missed]]
    skipped: list[tuple[str, str]]
    active_ms: Sequence[int]


def sort_out(messages: Iterable[Missed], profile: Profile | None, active_ms: Iterable[int], now_ms: int, channel: str = "") -> Sorted:
    """Stage 1.

    Args:
        messages: in any order.
        profile: the user's, None for none.
        active_ms: signs of the user, in any order.
        now_ms: what has expired by then is skipped.
        channel: by which the digest is sent; "": by none.
    """
    ordered = sorted(messages, key=lambda missed: (missed.at_ms, missed.seq, missed.id))
    signs = sorted(active_ms)
    skipped: list[tuple[str, str]] = []
    newest = {missed.collapse: missed.id for missed in sorted(ordered, key=lambda missed: missed.seq) if missed.collapse}
    replaced = {missed.replaces for missed in ordered if missed.replaces}
    ruled: dict[Intent, list[Missed]] = defaultdict(list)
    open_: list[Missed] = []
    for missed in ordered:
        if reason := _skip(missed, profile or NO_PROFILE, now_ms, newest, replaced, channel):
            skipped.append((missed.id, reason))
        elif (intent := intent_of(missed)) is not None:
            ruled[intent].append(missed)
        else:
            open_.append(missed)
    rest = _by_template(open_, ruled)
    return Sorted(dict(ruled), _windows(rest, signs), skipped, signs)


def _skip(missed: Missed, profile: Profile, now_ms: int, newest: Mapping[str, str], replaced: set[str], channel: str) -> str:
    if 0 < missed.expires_ms <= now_ms:
        return EXPIRED
    if missed.id in replaced or newest.get(missed.collapse, missed.id) != missed.id:
        return REPLACED
    facts = missed.facts
    if facts is None or facts.limits.mandatory:
        return ""
    if muted(facts, profile) is not None or (channel and facts.category and channel_choice(profile, facts.category, channel) == OFF):
        return MUTED
    return ""


def _by_template(messages: Sequence[Missed], ruled: dict[Intent, list[Missed]]) -> list[Missed]:
    """Add what was made from one template to `ruled`; returns the others."""
    intents = [Intent(SAID, missed.type, template_of(missed)) for missed in messages]
    uses = Counter(intents)
    rest = []
    for missed, intent in zip(messages, intents, strict=True):
        if intent.subject and uses[intent] > 1:
            ruled[intent].append(missed)
        else:
            rest.append(missed)
    return rest


def _windows(messages: Sequence[Missed], signs: Sequence[int]) -> list[list[Missed]]:
    """Messages, oldest first, parted where one came more than a window after the one before."""
    windows: list[list[Missed]] = []
    for missed in messages:
        if windows and missed.at_ms - windows[-1][-1].at_ms <= window_ms(missed.at_ms, signs):
            windows[-1].append(missed)
        else:
            windows.append([missed])
    return windows


def window_ms(at_ms: int, signs: Sequence[int]) -> int:
    """How long before a message of this time another one of its cluster may have come. `signs`: of the user, ascending."""
    last = bisect_right(signs, at_ms)
    return FOCUS_WINDOW_MS if last and at_ms - signs[last - 1] <= FOCUS_MS else WINDOW_MS


def clusters_of(found: Sorted, groups: Sequence[Sequence[int]] | None) -> list[Cluster]:
    """All clusters, the most important first.

    Args:
        groups: what a model says of `found.rest`: of every window, a number for each message; the same number, the same intent. None
            when it did not answer.

    Raises:
        ValueError: the answer does not fit the question.
    """
    if groups is not None and len(groups) != len(found.rest):
        raise ValueError("one answer for each window is needed")
    clusters = [Cluster(intent, window) for intent, messages in found.ruled.items() for window in _windows(messages, found.active_ms)]
    for place, rest in enumerate(found.rest):
        numbers = range(len(rest)) if groups is None else groups[place]
        grouped: dict[int, list[Missed]] = defaultdict(list)
        for missed, number in zip(rest, numbers, strict=True):
            grouped[number].append(missed)
        for messages in grouped.values():
            windows = _windows(messages, found.active_ms)
            clusters += [Cluster(Intent(SAID, window[0].type, window[0].id), window, ruled=False) for window in windows]
    return sorted(clusters, key=_importance)


def _importance(cluster: Cluster) -> tuple[bool, int, str]:
    return not cluster.high, -cluster.last_ms, cluster.messages[0].id


def shortened(clusters: Sequence[Cluster], lines_max: int) -> list[Cluster]:
    """At most `lines_max` clusters: more are joined by intent, whatever their windows; of what is still more, the last become one."""
    if len(clusters) <= lines_max:
        return list(clusters)
    joined: dict[Intent, Cluster] = {}
    for cluster in clusters:
        intent = cluster.intent if cluster.ruled else Intent(SAID, cluster.intent.thing, "")
        known = joined.get(intent)
        if known is None:
            joined[intent] = Cluster(intent, list(cluster.messages), cluster.ruled)
        else:
            known.messages += cluster.messages
    kept = sorted((_in_order(cluster) for cluster in joined.values()), key=_importance)
    if len(kept) > lines_max:
        others = [missed for cluster in kept[lines_max - 1 :] for missed in cluster.messages]
        kept[lines_max - 1 :] = [_in_order(Cluster(OTHER, others, ruled=all(cluster.ruled for cluster in kept[lines_max - 1 :])))]
    return kept


def _in_order(cluster: Cluster) -> Cluster:
    cluster.messages.sort(key=lambda missed: (missed.at_ms, missed.seq, missed.id))
    return cluster
