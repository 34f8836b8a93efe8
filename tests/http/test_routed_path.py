"""An encoded slash is data: the path is decoded segment by segment."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.http.routed_path import ENCODED_SLASH, routed_path
from tests.support.edge_world import edge_world

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1)


@given(st.lists(TEXTS, min_size=1))
def test_any_segments_come_back_as_they_were(segments: list[str]) -> None:
    target = "/" + "/".join(quote(segment, safe="") for segment in segments)
    assert [segment.replace(ENCODED_SLASH, "/") for segment in routed_path(target).split("/")[1:]] == segments


@pytest.mark.parametrize(
    ("target", "path"), [("/v1/%73se", "/v1/sse"), ("/v1/poll", "/v1/poll"), ("/a%20b", "/a b"), ("/%e4%bd%a0", "/\u4f60")]
)
def test_other_characters_mean_the_same_encoded(target: str, path: str) -> None:
    assert routed_path(target) == path


async def test_no_user_is_mistaken_for_a_part_of_another_users_path() -> None:
    async with edge_world() as world, world.http(scopes="publish admin") as client:
        for user in ("org/bob", "org/bob/profile", "a/messages/b", "100%", "a%2Fb"):
            segment = quote(user, safe="")
            assert (await client.put(f"/v1/users/{segment}/profile", json={"locale": "de"})).json()["locale"] == "de"
            assert (await client.get(f"/v1/users/{segment}")).json()["user"] == user
        assert (await client.delete(f"/v1/users/{quote('org/bob/profile', safe='')}")).status_code == 204
        assert (await client.get(f"/v1/users/{quote('org/bob', safe='')}/profile")).json()["locale"] == "de"
        assert (await client.delete("/v1/users/org/bob")).status_code == 404
        assert (await client.put("/v1/subscriptions/repo:a/b", params={"user": "ann"})).json()["topics"] == ["repo:a/b"]
