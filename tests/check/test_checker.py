"""The checker of histories: right ones pass, and every mutation of one is refused with its reason."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.check import REASONS, Recorder, check

Event = dict[str, Any]
History = list[Event]


def lines(history: History) -> list[str]:
    return [json.dumps(event) for event in history]


def reasons(history: History) -> set[str]:
    return {one.reason for one in check(lines(history))}


@st.composite
def right_histories(draw: st.DrawFn) -> History:
    """Some users; each message published, perhaps twice, delivered, perhaps again, and acknowledged; a gap, and a second connection."""
    history: History = []
    calls = iter(range(1, 1000))

    def publish(user: str, id: str, payload: str, result: Event | None, status: int = 202) -> None:
        call = next(calls)
        history.append({"event": "publish", "call": call, "user": user, "id": id, "payload": payload})
        history.append({"event": "answer", "call": call, "status": status, **({"result": result} if result else {})})

    for number in range(draw(st.integers(1, 3))):
        user, connection = f"u{number}", 10 * number
        history.append({"event": "welcome", "connection": connection, "user": user, "cursor": None, "epoch": "7", "resumed": "new"})
        count = draw(st.integers(4, 8))
        lost_at = draw(st.integers(3, count - 1))
        for seq in range(1, count + 1):
            id = f"m{seq}"
            publish(user, id, f"{user} {id}", {"status": "accepted", "seq": seq})
            if draw(st.booleans()):
                publish(user, id, f"{user} {id}", {"status": "duplicate", "seq": seq})
            if draw(st.booleans()):
                publish(user, id, "other", None, 409)
            if draw(st.booleans()):
                publish(user, f"refused{seq}", "never", None, 503)
            if seq == lost_at:
                history.append({"event": "gap", "connection": connection, "from": seq, "to": seq})
                continue
            message = {"event": "message", "connection": connection, "seq": seq, "id": id, "attempt": 1, "payload": f"{user} {id}"}
            history.append(message)
            if draw(st.booleans()):
                history.append({**message, "attempt": 2})
            if draw(st.booleans()):
                history.append({"event": "ack", "user": user, "cursor": f"7-{seq}"})
            if seq == 2:
                connection += 1
                cursor = {"cursor": "7-1", "epoch": "7", "resumed": "ok"}
                history.append({"event": "welcome", "connection": connection, "user": user, **cursor})
                history.append({**message, "connection": connection, "attempt": 2})
        history.append({"event": "counts", "connection": connection, "revision": 5, "unread": 1, "unseen": 0})
    history += rules_and_marks(9000)
    history.append({"event": "complete"})
    return history


def rules_and_marks(call: int) -> History:
    """A user with quiet hours and a cap, who has a delayed message, marks it read, and answers it on two devices."""
    user = {"user": "ann"}
    first, last = {"call": call, **user, "payload": 1}, {"call": call + 1, **user, "payload": 2}
    message = {"event": "message", "connection": 9000, "attempt": 1}
    return [
        {"event": "welcome", "connection": 9000, **user, "cursor": None, "epoch": "7", "resumed": "new"},
        {"event": "cap", "category": "few", "count": 1, "window_ms": 1000, "at_ms": 0},
        {"event": "publish", **first, "id": "late", "at_ms": 10},
        {"event": "answer", "call": call, "status": 202, "result": {"status": "scheduled", "scheduled_at": 2000}, "at_ms": 20},
        {"event": "quiet", **user, "from_ms": 1000, "to_ms": 3000, "at_ms": 900},
        {"event": "publish", **last, "id": "touch", "members": {"category": "few"}, "at_ms": 1200},
        {"event": "answer", "call": call + 1, "status": 202, "result": {"status": "accepted", "seq": 2}, "at_ms": 1300},
        {**message, "seq": 1, "id": "late", "payload": 1, "at_ms": 2100},
        {**message, "seq": 2, "id": "touch", "payload": 2, "at_ms": 3100},
        {"event": "mark", "call": call + 2, **user, "mark": "read", "ids": ["late"]},
        {"event": "answer", "call": call + 2, "status": 200},
        {"event": "inbox", **user, "messages": [{"id": "late", "seq": 1, "read": True, "seen": True, "archived": False}]},
        {"event": "reply", "call": call + 3, **user, "id": "late", "answer": "yes"},
        {"event": "reply", "call": call + 4, **user, "id": "late", "answer": "no"},
        {"event": "answer", "call": call + 4, "status": 409, "result": {"answer": "yes"}},
        {"event": "answer", "call": call + 3, "status": 200},
    ]


def where(history: History, event: str, **members: Any) -> list[int]:
    """The places of such events."""
    return [at for at, one in enumerate(history) if one["event"] == event and members.items() <= one.items()]


def at_first(history: History, event: str, change: Callable[[Event], Event], **members: Any) -> History:
    at = where(history, event, **members)[0]
    return [*history[:at], change(history[at]), *history[at + 1 :]]


def message_never_came(history: History) -> History:
    return [one for one in history if not (one["event"] == "message" and one["seq"] == 1)]


def unpublished_message(history: History) -> History:
    return at_first(history, "message", lambda one: {**one, "id": "nobody", "seq": 1000})


def other_payload(history: History) -> History:
    return at_first(history, "message", lambda one: {**one, "payload": "another"})


def refused_message(history: History) -> History:
    return [
        {**one, "status": 503, "result": {}} if one["event"] == "answer" and one["status"] == 202 else one
        for one in history
        if one["event"] != "complete"
    ]


def swapped_messages(history: History) -> History:
    connection = max(one["connection"] for one in history if one["event"] == "message")
    at = where(history, "message", connection=connection)
    later = next(place for place in at if history[place]["seq"] > history[at[0]]["seq"])
    changed = list(history)
    changed[at[0]], changed[later] = changed[later], changed[at[0]]
    return [one for one in changed if one["event"] not in ("ack", "gap")]


def gap_not_announced(history: History) -> History:
    return [one for one in history if one["event"] not in ("gap", "ack")]


def number_with_two_messages(history: History) -> History:
    at = where(history, "message", seq=2)[-1]
    return [*history[: at + 1], {**history[at], "id": "m1"}, *history[at + 1 :]]


def message_with_two_numbers(history: History) -> History:
    at = where(history, "message", seq=2)[-1]
    return [*history[: at + 1], {**history[at], "seq": 900}, *history[at + 1 :]]


def repeat_with_the_same_attempt(history: History) -> History:
    at = where(history, "message")[0]
    return [*history[: at + 1], history[at], *history[at + 1 :]]


def answer_with_another_number(history: History) -> History:
    return at_first(history, "answer", lambda one: {**one, "result": {"status": "accepted", "seq": 500}}, status=202)


def repeated(history: History, payload: str, status: int, result: Event | None) -> History:
    first = history[where(history, "publish")[0]]
    again = {**first, "call": 5000, "payload": payload or first["payload"]}
    return [*history, again, {"event": "answer", "call": 5000, "status": status, **({"result": result} if result else {})}]


def repeat_accepted_anew(history: History) -> History:
    return repeated(history, "", 202, {"status": "accepted"})


def repeat_refused(history: History) -> History:
    return repeated(history, "", 409, None)


def other_payload_accepted(history: History) -> History:
    return repeated(history, "another", 202, {"status": "duplicate"})


def conflict_without_reason(history: History) -> History:
    publish = {"event": "publish", "call": 6000, "user": "u0", "id": "fresh", "payload": "x"}
    return [*history, publish, {"event": "answer", "call": 6000, "status": 409}]


def resumed_in_another_epoch(history: History) -> History:
    return at_first(history, "welcome", lambda one: {**one, "cursor": "6-1"}, resumed="ok")


def counts_that_differ(history: History) -> History:
    at = where(history, "counts")[0]
    return [*history[: at + 1], {**history[at], "unread": 9}, *history[at + 1 :]]


def unknown_event(history: History) -> History:
    return [*history, {"event": "mutation"}]


def message_before_it_is_due(history: History) -> History:
    return at_first(history, "message", lambda one: {**one, "at_ms": 1999}, id="late")


def message_in_quiet_hours(history: History) -> History:
    return at_first(history, "message", lambda one: {**one, "at_ms": 2999}, id="touch")


def one_more_than_the_cap(history: History) -> History:
    publish = history[where(history, "publish", id="touch")[0]]
    again = {**publish, "call": 7000, "id": "touch2", "at_ms": 1900}
    return [*history[:-1], again, {"event": "answer", "call": 7000, "status": 202, "at_ms": 2150}]


def mark_is_gone(history: History) -> History:
    return at_first(history, "inbox", lambda one: {**one, "messages": [{**one["messages"][0], "read": False}]})


def two_winners(history: History) -> History:
    return at_first(history, "answer", lambda one: {**one, "status": 200}, result={"answer": "yes"})


def nothing_is_gone(history: History) -> History:
    return at_first(history, "welcome", lambda one: {**one, "resumed": "gap"}, resumed="ok")


MUTATIONS: dict[Callable[[History], History], str] = {
    message_never_came: "lost",
    unpublished_message: "invented",
    other_payload: "altered",
    refused_message: "refused",
    swapped_messages: "order",
    gap_not_announced: "hole",
    number_with_two_messages: "number",
    message_with_two_numbers: "number",
    repeat_with_the_same_attempt: "attempt",
    answer_with_another_number: "answer",
    repeat_accepted_anew: "repeat",
    repeat_refused: "repeat",
    other_payload_accepted: "conflict",
    conflict_without_reason: "conflict",
    resumed_in_another_epoch: "resumed",
    nothing_is_gone: "resumed",
    message_before_it_is_due: "due",
    message_in_quiet_hours: "quiet",
    one_more_than_the_cap: "cap",
    mark_is_gone: "mark",
    two_winners: "winner",
    counts_that_differ: "counts",
    unknown_event: "history",
}


@given(right_histories())
def test_right_histories_have_no_violation(history: History) -> None:
    assert check(lines(history)) == []


@given(right_histories())
def test_each_mutation_is_refused_with_its_reason(history: History) -> None:
    for mutation, reason in MUTATIONS.items():
        assert reason in reasons(mutation(history)), mutation.__name__


def test_every_reason_has_a_mutation() -> None:
    assert set(MUTATIONS.values()) == set(REASONS)


def test_a_call_without_an_answer_may_have_been_accepted_or_not() -> None:
    publish = {"event": "publish", "call": 1, "user": "u", "id": "m", "payload": 1}
    welcome = {"event": "welcome", "connection": 1, "user": "u", "cursor": None, "epoch": "7", "resumed": "new"}
    message = {"event": "message", "connection": 1, "seq": 1, "id": "m", "attempt": 1, "payload": 1}
    assert reasons([publish, {"event": "complete"}]) == set()
    assert reasons([publish, welcome, message, {"event": "complete"}]) == set()


ONE = {"event": "publish", "call": 1, "user": "u", "id": "m", "payload": 1}
ACCEPTED = {"event": "answer", "call": 1, "status": 202, "result": {"status": "accepted", "seq": 1}}
CONNECTED = {"event": "welcome", "connection": 1, "user": "u", "cursor": None, "epoch": "7", "resumed": "new"}
COMPLETE = {"event": "complete"}


def test_storage_that_lost_data_excuses_only_what_was_accepted_before_its_new_epoch() -> None:
    changed = {**CONNECTED, "connection": 2, "cursor": "7-0", "epoch": "8", "resumed": "gap"}
    assert reasons([CONNECTED, ONE, ACCEPTED, changed, COMPLETE]) == set()
    assert reasons([CONNECTED, changed, ONE, ACCEPTED, COMPLETE]) == {"lost"}


@pytest.mark.parametrize(("status", "payload", "reason"), [(202, 1, "repeat"), (409, 1, "repeat"), (202, 2, "conflict")])
def test_storage_that_lost_a_message_takes_it_again(status: int, payload: int, reason: str) -> None:
    again, answer = {**ONE, "call": 2, "payload": payload}, {**ACCEPTED, "call": 2, "status": status}
    changed = {**CONNECTED, "connection": 2, "cursor": "7-0", "epoch": "8", "resumed": "gap"}
    other = [{**ONE, "call": 3, "payload": 3}, {"event": "answer", "call": 3, "status": 409}] * (status == 409)  # what it has instead
    assert reasons([CONNECTED, ONE, ACCEPTED, *other, again, answer]) == {reason}
    assert reasons([CONNECTED, ONE, ACCEPTED, *other, changed, again, answer]) == set()
    assert reasons([CONNECTED, ONE, ACCEPTED, *other, again, answer, changed]) == set(), "told of the loss later"
    assert reasons([CONNECTED, changed, ONE, ACCEPTED, *other, again, answer]) == {reason}, "told before the message"


def test_a_message_taken_again_after_a_loss_is_owed() -> None:
    changed = {**CONNECTED, "connection": 2, "cursor": "7-0", "epoch": "8", "resumed": "gap"}
    again = [{**ONE, "call": 2}, {**ACCEPTED, "call": 2}]
    assert reasons([CONNECTED, ONE, ACCEPTED, changed, *again, COMPLETE]) == {"lost"}
    third = [{**ONE, "call": 3}, {**ACCEPTED, "call": 3}]
    assert reasons([CONNECTED, ONE, ACCEPTED, changed, *again, *third]) == {"repeat"}


def test_a_gap_excuses_only_its_own_numbers() -> None:
    gap = {"event": "gap", "connection": 1, "from": 2, "to": 3}
    assert reasons([CONNECTED, ONE, ACCEPTED, gap, COMPLETE]) == {"lost"}
    assert reasons([CONNECTED, ONE, ACCEPTED, {**gap, "from": 1}, COMPLETE]) == set()


def test_a_delayed_message_is_owed_when_it_is_due() -> None:
    scheduled = {**ACCEPTED, "result": {"status": "scheduled", "scheduled_at": 1000}}
    moved = {"event": "move", "user": "u", "id": "m", "due_ms": 2000}
    assert reasons([ONE, scheduled, {**COMPLETE, "now_ms": 999}]) == set()
    assert reasons([ONE, scheduled, {**COMPLETE, "now_ms": 1000}]) == {"lost"}
    assert reasons([ONE, scheduled, moved, {**COMPLETE, "now_ms": 1999}]) == set()
    assert reasons([ONE, scheduled, moved, COMPLETE]) == {"lost"}


@pytest.mark.parametrize("members", [{"ttl": 1}, {"retain": False}, {"collapse": {"key": "k"}}, {"suppressible": True}])
def test_a_message_that_may_go_by_itself_is_not_lost(members: Event) -> None:
    assert reasons([CONNECTED, {**ONE, "members": members}, ACCEPTED, COMPLETE]) == set()


def test_a_batch_that_is_refused_in_part_says_so_by_message() -> None:
    refused = {**ACCEPTED, "status": 503}
    assert reasons([CONNECTED, ONE, refused, COMPLETE]) == {"lost"}
    message = {"event": "message", "connection": 1, "seq": 1, "id": "m", "attempt": 1, "payload": 1}
    assert reasons([CONNECTED, ONE, {**refused, "result": {"status": "unavailable", "reason": "storage"}}, message]) == {"refused"}
    unknown = {"status": "unavailable", "reason": "no answer in time; it may have been accepted"}
    assert reasons([CONNECTED, ONE, {**refused, "result": unknown}, message, COMPLETE]) == set()


def test_a_message_for_the_inbox_alone_is_skipped_on_connections() -> None:
    second, later = {**ONE, "call": 2, "id": "n"}, {**ONE, "call": 3, "id": "o"}
    message = {"event": "message", "connection": 1, "seq": 1, "id": "m", "attempt": 1, "payload": 1}
    skipping = [CONNECTED, ONE, second, later, message, {**message, "seq": 3, "id": "o"}]
    result = {"status": "accepted", "seq": 2, "reason": "inbox: the user wants few in the inbox only"}
    answer = {"event": "answer", "call": 2, "status": 202}
    assert reasons([*skipping, {**answer, "result": result}, COMPLETE]) == set()
    assert reasons([*skipping, {**answer, "result": {**result, "reason": ""}}, COMPLETE]) == {"hole", "lost"}
    unknown = {**second, "members": {"suppressible": True}}
    repeated = {**answer, "result": {"status": "duplicate", "seq": 2}}
    assert reasons([unknown if one is second else one for one in skipping] + [repeated, COMPLETE]) == set()


def test_attempts_may_begin_anew_where_a_process_died() -> None:
    message = {"event": "message", "connection": 1, "seq": 1, "id": "m", "attempt": 1, "payload": 1}
    assert reasons([CONNECTED, ONE, message, message]) == {"attempt"}
    assert reasons([CONNECTED, ONE, message, {"event": "disturbed"}, message]) == set()


def test_a_cancelled_message_need_not_come() -> None:
    assert reasons([CONNECTED, ONE, ACCEPTED, {"event": "cancel", "user": "u", "id": "m"}, COMPLETE]) == set()


def test_a_mark_under_way_may_show_or_not() -> None:
    mark = {"event": "mark", "call": 2, "user": "u", "mark": "unread", "ids": ["m"]}
    for read in (True, False):
        listed = {"event": "inbox", "user": "u", "messages": [{"id": "m", "read": read}]}
        assert reasons([ONE, ACCEPTED, mark, listed]) == set()


def test_an_early_copy_has_its_number_and_no_place_in_the_order() -> None:
    early = {"event": "early", "connection": 1, "seq": 2, "id": "n", "attempt": 1, "payload": 1}
    other = {**ONE, "call": 2, "id": "n"}
    first = {"event": "message", "connection": 1, "seq": 1, "id": "m", "attempt": 1, "payload": 1}
    assert reasons([CONNECTED, ONE, other, early, first, {**early, "event": "message", "attempt": 2}]) == set()
    assert reasons([CONNECTED, ONE, other, early, {**first, "id": "n"}]) == {"number"}


def test_a_recorded_history_is_checked_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with Recorder.to_file(str(path)) as recorder:
        call = recorder.published("ann", "m1", {"n": 1})
        recorder.answered(call, 202, {"status": "accepted", "seq": 1})
        connection = recorder.connected("ann", None, {"type": "welcome", "epoch": "7", "resumed": "new"})
        recorder.received(connection, {"type": "messages", "messages": [{"seq": 1, "id": "m1", "attempt": 1, "data": {"n": 1}}]})
        recorder.received(connection, {"type": "gap", "from": 2, "to": 3})
        recorder.received(connection, {"type": "revoke", "ids": ["m0"]})
        recorder.received(connection, {"type": "counts", "revision": 3, "unread": 1, "unseen": 1})
        recorder.acknowledged("ann", "7-1")
        recorder.complete()
    command = [sys.executable, "-m", "engine.check", str(path)]
    whole = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (whole.returncode, whole.stdout) == (0, "0 violations\n")
    path.write_text(path.read_text().replace('"n": 1', '"n": 2', 1))
    broken = subprocess.run(command, capture_output=True, text=True, check=False)
    assert broken.returncode == 1
    assert "altered: ann: m1" in broken.stdout
