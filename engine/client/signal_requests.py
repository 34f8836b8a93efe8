"""Events that are only counted, such as views: added up by name, over HTTP.

Counting is not idempotent. So a request is repeated only after an answer that says that nothing was counted: a signal may be missing
from a sum when a connection breaks, and is never in it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from engine.client.publish_results import body_of
from engine.client.retried_requests import RetriedRequests

PATH = "/v1/signals"


class CountedSignals(Struct):
    """How many signals, each of any amount, were counted, and how many were dropped because their name had no room.

    Attributes:
        quota: the limit, when some were dropped.
    """

    counted: int
    dropped: int
    quota: str | None = None


async def count_signals(requests: RetriedRequests, amounts: Mapping[str, int]) -> CountedSignals:
    """Add these amounts to the sums of their names; they are there about a second later.

    Raises:
        Refused: a name or an amount is not valid, none was counted; Unauthorized, Forbidden: the token.
        Unreachable: no engine took them, or the connection broke before it answered: they may have been counted.
    """
    body = msgspec.json.encode([{"name": name, "amount": amount} for name, amount in amounts.items()])
    answer = await requests.send("POST", PATH, body, "did not count the signals", repeatable=False)
    return msgspec.json.decode(body_of(answer, 202), type=CountedSignals)


async def fetch_sums(requests: RetriedRequests, names: Iterable[str]) -> dict[str, int]:
    """The sums in storage of these names, 0 for one that was never counted. Raises as `count_signals`."""
    answer = await requests.send("GET", f"{PATH}?{urlencode([('name', name) for name in names])}", b"")
    sums: dict[str, int] = msgspec.json.decode(body_of(answer))["signals"]
    return sums
