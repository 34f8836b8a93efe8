"""Aggregation windows: what they hold, merge and send, and that every message counts once, whatever crashes."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.model.constants import HIGH, LOW, NORMAL, PRIORITIES
from engine.core.model.envelope import Envelope, Merge
from engine.features.windows.core import aggregation
from engine.features.windows.core.aggregation import ACTORS_MAX, MARKS_MAX, TEXT_CHARS_MAX, WindowOutcome
from engine.features.windows.core.aggregation_window import Counted, Ended, WindowItem, Windows

KEY = "t:ann"
WINDOWS_MAX = 3
_record = msgspec.msgpack.Decoder(Counted | Ended)
encode_windows = msgspec.msgpack.Encoder().encode
decode_windows = msgspec.msgpack.Decoder(Windows).decode


def item(id_: str, at_ms: int, *, actor: Any = "bob", more: bytes = b"", **fields: Any) -> WindowItem:
    body = (
        msgspec.json.encode({"id": id_, "ts": at_ms, "actor": actor, "type": "post.liked"})[1:-1]
        + more
        + b',"data":{"n":"%b"}' % id_.encode()
    )
    merge = Merge(300, fields.pop("leading", False), fields.pop("text", ""))
    expires_ms, timer = fields.pop("expires_ms", at_ms + 10_000), fields.pop("timer", "")
    made = {"digest": blake2b(id_.encode(), digest_size=8).digest(), "priority": NORMAL, "retain": True, "body": body, "collapse": "likes"}
    return WindowItem(Envelope(id_, merge=merge, **(made | fields)), expires_ms, at_ms, timer)


def item_with_body(id_: str, at_ms: int, body: bytes) -> WindowItem:
    made = item(id_, at_ms)
    return msgspec.structs.replace(made, envelope=msgspec.structs.replace(made.envelope, body=body))


def offer(windows: Windows, *items: WindowItem) -> list[WindowOutcome]:
    outcomes = []
    for one in items:
        outcome, record = aggregation.offer(windows, KEY, one, WINDOWS_MAX)
        if record is not None:
            assert aggregation.apply(windows, record)
        outcomes.append(outcome)
    return outcomes


def close(windows: Windows, collapse: str = "likes") -> dict[str, Any] | None:
    sent, record = aggregation.close(windows, KEY, collapse)
    assert aggregation.apply(windows, record)
    if sent is None:
        return None
    told: dict[str, Any] = json.loads(b"{%b}" % sent.envelope.body)
    assert told["id"] == sent.envelope.id
    assert told.get("priority", PRIORITIES[sent.envelope.priority]) == PRIORITIES[sent.envelope.priority]
    return told


def test_a_held_window_sends_one_summary_with_count_actors_and_times() -> None:
    windows = Windows()
    likes = [item(f"m{n}", 1000 + n, actor={"name": f"a{n % 7}"}, text="{actors[].name} and others: {count} likes") for n in range(9)]
    assert offer(windows, *likes) == [WindowOutcome.HELD] + [WindowOutcome.MERGED] * 8
    assert aggregation.due(windows, 1299) == []
    assert aggregation.due(windows, 1300) == ["likes"]
    told = close(windows)
    assert told is not None
    assert (told["count"], told["first_ts"], told["last_ts"]) == (9, 1000, 1008)
    assert told["actors"] == [{"name": f"a{n}"} for n in range(ACTORS_MAX)]
    assert told["text"] == "a0, a1, a2, a3, a4 and others: 9 likes"
    assert told["type"] == "post.liked"
    assert told["data"] == {"n": "m8"}
    assert "replaces" not in told
    assert windows.open == {}


def test_a_summary_has_the_link_of_its_newest_message() -> None:
    windows = Windows()
    offer(windows, item("m1", 1000, more=b',"url":"/posts/1"'), item("m2", 1001, more=b',"url":"/posts/2"'))
    told = close(windows)
    assert told is not None
    assert told["url"] == "/posts/2"


def test_a_window_with_one_message_sends_that_message_as_it_is() -> None:
    windows = Windows()
    only = item("m1", 1000)
    offer(windows, only)
    sent, _ = aggregation.close(windows, KEY, "likes")
    assert sent is not None
    assert (sent.envelope.id, sent.envelope.body) == ("m1", only.envelope.body)


def test_a_leading_window_delivers_the_first_and_a_summary_of_all_replaces_it() -> None:
    windows = Windows()
    assert offer(windows, item("m1", 1000, leading=True), item("m2", 1001, leading=True), item("m3", 1100)) == [
        WindowOutcome.DELIVER,
        WindowOutcome.MERGED,
        WindowOutcome.MERGED,
    ]
    told = close(windows)
    assert told is not None
    assert (told["count"], told["replaces"], told["first_ts"], told["last_ts"]) == (3, "m1", 1000, 1100)
    offer(windows, item("m4", 2000, leading=True))
    assert close(windows) is None, "the first one was delivered, and nothing else came"


def test_an_id_counts_once_in_its_window() -> None:
    windows = Windows()
    assert offer(windows, item("m1", 1000), item("m1", 1001), item("m2", 1002), item("m2", 1003)) == [
        WindowOutcome.HELD,
        WindowOutcome.DUPLICATE,
        WindowOutcome.MERGED,
        WindowOutcome.DUPLICATE,
    ]
    assert offer(Windows(), item("x", 1, leading=True), item("x", 2)) == [WindowOutcome.DELIVER, WindowOutcome.DUPLICATE]


def test_a_user_with_too_many_windows_gets_more_messages_unmerged() -> None:
    windows = Windows()
    keys = [offer(windows, item(f"m{n}", 1000, collapse=f"k{n}"))[0] for n in range(WINDOWS_MAX + 1)]
    assert keys == [WindowOutcome.HELD] * WINDOWS_MAX + [WindowOutcome.UNMERGED]
    assert offer(windows, item("again", 1001, collapse="k0")) == [WindowOutcome.MERGED]


def test_a_window_is_bounded_whatever_it_counts() -> None:
    windows = Windows()
    for n in range(5 * MARKS_MAX):
        offer(windows, item(f"m{n}", 1000 + n, actor=f"a{n}"))
    window = windows.open["likes"]
    assert window.count == 5 * MARKS_MAX
    assert len(window.marks) == MARKS_MAX
    assert len(window.actors) == ACTORS_MAX
    assert len(encode_windows(windows)) < 20 * MARKS_MAX


def test_a_summary_is_as_urgent_as_the_most_urgent_and_lives_as_long_as_the_longest_living() -> None:
    windows = Windows()
    offer(windows, item("m1", 1000, priority=HIGH, expires_ms=5000), item("m2", 1001, priority=LOW, expires_ms=9000, retain=False))
    sent, _ = aggregation.close(windows, KEY, "likes")
    assert sent is not None
    assert (sent.envelope.priority, sent.expires_ms, sent.envelope.retain) == (HIGH, 9000, True)
    assert json.loads(b"{%b}" % sent.envelope.body)["priority"] == "high"


def test_the_same_id_with_another_payload_is_not_taken_for_a_repeat() -> None:
    """Storage tells the conflict: a window that answered "duplicate" would hide it."""
    windows = Windows()
    assert offer(windows, item("m1", 1000), item("m1", 1001, digest=b"another.")) == [WindowOutcome.HELD, WindowOutcome.MERGED]


def test_a_timer_counts_once_whatever_id_its_message_has() -> None:
    windows = Windows()
    assert offer(windows, item("m1", 1000, timer="3-x"), item("m1", 1001, timer="3-x")) == [WindowOutcome.HELD, WindowOutcome.DUPLICATE]


def test_numbers_beyond_those_of_python_stay_as_they_were_sent_and_cost_only_the_text() -> None:
    windows = Windows()
    offer(windows, item("m1", 1000, text="{count} likes"), item("m2", 1001, more=b',"context":[1e999,123456789012345678901234567890]'))
    sent, _ = aggregation.close(windows, KEY, "likes")
    assert sent is not None
    assert b"[1e999,123456789012345678901234567890]" in sent.envelope.body
    assert b'"text"' not in sent.envelope.body


def test_a_body_that_cannot_be_read_counts_and_harms_nobody() -> None:
    windows = Windows()
    broken = item_with_body("m2", 1001, b"\x00\xff")
    assert offer(windows, item("m1", 1000), broken) == [WindowOutcome.HELD, WindowOutcome.MERGED]
    told = close(windows)
    assert told is not None
    assert (told["count"], told["actors"], told["data"]) == (2, ["bob"], None)


def test_a_text_is_text_and_is_cut() -> None:
    for template, expected in (("{count}", "2"), ("{nothing}", None), ("{data.n}" * 600, ("m2" * 600)[:TEXT_CHARS_MAX])):
        windows = Windows()
        offer(windows, item("m1", 1000, text=template), item("m2", 1001))
        told = close(windows)
        assert told is not None
        assert told.get("text") == expected


def test_deciding_changes_nothing() -> None:
    windows = Windows()
    offer(windows, item("m1", 1000))
    before = encode_windows(windows)
    aggregation.offer(windows, KEY, item("m2", 1001), WINDOWS_MAX)
    aggregation.close(windows, KEY, "likes")
    copy = aggregation.copy(windows)
    offer(copy, item("m3", 1002))
    close(copy)
    assert encode_windows(windows) == before


class Histories(RuleBasedStateMachine):
    """Random histories with retries, crashes at every point and pages of any age, against a model that remembers every id."""

    @initialize()
    def begin(self) -> None:
        self.now_ms = 1000
        self.windows = Windows()
        self.page = encode_windows(self.windows)
        self.journal: list[bytes] = []  # since the page or earlier: replay must not care
        self.ids = 0
        self.model: dict[str, dict[str, Any]] = {}  # open windows: counted ids in order, with actor and time
        self.counted: dict[tuple[str, str], int] = {}  # how often each id went out, alone or in a summary's count
        self.known: dict[str, str] = {}  # what storage remembers of ids: id -> collapse key

    def _commit(self, record: Counted | Ended) -> None:
        self.journal.append(msgspec.msgpack.encode(record))
        assert aggregation.apply(self.windows, record)

    @rule(
        collapse=st.sampled_from("abcd"),
        actor=st.sampled_from(["x", "y", {"n": 1}, None]),
        leading=st.booleans(),
        repeat=st.booleans(),
        data=st.data(),
    )
    def offered(self, collapse: str, actor: Any, leading: bool, repeat: bool, data: st.DataObject) -> None:
        for due in aggregation.due(self.windows, self.now_ms):
            self._close(due)
        if repeat and self.known:
            id_ = data.draw(st.sampled_from(sorted(self.known)))
            collapse = self.known[id_]
        else:
            self.ids += 1
            id_ = f"m{self.ids}"
        one = item(id_, self.now_ms, collapse=collapse, actor=actor, leading=leading)
        outcome, record = aggregation.offer(self.windows, KEY, one, WINDOWS_MAX)
        window = self.model.get(collapse)
        if window is not None and id_ in window["ids"]:
            assert outcome is WindowOutcome.DUPLICATE
            return
        if id_ in self.known:
            return  # storage knows it from an earlier window: the shard commits nothing
        if data.draw(st.integers(0, 9)) == 0:
            return  # the group was refused: nothing happened
        self.known[id_] = collapse
        if window is None and len(self.model) >= WINDOWS_MAX:
            assert outcome is WindowOutcome.UNMERGED
            self.counted[collapse, id_] = self.counted.get((collapse, id_), 0) + 1
            return
        assert record is not None
        self._commit(record)
        if window is None:
            assert outcome is (WindowOutcome.DELIVER if leading else WindowOutcome.HELD)
            self.model[collapse] = window = {"ids": [id_], "leading": leading, "merged": [], "closes": self.now_ms + 300}
        else:
            assert outcome is WindowOutcome.MERGED
            window["ids"].append(id_)
        window["merged"].append((id_, actor, self.now_ms))

    def _close(self, collapse: str) -> None:
        sent, record = aggregation.close(self.windows, KEY, collapse)
        self._commit(record)
        window = self.model.pop(collapse)
        assert window["closes"] <= self.now_ms
        merged = window["merged"]
        for id_, _, _ in merged:
            self.counted[collapse, id_] = self.counted.get((collapse, id_), 0) + 1
        if len(merged) == 1 and window["leading"]:
            assert sent is None, "it was delivered at once"
            return
        assert sent is not None
        told = json.loads(b"{%b}" % sent.envelope.body)
        if len(merged) == 1:
            assert told["id"] == merged[0][0]
            assert "count" not in told
            return
        actors: list[Any] = []
        for _, actor, _ in merged:
            if actor is not None and actor not in actors:
                actors.append(actor)
        assert told["count"] == len(merged)
        assert told["actors"] == actors[:ACTORS_MAX]
        assert (told["first_ts"], told["last_ts"]) == (merged[0][2], merged[-1][2])
        assert told.get("replaces", "") == (window["ids"][0] if window["leading"] else "")

    @rule(step_ms=st.integers(1, 200))
    def time_passes(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @precondition(lambda self: aggregation.due(self.windows, self.now_ms))
    @rule()
    def timer(self) -> None:
        for collapse in aggregation.due(self.windows, self.now_ms):
            self._close(collapse)

    @rule(trim=st.booleans())
    def checkpoint(self, trim: bool) -> None:
        self.page = encode_windows(self.windows)
        if trim:
            self.journal.clear()

    @rule()
    def crash(self) -> None:
        self.windows = decode_windows(self.page)
        for entry in self.journal:
            aggregation.apply(self.windows, _record.decode(entry))

    @invariant()
    def every_id_counts_at_most_once(self) -> None:
        assert all(times == 1 for times in self.counted.values())
        assert self.windows.open.keys() == self.model.keys()
        for collapse, window in self.model.items():
            assert self.windows.open[collapse].count == len(window["merged"])
            assert self.windows.open[collapse].closes_ms == window["closes"]
        assert self.windows.next_ms == min((window["closes"] for window in self.model.values()), default=0)

    def teardown(self) -> None:
        """In the end every message of every window went out once."""
        if hasattr(self, "model"):
            self.now_ms += 1000
            for collapse in aggregation.due(self.windows, self.now_ms):
                self._close(collapse)
            assert {id_ for _, id_ in self.counted} == self.known.keys()


Histories.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestEveryMessageCountsOnceThroughCrashes = Histories.TestCase


def test_a_body_that_is_no_json_counts_and_says_nothing() -> None:
    windows = Windows()
    offer(windows, *(item_with_body(id_, 5, b"\x00") for id_ in ("a", "b")))
    summary = close(windows)
    assert summary is not None
    assert summary["count"] == 2
