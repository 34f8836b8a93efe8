"""What an engine answers to a publish request: results, or which items it rejects and why (RFC 9457 problem details)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

import msgspec
from msgspec import Struct

from engine.client.http_connection import Response
from engine.errors import ClientError, Forbidden, Refused, Unauthorized

RETRY_FIRST_S: Final = 0.1
RETRY_CAP_S: Final = 5.0
RETRY_JITTER: Final = 0.3
RETRIED: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
FINAL: Final = frozenset({"accepted", "scheduled", "merged", "duplicate", "suppressed"})


class Result(Struct, kw_only=True, frozen=True):
    """What became of one item: for one user, for a topic or for everyone.

    `status` is `accepted`, `scheduled` (then with `scheduled_id` and, in milliseconds since the epoch, `scheduled_at`),
    `merged`, `duplicate` (with the `seq` of the first) or `suppressed` (with its `reason`).
    """

    id: str
    status: str
    user: str | None = None
    seq: int | None = None
    scheduled_id: str | None = None
    scheduled_at: int | None = None
    reason: str | None = None
    topic: str | None = None  # for whose subscribers it is
    broadcast: bool | None = None  # for everyone

    @property
    def final(self) -> bool:
        """The engine has decided; otherwise (`conflict`, `unavailable`, `overloaded`) it did not take the item."""
        return self.status in FINAL


class ItemError(Struct, frozen=True):
    """Why one item was not accepted. `index` is its place among the items given, -1 for a posted one."""

    index: int
    id: str
    detail: str
    path: str = ""

    def __str__(self) -> str:
        place = f"item {self.index}" if self.index >= 0 else "item"
        return f"{place} (id {self.id}){' ' + self.path if self.path else ''}: {self.detail}"


class PublishError(ClientError):
    """The engine rejected items, and will again: they break a rule, or their id was used for something else.

    Attributes:
        errors: one entry per rejected item; an item with neither an error nor a result was not accepted.
        results: of the items that were accepted nevertheless, in order: those of earlier requests, and, as an engine's shards
            decide on their own, the others of this one when the status is 409.
        count: how many items were rejected; `errors` of posted ones holds the first thousand.
        status: the HTTP status: 409 for an id used with another payload, 413 too large, 422 not valid.
    """

    def __init__(self, errors: Sequence[ItemError], status: int, results: Sequence[Result] = (), more: int = 0) -> None:
        shown = "; ".join(str(error) for error in errors[:3])
        hidden = len(errors) + more - 3
        super().__init__(f"{status}: {shown}{f'; and {hidden} more' if hidden > 0 else ''}")
        self.count = len(errors) + more
        self.errors = list(errors)
        self.results = list(results)
        self.status = status


class _Answer(Struct):
    results: list[Result]


class _Fault(Struct):
    index: int | None = None
    path: str = ""
    detail: str = ""


class _Problem(Struct):
    detail: str = ""
    errors: list[_Fault] = []
    results: list[Result] = []


_answers: Final = msgspec.json.Decoder(_Answer)
_problems: Final = msgspec.json.Decoder(_Problem)


def results_of(answer: Response) -> list[Result]:
    """The results in a 202.

    Raises:
        Refused: it is not an engine's answer.
    """
    try:
        return _answers.decode(answer.body).results
    except msgspec.DecodeError as error:
        raise Refused(f"the answer is not an engine's: {error}", answer.status) from error


def problem_of(answer: Response) -> _Problem:
    """The problem details of an answer; a proxy's answer may be anything, then its text."""
    try:
        return _problems.decode(answer.body)
    except msgspec.DecodeError:
        return _Problem(answer.body[:200].decode("utf-8", "replace").strip())


def retry_after_s(answer: Response) -> float | None:
    """`Retry-After` in seconds; its date form is not used by an engine."""
    try:
        return max(0.0, float(answer.headers.get("retry-after", "")))
    except ValueError:
        return None


def raise_rejection(ids: Sequence[str], answer: Response) -> NoReturn:
    """Raise what an answer that will not change means for the items with these ids.

    Raises:
        PublishError: items are at fault. An entry's index is -1 when the answer does not say which item it is about.
        Unauthorized, Forbidden, Refused: the request is.
    """
    problem = problem_of(answer)
    detail = problem.detail or "the engine gave no reason"
    if answer.status == 401:
        raise Unauthorized(detail, 401)
    if answer.status == 403:
        raise Forbidden(detail, 403)
    if answer.status not in (400, 409, 413, 422):
        raise Refused(detail, answer.status)
    places = {id_: index for index, id_ in reversed(list(enumerate(ids)))}
    if problem.results:  # per user, not per item: the ids say which item each is about
        faults = [
            ItemError(places[one.id], one.id, one.reason or one.status) for one in problem.results if not one.final and one.id in places
        ]
        raise PublishError(faults or [_of_all(ids, detail)], answer.status, [one for one in problem.results if one.final])
    faults = [
        ItemError(fault.index, ids[fault.index], fault.detail or detail, fault.path)
        for fault in problem.errors
        if fault.index is not None and 0 <= fault.index < len(ids)
    ]
    raise PublishError(faults or [_of_all(ids, detail)], answer.status)


def _of_all(ids: Sequence[str], detail: str) -> ItemError:
    """What is said about the request as a whole: about its one item, or about none in particular."""
    return ItemError(0, ids[0], detail) if len(ids) == 1 else ItemError(-1, "?", detail)


def retry_delay_s(attempt: int, retry_after_s: float | None, random: float) -> float:
    """How long to wait after the `attempt`-th failure (from 0): doubling from 0.1 s to 5 s, +-30 %, never before `Retry-After`."""
    delay = min(RETRY_FIRST_S * (1 << min(attempt, 16)), RETRY_CAP_S) * (1 + RETRY_JITTER * (2 * random - 1))
    return delay if retry_after_s is None else max(delay, retry_after_s * (1 + RETRY_JITTER * random))
