"""Unsubscribe links in messages: those of a category with `unsubscribe = true` carry the path of the link that turns it off for their user.

    accepted item -> draft, the same for all its users -> with the category's link, each user its own (`unsubscribe` in the body)

The link is no part of what makes a repeat another message, as it names the time at which it expires. It is a secret of its user
(`engine.features.policy.unsubscribing`), and so is the message that carries it: it goes to that user, or to the target of a rule with `do`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from engine.core.model.routing import split_key
from engine.features.policy.unsubscribe_links import LINK_S, LinkClaims
from engine.features.policy.unsubscribing import LinkKey, link_paths
from engine.publish.drafts import Draft


class MessageLinks:
    """Adds the links of one edge. `link_key`: they are signed with it; `wall_ms`: milliseconds since the epoch."""

    def __init__(self, link_key: LinkKey, wall_ms: Callable[[], int]) -> None:
        self._link_key = link_key
        self._wall_ms = wall_ms

    async def add(self, drafts: Sequence[Draft], categories: Collection[str]) -> None:
        """Give the drafts of these categories their links.

        Raises:
            StorageUnavailable: the key cannot be read.
        """
        wanted = [(draft, terms.category) for draft in drafts if (terms := draft.envelope.policy_terms) and terms.category in categories]
        if not wanted:
            return
        key = await self._link_key()
        expires_s = self._wall_ms() // 1000 + LINK_S
        links = [LinkClaims(split_key(draft.key)[0], draft.user, category, expires_s) for draft, category in wanted]
        for (draft, _), path in zip(wanted, await link_paths(links, key), strict=True):
            body = b'%b,"unsubscribe":%b' % (draft.envelope.body, msgspec.json.encode(path))
            draft.envelope = msgspec.structs.replace(draft.envelope, body=body)
