"""`engine revoke` as an admin types it, against a server inside the test."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.command_line import answering, claims, engine, failure

pytestmark = pytest.mark.usefixtures("data_dir")

ANSWER = b'{"revoked":"user","before":1,"until":1900000000000}'


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["alice"], {"user": "alice"}),
        (["alice", "--before", "2026-01-31T12:00:00Z"], {"user": "alice", "before": "2026-01-31T12:00:00Z"}),
        (["--jti", "j1"], {"jti": "j1"}),
        (["--bearer", "a.b.c"], {"token": "a.b.c"}),
        (["--bearer", "-"], {"token": "x.y.\N{REPLACEMENT CHARACTER}"}),
    ],
)
def test_revoking_asks_for_what_was_typed_with_a_token_of_an_admin(words: list[str], asked: dict[str, str]) -> None:
    with answering(ANSWER) as (url, requests):
        result = engine("revoke", *words, "--url", url, stdin=b"x.y.\xff\n")
    assert result.exit_code == 0, repr(result.exception)
    assert re.fullmatch(r"revoked user issued_before=1970-01-01T\S+ expired_by=2030-03-17T\S+\n", result.stdout)
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/tokens/revoke HTTP/1.1\r\n")
    assert json.loads(body) == asked
    (token,) = re.findall(rb"Authorization: Bearer (\S+)", head)
    assert claims(token.decode())["scope"] == "admin"


def test_revoking_one_token_names_no_time_of_issue() -> None:
    with answering(b'{"revoked":"token","until":1900000000000}') as (url, _):
        assert engine("revoke", "--jti", "j1", "--url", url).stdout.startswith("revoked token expired_by=2030-03-17T")


@pytest.mark.parametrize("words", [[], ["alice", "--jti", "x"], ["--jti", "x", "--bearer", "y"]])
def test_one_thing_is_revoked_at_a_time(words: list[str]) -> None:
    assert "exactly one of USER, --jti and --bearer" in failure(engine("revoke", *words))
    assert "--before: only with USER" in failure(engine("revoke", "--jti", "x", "--before", "2026-01-31T12:00:00Z"))


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (b"422 Unprocessable Content", b'{"detail": "$.before: at most 300 seconds ahead"}', "$.before: at most 300 seconds ahead"),
        (b"403 Forbidden", b'{"detail": "the scope `admin` is needed"}', "the scope `admin` is needed"),
        (b"401 Unauthorized", b'{"detail": "the token\'s signature is not good"}', "does not accept a token signed with jwt_secret"),
        (b"503 Service Unavailable", b"{}", "does not answer: 503 Service Unavailable; it may be revoked: repeat it"),
    ],
)
def test_what_cannot_be_revoked_is_told(status: bytes, body: bytes, told: str) -> None:
    with answering(body, status) as (url, _):
        assert told in failure(engine("revoke", "alice", "--url", url))
