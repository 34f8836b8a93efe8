"""Answers to publish requests: the results, or the rejected items with the reasons (RFC 9457 problem details)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn, TypeVar

import msgspec
from msgspec import Struct

from engine.client.http_connection import Response
from engine.errors import ClientError, Forbidden, Refused, Unauthorized

T = TypeVar("T")

NO_REASON: Final = "the engine gave no reason"
_REJECTIONS: Final[dict[int, type[Refused]]] = {401: Unauthorized, 403: Forbidden}
FINAL: Final = frozenset({"accepted", "scheduled", "merged", "duplicate", "suppressed"})


class Result(Struct, kw_only=True, frozen=True):
    """The result of one item for one user, a topic or everyone.

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
    topic: str | None = None  # when it was published to a topic
    broadcast: bool | None = None  # when it was published to everyone

    @property
    def final(self) -> bool:
        """Whether the item was handled; with `conflict`, `unavailable` and `overloaded` it was not accepted."""
        return self.status in FINAL


class ItemError(Struct, frozen=True):
    """Why one item was rejected. `index` is its index among the items of the call, -1 for a posted one."""

    index: int
    id: str
    detail: str
    path: str = ""

    def __str__(self) -> str:
        place = f"item {self.index}" if self.index >= 0 else "item"
        return f"{place} (id {self.id}){' ' + self.path if self.path else ''}: {self.detail}"


class PublishError(ClientError):
    """The engine rejected items, and retrying does not help: they are invalid, or their id was used with another payload.

    Attributes:
        errors: one entry per rejected item; an item with neither an error nor a result was not accepted.
        results: of the accepted items, in order: those of earlier requests of the call, and with status 409 the others of the same
            request, because shards accept independently.
        count: how many items were rejected; `errors` of posted ones holds the first thousand.
        status: the HTTP status: 409 for an id used with another payload, 413 too large, 422 not valid.
    """

    def __init__(self, errors: Sequence[ItemError], status: int, results: Sequence[Result] = (), more: int = 0) -> None:
        self.count = len(errors) + more
        self.errors = list(errors)
        self.results = list(results)
        self.status = status
        super().__init__(self.errors, status, self.results, more)  # of which a copy is made in another process

    def __str__(self) -> str:
        shown = "; ".join(str(error) for error in self.errors[:3])
        return f"{self.status}: {shown}{f'; and {self.count - 3} more' if self.count > 3 else ''}"


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
        Refused: the body is not one of an engine.
    """
    try:
        return _answers.decode(answer.body).results
    except (ValueError, RecursionError) as error:
        raise Refused(f"the answer is not an engine's: {error}", answer.status) from error


def problem_of(answer: Response) -> _Problem:
    """The problem details of an answer. Of a body in another format, such as a proxy's, `detail` is the first 200 bytes."""
    try:
        return _problems.decode(answer.body)
    except (ValueError, RecursionError):  # no JSON of this form, or no UTF-8
        return _Problem(answer.body[:200].decode("utf-8", "replace").strip())


def rejection_of(answer: Response) -> Refused:
    """The error for an answer that rejects a request as a whole: Unauthorized, Forbidden, or Refused."""
    return _REJECTIONS.get(answer.status, Refused)(problem_of(answer).detail or NO_REASON, answer.status)


def body_of(answer: Response, *good: int) -> bytes:
    """The body of an answer with one of these statuses, 200 by default. Raises what `rejection_of` makes of any other."""
    if answer.status not in (good or (200,)):
        raise rejection_of(answer)
    return answer.body


def value_of(kind: type[T], answer: Response, *good: int) -> T:
    """What the body of such an answer holds.

    Raises:
        Refused: the body is not one of an engine. Otherwise as `body_of`.
    """
    try:
        return msgspec.json.decode(body_of(answer, *good), type=kind)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the answer is not an engine's: {error}", answer.status) from error


def raise_rejection(ids: Sequence[str], answer: Response) -> NoReturn:
    """Raise the error for an answer that rejects the items with these ids, in the order of the request.

    Raises:
        PublishError: items were rejected. An entry's index is -1 when the answer does not name the item.
        Unauthorized, Forbidden, Refused: the request as a whole was rejected.
    """
    if answer.status not in (400, 409, 413, 422):
        raise rejection_of(answer)
    problem = problem_of(answer)
    detail = problem.detail or NO_REASON
    places = {id_: index for index, id_ in reversed(list(enumerate(ids)))}
    if problem.results:  # one per user, not per item: matched by id
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
    """The error of a request as a whole: of its only item, or of no item in particular."""
    return ItemError(0, ids[0], detail) if len(ids) == 1 else ItemError(-1, "?", detail)
