"""The lines that people read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.features.digest.core.clusters import OTHER, Cluster, clusters_of, sort_out
from engine.features.digest.core.missed import Missed
from engine.features.digest.core.wording import LINE_CHARS_MAX, line_of


def only(*messages: Missed, groups: list[list[int]] | None = None) -> Cluster:
    (cluster,) = clusters_of(sort_out(messages, None, (), 1), groups)
    return cluster


def likes(*people: str) -> list[Missed]:
    return [
        Missed(id=f"m{n}", type="post.liked", at_ms=n, target="post:1", name="1", kind="post", title="Roses", actors=(name,))
        for n, name in enumerate(people)
    ]


def failures(count: int) -> list[Missed]:
    return [Missed(id=f"m{n}", type="build.failed", at_ms=n, target="x", scope="main", place="shop") for n in range(count)]


@pytest.mark.parametrize(
    ("messages", "english", "chinese"),
    [
        (likes("ana"), "ana liked “Roses”", "ana赞了“Roses”"),
        (likes("ana", "bob", "ana"), "2 people liked “Roses”", "2 人赞了“Roses”"),
        (failures(3), "builds failed 3 times on main of shop", "shop main的构建失败 3 次"),
        ([Missed(id="m", type="user.followed", at_ms=0, count=7, actors=("ana", "bob"))], "7 people followed you", "7 人关注了你"),
        ([Missed(id="m", type="notice", at_ms=0, text="The lift is broken")], "The lift is broken", "The lift is broken"),
    ],
)
def test_a_cluster_has_a_line_in_each_language(messages: list[Missed], english: str, chinese: str) -> None:
    assert line_of(only(*messages), "en") == english
    assert line_of(only(*messages), "zh") == chinese


def test_a_group_of_texts_is_told_by_the_one_that_has_most_in_common() -> None:
    texts = ("Please come", "The storm comes tomorrow", "A storm tomorrow")
    messages = [Missed(id=text, type="notice", at_ms=0, text=text) for text in texts]
    assert line_of(only(*messages, groups=[[0, 0, 0]]), "en") == "A storm tomorrow (+2)"


def test_the_rest_is_counted() -> None:
    assert line_of(Cluster(OTHER, likes("ana", "bob")), "en") == "2 other messages"
    assert line_of(Cluster(OTHER, likes("ana", "bob")), "zh") == "另有 2 条消息"


@given(st.text(max_size=400), st.text(max_size=400), st.sampled_from(["post.liked", "order.paid", "job.failed", "notice"]))
def test_a_line_is_short_and_never_empty(title: str, name: str, type: str) -> None:
    cluster = only(Missed(id="m", type=type, at_ms=0, target=f"t:{name}", name=name, title=title, text=title.strip()))
    for language in ("en", "zh"):
        assert 0 < len(line_of(cluster, language)) <= LINE_CHARS_MAX
