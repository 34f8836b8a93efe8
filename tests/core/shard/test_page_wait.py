"""What waits for a page: in order, counted, bounded, and gone with its connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.commit.judge import Pending
from engine.core.mailbox.memory import MESSAGE_BYTES
from engine.core.model.envelope import Envelope
from engine.core.shard import page_wait
from engine.core.shard.page_wait import BEHIND_MAX, PageWait
from engine.core.wire.records import WEBSOCKET, Ack, Attach, Nack, Post, Rejoin, Written
from tests.support.shard_world import connected_world

A, B = "t:ann", "t:bob"
EDGE, OTHER_EDGE = "edge-0/1", "edge-1/1"


def post(key: str = A, size: int = 3) -> Pending:
    return Pending(EDGE, Post(1, key, True, 1000, Envelope("m", b"", 1, True, b"x" * size)))


def attach(conn: int, key: str = A) -> Attach:
    return Attach(conn, key, WEBSOCKET, "", 0, "s", "d")


def test_what_waited_for_a_page_comes_out_once_in_its_order_of_arrival() -> None:
    wait = PageWait()
    first, second, other = post(), attach(1), post(B)
    wait.add(A, EDGE, first)
    wait.add(B, EDGE, other)
    wait.add(A, EDGE, second)
    assert wait.take(A) == [(EDGE, first), (EDGE, second)]
    assert wait.take(A) == []
    assert wait.take(B) == [(EDGE, other)]


def test_a_page_is_wanted_once_however_much_waits_for_it_and_again_when_it_could_not_be_read() -> None:
    wait = PageWait()
    assert not wait.pages_wanted
    for key in (B, A, B):
        wait.add(key, EDGE, post(key))
    assert wait.pages_wanted
    assert wait.take_pages_wanted() == [B, A]
    wait.add(A, EDGE, post())
    assert not wait.pages_wanted, "the page is being read"
    wait.want_again([A])
    assert wait.take_pages_wanted() == [A]
    wait.take(A)
    wait.add(A, EDGE, post())
    assert wait.take_pages_wanted() == [A], "it was taken, so the next one needs it read again"


def test_pages_are_read_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_wait, "_PAGES_MAX", 2)
    wait = PageWait()
    for key in (A, B, "t:cid"):
        wait.add(key, EDGE, post(key))
    assert [wait.take_pages_wanted() for _ in range(3)] == [[A, B], ["t:cid"], []]


def test_connections_of_an_ended_link_session_wait_no_more() -> None:
    world = connected_world()
    world.ack(1, 1)
    world.core.closed(EDGE, world.now_ms)
    assert world.core.page_wait.take("t:u") == []


def test_a_doubted_mailbox_wants_no_page() -> None:
    wait, first, second = PageWait(), attach(1), attach(2)
    wait.doubt(A, EDGE, first)
    wait.add(A, EDGE, second)
    assert (list(wait.doubted), list(wait.pages_wanted)) == ([A], [])
    assert wait.take(A) == [(EDGE, first), (EDGE, second)]
    assert not wait.doubted


def test_a_renewed_token_changes_the_attach_that_waits_however_much_waits_behind_it() -> None:
    wait = PageWait()
    wait.add(A, EDGE, attach(1))
    wait.add(A, OTHER_EDGE, attach(1))
    for _ in range(BEHIND_MAX):
        wait.behind(EDGE, Ack(1, 5))
    wait.behind(EDGE, Rejoin(1, ("news",)))
    wait.behind(EDGE, Rejoin(2, ("sport",)))
    attaches = [record for _, record in wait.take(A) if isinstance(record, Attach)]
    assert [record.topics for record in attaches] == [("news",), ()]


def test_an_acknowledgement_waits_behind_the_attach_of_its_own_connection_only() -> None:
    wait = PageWait()
    wait.add(A, EDGE, attach(1))
    wait.behind(EDGE, Ack(1, 5))
    wait.behind(EDGE, Written(1, 6))
    wait.behind(EDGE, Ack(2, 5))
    wait.behind(OTHER_EDGE, Ack(1, 5))
    assert wait.take(A) == [(EDGE, attach(1)), (EDGE, Ack(1, 5)), (EDGE, Written(1, 6))]
    wait.behind(EDGE, Ack(1, 7))
    assert wait.take(A) == [], "its attach waits no more"


def test_acknowledgements_behind_an_attach_are_dropped_beyond_their_limit_and_posts_are_not() -> None:
    wait = PageWait()
    wait.add(A, EDGE, attach(1))
    for seq in range(BEHIND_MAX + 10):
        wait.behind(EDGE, Ack(1, seq))
    last = post()
    wait.add(A, EDGE, last)
    waited = wait.take(A)
    assert len(waited) == BEHIND_MAX + 1
    assert waited[-2:] == [(EDGE, Ack(1, BEHIND_MAX - 2)), (EDGE, last)]


def test_a_connection_that_ended_leaves_nothing_behind_and_the_others_keep_theirs() -> None:
    wait = PageWait()
    published = post()
    wait.add(A, EDGE, attach(1))
    wait.add(A, EDGE, published)
    wait.add(A, OTHER_EDGE, attach(1))
    wait.add(A, EDGE, attach(2))
    wait.behind(EDGE, Nack(1, ["m"], "no"))
    wait.behind(EDGE, Ack(2, 1))
    wait.forget(EDGE, 1)
    wait.forget(EDGE, 9)
    wait.behind(EDGE, Ack(1, 3))
    assert wait.take(A) == [(EDGE, published), (OTHER_EDGE, attach(1)), (EDGE, attach(2)), (EDGE, Ack(2, 1))]


def test_posts_are_taken_without_what_waits_beside_them() -> None:
    wait = PageWait()
    mine, other, third = post(), post(B), post("t:eve")
    wait.add(A, EDGE, attach(1))
    wait.add(A, EDGE, mine)
    wait.add(B, EDGE, other)
    wait.add("t:eve", EDGE, third)
    assert wait.take_posts([A, B]) == [mine, other]
    assert wait.take_posts() == [third]
    assert wait.take(A) == [(EDGE, attach(1))]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["post", "attach", "ack", "take", "take posts", "all posts", "forget"]),
            st.sampled_from([A, B]),
            st.integers(0, 50),
        ),
        max_size=40,
    )
)
def test_the_posts_that_wait_are_counted_with_their_bytes(acts: list[tuple[str, str, int]]) -> None:
    wait = PageWait()
    waiting: dict[str, list[int]] = {A: [], B: []}
    for act, key, size in acts:
        if act == "post":
            wait.add(key, EDGE, post(key, size))
            waiting[key].append(size)
        elif act == "attach":
            wait.add(key, EDGE, attach(size, key))
        elif act == "ack":
            wait.behind(EDGE, Ack(size, 1))
        elif act == "forget":
            wait.forget(EDGE, size)
        else:
            if act == "take":
                wait.take(key)
            else:
                wait.take_posts([key] if act == "take posts" else None)
            for emptied in (A, B) if act == "all posts" else (key,):
                waiting[emptied].clear()
        left = [*waiting[A], *waiting[B]]
        assert (wait.count, wait.bytes) == (len(left), sum(left) + MESSAGE_BYTES * len(left))
