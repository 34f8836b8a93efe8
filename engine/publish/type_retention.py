"""How long messages of a type stay in the inbox: the section `[inbox]` of the rules file, `"post.*" = "1d"`, `"post.pinned" = "none"`.

Of several entries the most specific one holds: the type itself, else the longest beginning. It takes precedence over what the category
says, and travels as the category's limit does, in the message's policy terms (`engine.core.model.category.Category.inbox_ms`): shards and
stored messages know no types. It is applied behind the parsing of a request, and is no part of what makes a repeat another message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from engine.core.model.category import PolicyTerms
from engine.core.model.envelope import Envelope
from engine.core.wire.outcomes import type_of
from engine.publish.drafts import Draft

_NO_TERMS: Final = PolicyTerms()


def keep_by_type(drafts: Sequence[Draft], kept: Mapping[str, int]) -> None:
    """Give the drafts for users the retention of their types. `kept`: by type, or beginning that ends in `.*`: ms, 0 for none at all."""
    made: dict[int, Envelope] = {}  # drafts of one item share their envelope
    for draft in drafts:
        envelope = draft.envelope
        if draft.topic is not None:
            continue
        if id(envelope) not in made:
            keep_ms = _kept(type_of(envelope.body), kept)
            made[id(envelope)] = envelope if keep_ms is None else _with(envelope, keep_ms)
        draft.envelope = made[id(envelope)]


def _kept(type: str, kept: Mapping[str, int]) -> int | None:
    """The retention of a type, ms; None where nothing is said of it."""
    entry = type if type in kept else max((one for one in kept if one.endswith(".*") and type.startswith(one[:-1])), key=len, default=None)
    return None if entry is None else kept[entry]


def _with(envelope: Envelope, keep_ms: int) -> Envelope:
    terms = envelope.policy_terms or _NO_TERMS
    limits = msgspec.structs.replace(terms.limits, inbox_ms=keep_ms)
    return msgspec.structs.replace(envelope, policy_terms=msgspec.structs.replace(terms, limits=limits))
