"""What a publisher is told, for every answer there is."""

from __future__ import annotations

import pytest

from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.model.routing import partition_of
from engine.core.wire import records as wire
from engine.gateway.pending_calls import PendingCall
from engine.http.problems import Problem
from engine.publish.drafts import Draft
from engine.publish.results import ItemResult, raise_unless_taken, records_of, results_body, results_of

NOW_MS = 1_700_000_000_000


def draft(*, due_ms: int = 0, idempotent: bool = True, user: str = "u1", item: int = 0) -> Draft:
    return Draft(
        f"t:{user}", user, Envelope("id-1", b"12345678", NORMAL, True, b'"id":"id-1"', ""), idempotent, NOW_MS + 1000, 1000, due_ms, item
    )


async def result(answer: object, *, repeated: bool = False, **fields: object) -> ItemResult:
    """What is told of one draft with this answer."""
    drafts = [draft(**fields)]  # type: ignore[arg-type]
    records = records_of(drafts, 7, NOW_MS, lambda: "uuid")
    call = PendingCall("t", 7, records, 1, [0], 0)
    call.repeated = repeated
    if answer is not None:
        call.answers[0] = answer
    (told,) = results_of(drafts, call)
    return told


def timer(sid: str, due_ms: int) -> wire.Timer:
    return wire.Timer(sid, "t:u1", due_ms, NOW_MS, 1000, Envelope("id-1", b"12345678", 1, True, b""))


@pytest.mark.parametrize(
    ("answer", "idempotent", "told"),
    [
        (wire.Posted(7, wire.ACCEPTED, 5), True, ("accepted", 5, "", "")),
        (wire.Posted(7, wire.ACCEPTED, 5, "inbox: why"), True, ("accepted", 5, "", "inbox: why")),
        (wire.Posted(7, wire.DUPLICATE, 5), True, ("duplicate", 5, "", "")),
        (wire.Posted(7, wire.DUPLICATE, 5, "3-x"), True, ("duplicate", 5, "3-x", "")),
        (wire.Posted(7, wire.DUPLICATE, 5), False, ("accepted", 5, "", "")),
        (wire.Posted(7, wire.MERGED, 0, "window until 9"), True, ("merged", 0, "", "window until 9")),
        (wire.Posted(7, wire.DUPLICATE), True, ("duplicate", 0, "", "")),
        (wire.Posted(7, wire.DUPLICATE), False, ("merged", 0, "", "")),
        (wire.Posted(7, wire.SUPPRESSED, 0, "nobody is connected"), True, ("suppressed", 0, "", "nobody is connected")),
        (wire.Posted(7, wire.CONFLICT), True, ("conflict", 0, "", "the same id was used with a different payload")),
        (wire.Posted(7, wire.UNAVAILABLE), True, ("unavailable", 0, "", "durable storage did not answer")),
        (wire.Posted(7, wire.OVERLOADED, 0, "full"), True, ("overloaded", 0, "", "full")),
        (None, True, ("unavailable", 0, "", "no answer in time; it may have been accepted: repeat it under the same id")),
    ],
)
async def test_an_immediate_draft(answer: object, idempotent: bool, told: tuple[str, int, str, str]) -> None:
    seen = await result(answer, idempotent=idempotent)
    assert (seen.status, seen.seq, seen.scheduled_id, seen.reason) == told


@pytest.mark.parametrize("status", [wire.UNAVAILABLE, wire.OVERLOADED])
async def test_a_repeat_of_the_edge_that_was_refused_is_not_known_to_have_been_refused_the_first_time(status: int) -> None:
    seen = await result(wire.Posted(7, status, 0, "the shard is overloaded"), repeated=True)
    assert (seen.status, seen.reason) == ("unavailable", "no answer in time; it may have been accepted: repeat it under the same id")


DUE_MS = NOW_MS + 5000
OURS = f"{partition_of('t:u1')}-uuid"


@pytest.mark.parametrize(
    ("answer", "idempotent", "told"),
    [
        (wire.TimerAnswer(7, wire.SCHEDULED, [timer(OURS, DUE_MS)]), True, ("scheduled", 0, OURS, DUE_MS)),
        (wire.TimerAnswer(7, wire.SCHEDULED), True, ("scheduled", 0, OURS, DUE_MS)),
        (wire.TimerAnswer(7, wire.DUPLICATE, [timer("3-first", 9)], "3-first"), True, ("duplicate", 0, "3-first", 9)),
        (wire.TimerAnswer(7, wire.DUPLICATE, [], "3-first"), True, ("duplicate", 0, "3-first", 0)),
        (wire.TimerAnswer(7, wire.DUPLICATE, [], "seq=12"), True, ("duplicate", 12, "", 0)),
        (wire.TimerAnswer(7, wire.DUPLICATE, [timer(OURS, DUE_MS)], OURS), True, ("scheduled", 0, OURS, DUE_MS)),
        (wire.TimerAnswer(7, wire.CONFLICT), True, ("conflict", 0, "", 0)),
        (wire.TimerAnswer(7, wire.OVERLOADED, detail="too many timers"), True, ("overloaded", 0, "", 0)),
        (wire.TimerAnswer(7, wire.UNAVAILABLE), True, ("unavailable", 0, "", 0)),
        (None, True, ("unavailable", 0, "", 0)),
    ],
)
async def test_a_delayed_draft(answer: object, idempotent: bool, told: tuple[str, int, str, int]) -> None:
    seen = await result(answer, due_ms=DUE_MS, idempotent=idempotent)
    assert (seen.status, seen.seq, seen.scheduled_id, seen.scheduled_at) == told


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        (["accepted", "conflict"], 409),
        (["conflict", "overloaded"], 429),
        (["overloaded", "unavailable", "conflict"], 503),
    ],
)
def test_what_may_succeed_later_is_told_before_what_never_will(statuses: list[str], status: int) -> None:
    made = [ItemResult("id", "u", word, reason="why") for word in statuses]
    with pytest.raises(Problem) as raised:
        raise_unless_taken(made, statuses, [draft(item=index) for index, _ in enumerate(statuses)], [None] * len(statuses))
    assert raised.value.status == status
    assert ("Retry-After" in raised.value.headers) == (status != 409)
    assert [told["status"] for told in raised.value.members["results"]] == statuses
    assert [error["index"] for error in raised.value.members["errors"]] == [i for i, word in enumerate(statuses) if word != "accepted"]


def test_good_results_raise_nothing() -> None:
    words = ("accepted", "scheduled", "merged", "duplicate", "suppressed")
    raise_unless_taken([ItemResult("id", "u", word) for word in words], words, [draft() for _ in words], [None] * len(words))


def test_an_error_names_the_item_of_the_request_and_the_user_of_the_item() -> None:
    drafts = [draft(user=user, item=item) for item, user in ((0, "ann"), (0, "bob"), (1, "cat"))]
    made = [
        ItemResult("id", user, word, reason="why") for user, word in (("ann", "accepted"), ("bob", "overloaded"), ("cat", "overloaded"))
    ]
    with pytest.raises(Problem) as raised:
        raise_unless_taken(made, [result.status for result in made], drafts, [None] * 3)
    told = [{"index": 0, "user": "bob", "detail": "why"}, {"index": 1, "user": "cat", "detail": "why"}]
    assert raised.value.members["errors"] == told


def test_retry_after_is_what_the_most_pressed_says() -> None:
    answers = [wire.TimerAnswer(1, wire.OVERLOADED, retry_ms=20_000), wire.Posted(2, wire.OVERLOADED, 0, "full", 3000)]
    with pytest.raises(Problem) as raised:
        raise_unless_taken([ItemResult("id", "u", "overloaded")] * 2, ["overloaded"] * 2, [draft(), draft()], answers)
    assert 20 <= int(raised.value.headers["Retry-After"]) <= 30


# -- Answers and small bodies. -----------------------------------------------------------------------------------------
def test_the_answer_is_written_byte_for_byte() -> None:
    assert results_body(
        [
            ItemResult("k1", "ann", "accepted", seq=7),
            ItemResult("k2", "ann", "scheduled", scheduled_id="3-abc", scheduled_at=NOW_MS),
            ItemResult("k3", 'b"b', "duplicate", seq=5),
            ItemResult("k4", "ann", "suppressed", reason="cap"),
            ItemResult("k5", "ann", "merged"),
        ]
    ) == (
        b'{"accepted":3,"results":[{"id":"k1","user":"ann","status":"accepted","seq":7},'
        b'{"id":"k2","user":"ann","status":"scheduled","scheduled_id":"3-abc","scheduled_at":1700000000000},'
        b'{"id":"k3","user":"b\\"b","status":"duplicate","seq":5},{"id":"k4","user":"ann","status":"suppressed","reason":"cap"},'
        b'{"id":"k5","user":"ann","status":"merged"}]}'
    )
