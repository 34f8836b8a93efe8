"""Which topics a token allows, and for which users it speaks."""

from __future__ import annotations

import pytest

from engine.auth.tokens import Principal
from engine.auth.topic_permissions import check_topics, mailbox_of, memberships, permits
from engine.errors import Invalid
from engine.http.problems import Problem


def bearer(*topics: str, scopes: str = "connect", unlimited: bool = False) -> Principal:
    return Principal("acme", "ann", frozenset(scopes.split()), 1, topics=None if unlimited else frozenset(topics))


def test_a_token_without_topics_allows_all_and_one_with_an_empty_list_allows_none() -> None:
    assert permits(bearer(unlimited=True), "news")
    assert not permits(bearer(), "news")


@pytest.mark.parametrize(("topic", "allowed"), [("news", True), ("news/de", False), ("team/", True), ("team/7", True), ("tea", False)])
def test_a_star_at_the_end_allows_every_topic_that_begins_so(topic: str, allowed: bool) -> None:
    assert permits(bearer("news", "team/*"), topic) is allowed


def test_memberships_are_the_topics_without_a_star_in_order() -> None:
    assert memberships(bearer("b", "a", "c/*")) == ("a", "b")
    assert memberships(bearer(unlimited=True)) == ()


@pytest.mark.parametrize("topics", [[], ["a"] * 3, ["a", "b c"], ["a*"], ["abcdef"], [""]])
def test_topics_that_are_too_many_or_no_names_are_refused(topics: list[str]) -> None:
    with pytest.raises(Invalid):
        check_topics(topics, chars_max=5, count_max=2)


def test_the_topic_that_is_no_name_is_pointed_at() -> None:
    check_topics(["a", "abcde"], chars_max=5, count_max=2)
    with pytest.raises(Invalid) as refused:
        check_topics(["a", "b c"], chars_max=5, count_max=2)
    assert refused.value.path == "$.topics[1]"


def test_a_request_that_names_nobody_concerns_the_bearer() -> None:
    assert mailbox_of(bearer(), None) == ("acme:ann", False)


@pytest.mark.parametrize("scope", ["publish", "admin"])
def test_another_user_of_the_same_tenant_may_be_named_with_a_scope_for_it(scope: str) -> None:
    assert mailbox_of(bearer(scopes=scope), "bob") == ("acme:bob", True)


def test_another_user_may_not_be_named_without_one() -> None:
    with pytest.raises(Problem) as refused:
        mailbox_of(bearer(), "bob")
    assert refused.value.status == 403
