"""From drafts to records, and from the answers of shards and schedulers to the results in the HTTP answer.

A publish is all or nothing only before it is sent: its items belong to users on several shards. So when items end
differently, the answer is a problem with each item's outcome in `results`, and those that were not accepted in `errors`.
The status is one that a repeat may change, if there is one: 503 before 429 before 409. So a publisher that repeats the whole request
under the same ids ends at 202, or at a 409 that is final; items accepted before are duplicates then.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from engine.core.mailbox.broadcast_log import EVERYONE
from engine.core.model.routing import timer_id
from engine.core.wire.records import (
    ACCEPTED,
    CONFLICT,
    DEFERRED,
    DUPLICATE,
    MERGED,
    OVERLOADED,
    PUBLISH_STATUS,
    SCHEDULED,
    SUPPRESSED,
    UNAVAILABLE,
    USERS_FULL,
    Explain,
    Post,
    Schedule,
    Timer,
    TimerAnswer,
)
from engine.errors import Overloaded, Unavailable
from engine.http.problems import Problem, conflict, over_quota, retry_after_s, too_many_requests, unavailable
from engine.publish.drafts import Draft
from engine.store.broadcast_stream import Appended

PUT_OFF: Final = "put off"
"""The status of a draft that its shard deferred, until the edge has scheduled it; never in an answer."""

_TAKEN: Final = frozenset(("accepted", "scheduled", "merged"))
_KNOWN: Final = _TAKEN | {"duplicate"}
status_of: Final[Callable[[ItemResult], str]] = attrgetter("status")
_encode: Final = msgspec.json.Encoder().encode
_NO_ANSWER: Final = "no answer in time; it may have been accepted: repeat it under the same id"
_NOT_ARMED: Final = "it was accepted without its steps: repeat it under the same id"
_REASONS: Final = {
    UNAVAILABLE: "durable storage did not answer",
    OVERLOADED: "a limit is reached",
    CONFLICT: "the same id was used with a different payload",
}


class ItemResult(Struct, omit_defaults=True, gc=False):
    """The outcome of one draft, as it is in the answer. `status` is a word of PUBLISH_STATUS; members that do not apply are left out."""

    id: str
    user: str = ""
    status: str = ""
    seq: int = 0
    scheduled_id: str = ""
    scheduled_at: int = 0  # ms since the epoch
    reason: str = ""
    topic: str = ""
    broadcast: bool = False


class _Answer(Struct, omit_defaults=True, gc=False):
    accepted: int
    results: Sequence[ItemResult]
    durability: str = ""


class Answered(Protocol):
    """The records of a request and the answers to them, by position; None where none came in time."""

    records: Sequence[Struct]
    answers: list[Any]
    repeated: bool
    """Sent more than once: the first sending may have taken effect."""


def records_of(drafts: Sequence[Draft], base: int, now_ms: int, new_timer_name: Callable[[], str]) -> list[Post | Schedule]:
    """The records of a publish request, numbered from `base`, in the order of the drafts."""
    made: list[Post | Schedule] = []
    for ref, draft in enumerate(drafts, base):
        if not draft.due_ms:
            made.append(Post(ref, draft.key, draft.idempotent, draft.expires_ms, draft.envelope))
            continue
        made.append(Schedule(ref, draft.idempotent, timer_of(draft, timer_id(draft.key, new_timer_name()), now_ms)))
    return made


def timer_of(draft: Draft, sid: str, now_ms: int) -> Timer:
    """The timer of a delayed draft, under this scheduled id."""
    return Timer(
        sid=sid,
        key=draft.key,
        due_ms=draft.due_ms,
        created_ms=now_ms,
        ttl_ms=draft.ttl_ms,
        envelope=draft.envelope,
        conditions=draft.conditions,
        action=draft.action,
    )


def explain_records(drafts: Sequence[Draft], base: int) -> list[Explain]:
    """The records that ask shards for their decision about drafts for users, without storing them."""
    return [
        Explain(ref, draft.key, draft.due_ms, Post(ref, draft.key, draft.idempotent, draft.expires_ms, draft.envelope))
        for ref, draft in enumerate(drafts, base)
    ]


def results_of(drafts: Sequence[Draft], call: Answered) -> list[ItemResult]:
    """The result of each draft, accepted or not."""
    made: list[ItemResult] = []
    for draft, record, answer in zip(drafts, call.records, call.answers, strict=True):
        if type(record) is Post and answer is not None and answer.status == ACCEPTED:  # nearly always
            made.append(ItemResult(draft.envelope.id, draft.user, "accepted", answer.seq, reason=answer.detail))
        else:
            made.append(_result(draft, record, answer, repeated=call.repeated))
    return made


def raise_unless_taken(made: Sequence[ItemResult], statuses: Sequence[str], drafts: Sequence[Draft], answers: Sequence[Any]) -> None:
    """Check that all drafts were accepted. `statuses`: those of `made`.

    Raises:
        Problem: 503, 429 or 409 when at least one was not; it has the outcome of all.
    """
    for status in (UNAVAILABLE, OVERLOADED, CONFLICT):
        if PUBLISH_STATUS[status] in statuses:
            # A shard that refuses returns when to come back, and so does an edge that avoids it; a scheduler that does not has written its
            # queue within a moment, and storage answers again within seconds.
            raise _problem(made, status, drafts, max((getattr(answer, "retry_ms", 0) for answer in answers), default=0))


def unarmed(made: Sequence[ItemResult], drafts: Sequence[Draft], categories: Container[str], error: Overloaded | Unavailable) -> Problem:
    """The answer where drafts were accepted, and this error kept steps of these categories from being armed."""
    status, retry_ms = (OVERLOADED, error.backlog_ms) if isinstance(error, Overloaded) else (UNAVAILABLE, error.retry_ms)
    for draft, result in zip(drafts, made, strict=True):
        terms = draft.envelope.policy_terms
        if terms is not None and terms.category in categories and result.status in _KNOWN:
            result.status, result.reason = PUBLISH_STATUS[status], f"{_NOT_ARMED}: {error}"
    return _problem(made, status, drafts, retry_ms)


def results_body(results: Sequence[ItemResult], durability: str = "") -> bytes:
    """The 202 answer: `{"accepted": n, "results": [...]}`. Repeats and suppressed items do not count as accepted.

    `durability` is a word of `engine.store.durability` where storage keeps less than promised, and left out where it does not.
    """
    return _encode(_Answer(sum(map(_TAKEN.__contains__, map(status_of, results))), results, durability))


def _result(draft: Draft, record: Any, answer: Any, *, repeated: bool) -> ItemResult:
    if answer is None or (repeated and answer.status in (UNAVAILABLE, OVERLOADED)):  # of a repeat: the first may have been taken
        return unanswered_result(draft)
    result = blank_result(draft)
    if type(answer) is TimerAnswer:
        status = _timer_result(result, draft, record.timer, answer)
    else:
        status = answer.status
        if status == DUPLICATE and not draft.idempotent:
            # No publisher has an id that was made here: the edge repeated it, not the publisher.
            status = ACCEPTED if answer.seq else MERGED
        result.seq = answer.seq
        if status == DUPLICATE:
            result.scheduled_id = answer.detail
    if status in _REASONS or status in (MERGED, SUPPRESSED, DEFERRED):
        result.reason = answer.detail or _REASONS.get(status, "")
    result.status = PUT_OFF if status == DEFERRED else PUBLISH_STATUS[status]
    return result


def blank_result(draft: Draft) -> ItemResult:
    """The result of a draft, its outcome left out."""
    return ItemResult(draft.envelope.id, draft.user, topic=draft.topic or "", broadcast=draft.topic == EVERYONE)


def over_result(draft: Draft) -> ItemResult:
    """The result of a draft whose question was asked before, and is over."""
    result = blank_result(draft)
    result.status = PUBLISH_STATUS[DUPLICATE]
    return result


def unanswered_result(draft: Draft) -> ItemResult:
    """The result of a draft whose outcome is unknown."""
    result = blank_result(draft)
    result.status, result.reason = PUBLISH_STATUS[UNAVAILABLE], _NO_ANSWER
    return result


def broadcast_result(draft: Draft, appended: Appended | None) -> ItemResult:
    """The result of a broadcast; `appended` is None when the outcome is unknown."""
    if appended is None:
        return unanswered_result(draft)
    result = blank_result(draft)
    status = appended.status
    if status == DUPLICATE and not draft.idempotent:
        status = ACCEPTED
    if status == DUPLICATE:
        result.scheduled_id = appended.scheduled_id
    result.status, result.reason = PUBLISH_STATUS[status], _REASONS.get(status, "")
    return result


def _timer_result(result: ItemResult, draft: Draft, asked: Timer, answer: TimerAnswer) -> int:
    """Fill in the outcome of a delayed draft; returns its status."""
    if answer.status == SCHEDULED:
        result.scheduled_id, result.scheduled_at = asked.sid, asked.due_ms
    elif answer.status == DUPLICATE:
        if answer.timers:  # the first one still waits
            result.scheduled_id, result.scheduled_at = answer.timers[0].sid, answer.timers[0].due_ms
        elif answer.detail.startswith("seq="):  # the first one was not delayed
            result.seq = int(answer.detail.removeprefix("seq=")) if draft.topic is None else 0  # a broadcast has no number of its own
        else:  # it has fired, or was cancelled
            result.scheduled_id = answer.detail
        if result.scheduled_id == asked.sid or not draft.idempotent:
            return SCHEDULED  # the edge repeated it, not the publisher
    return answer.status


def _problem(made: Sequence[ItemResult], status: int, drafts: Sequence[Draft], retry_ms: float) -> Problem:
    errors = [
        {"index": draft.item, "user": draft.user, "detail": result.reason}
        for draft, result in zip(drafts, made, strict=True)
        if result.status in _FAILED
    ]
    detail = f"{len(errors)} of {len(made)} items were not accepted; `results` tells each item's outcome"
    if status == CONFLICT:
        return conflict(detail, errors=errors, results=msgspec.to_builtins(made))
    retry_s = retry_after_s(retry_ms)
    if any(result.reason == USERS_FULL for result in made):
        problem = over_quota("tenant_users_max", detail, retry_s)
    else:
        problem = too_many_requests(detail, retry_s) if status == OVERLOADED else unavailable(detail, retry_s)
    problem.members |= {"errors": errors, "results": msgspec.to_builtins(made)}
    return problem


_FAILED: Final = frozenset(PUBLISH_STATUS[status] for status in _REASONS)
