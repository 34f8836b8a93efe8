"""The connections that publishers hold at one edge, counted apart from those of clients that receive: neither takes the other's room.

Their allowance is `http_connections_max`, as of publishers that send requests: they are instead of such connections. One user has at most
`publisher_connections_per_user_max` of it.
"""

from __future__ import annotations

from collections import Counter

from engine.config import Config
from engine.errors import Unavailable
from engine.http.problems import RETRY_AFTER_S, too_many_requests


class HeldPublishers:
    """Those that are open now.

    Attributes:
        count: of all users.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._of_user: Counter[str] = Counter()  # by mailbox key; those without one are left out
        self.count = 0

    def admit(self, key: str) -> None:
        """Check that one more may be open for this user (mailbox key).

        Raises:
            Unavailable: the edge has as many as it may.
            Problem: 429, the user has.
        """
        if self.count >= self._config.http_connections_max:
            raise Unavailable(f"{self.count} publishers hold connections here")
        if self._of_user[key] >= self._config.publisher_connections_per_user_max:
            detail = f"{self._of_user[key]} connections of this publisher are open here: use them, each takes any number of publish frames"
            raise too_many_requests(detail, RETRY_AFTER_S)

    def add(self, key: str) -> None:
        """One of this user is open."""
        self._of_user[key] += 1
        self.count += 1

    def discard(self, key: str) -> None:
        """One of this user has ended."""
        self._of_user[key] -= 1
        if not self._of_user[key]:
            del self._of_user[key]
        self.count -= 1
