"""What the digest reads of a message, whatever its publisher wrote."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from engine.features.digest.core.missed import TEXT_CHARS_MAX, read_missed

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "kind", "title", "name", "x"]), inner, max_size=3),
    max_leaves=8,
)


def body(**members: object) -> bytes:
    return msgspec.json.encode({"id": "m1", "type": "Post.Liked", "priority": "high", "ts": 5, **members})[1:-1]


@given(actor=json_values, target=json_values, context=json_values, data=json_values)
def test_any_message_that_a_publisher_may_write_is_read(actor: object, target: object, context: object, data: object) -> None:
    missed = read_missed(body(actor=actor, target=target, context=context, data=data), seq=3)
    assert (missed.id, missed.type, missed.at_ms, missed.seq, missed.high) == ("m1", "post.liked", 5, 3, True)
    assert len(missed.text) <= TEXT_CHARS_MAX


def test_a_target_has_the_name_that_tells_it_from_others_and_the_title_that_people_use() -> None:
    missed = read_missed(body(target={"kind": "post", "id": 7, "title": "Roses"}, actor={"login": "ana"}))
    assert (missed.target, missed.name, missed.title, missed.kind) == ("post:7", "7", "Roses", "post")
    assert missed.actors == ("ana",)
    assert read_missed(body(target="thread:9")).target == "thread:9"


def test_a_summary_stands_for_what_it_counts() -> None:
    missed = read_missed(body(count=12, actors=["ana", "bob", "ana"], replaces="m0"))
    assert (missed.count, missed.actors, missed.replaces) == (12, ("ana", "bob"), "m0")


def test_data_may_be_the_text_itself() -> None:
    assert read_missed(body(data="The lift\nis broken")).text == "The lift is broken", "a line has no line breaks"
    assert read_missed(body(text="2 lifts\nare broken")).text == "2 lifts are broken"
    assert read_missed(body(data={"body": "b", "title": "t"})).text == "t"
