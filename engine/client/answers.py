"""What an engine answers to a publish request: results, or which items it rejects and why (RFC 9457 problem details)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import msgspec
from msgspec import Struct

from engine.client.http import Response
from engine.errors import ClientError, Forbidden, Refused, Unauthorized


class Result(Struct, kw_only=True, frozen=True):
    """What became of one item, for one user.

    `status` is `accepted`, `scheduled` (then with `scheduled_id` and, in milliseconds since the epoch, `scheduled_at`),
    `merged`, `duplicate` (with the `seq` of the first) or `suppressed` (with its `reason`).
    """

    id: str
    status: str
    user: str | None = None
    seq: int | None = None
    scheduled_id: str | None = None
    scheduled_at: Any = None
    reason: str | None = None


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
        errors: one entry per rejected item; the items without one were not accepted either when `publish_many` raises,
            unless `results` holds theirs.
        results: of the items that were accepted before, in order.
        status: the HTTP status: 409 for an id used with another payload, 413 too large, 422 not valid.
    """

    def __init__(self, errors: Sequence[ItemError], status: int, results: Sequence[Result] = (), more: int = 0) -> None:
        shown = "; ".join(str(error) for error in errors[:3])
        hidden = len(errors) + more - 3
        super().__init__(f"{status}: {shown}{f'; and {hidden} more' if hidden > 0 else ''}")
        self.errors = list(errors)
        self.results = list(results)
        self.status = status


class _Answer(Struct):
    results: list[Result]


class _Fault(Struct):
    index: int | None = None
    path: str = ""
    detail: str = ""
    id: str | None = None


class _Problem(Struct):
    detail: str = ""
    errors: list[_Fault] = []


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
    places = {id_: index for index, id_ in enumerate(ids)}
    faults = []
    for fault in problem.errors:
        index = fault.index if fault.index is not None else places.get(fault.id or "")
        if len(ids) == 1:
            index = 0
        if index is not None and 0 <= index < len(ids):
            faults.append(ItemError(index, ids[index], fault.detail or detail, fault.path))
    if not faults:
        only = len(ids) == 1
        faults = [ItemError(0 if only else -1, ids[0] if only else "?", detail)]
    raise PublishError(faults, answer.status)
