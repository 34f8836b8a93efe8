"""The handshake of links between nodes: who holds the key passes, and nobody else, whatever is sent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.wire.link_handshake import MAGIC, CalleeHandshake, CallerHandshake, HandshakeFailed, identity

KEY, OTHER_KEY = b"k" * 32, b"x" * 32
EDGE, SHARD, OTHER_SHARD = identity("engine", "edge-0"), identity("engine", "shard-0"), identity("engine", "shard-1")


def ends(caller_key: bytes = KEY, wanted: bytes = SHARD) -> tuple[CallerHandshake, CalleeHandshake]:
    return CallerHandshake(caller_key, EDGE, wanted, b"c" * 32), CalleeHandshake(KEY, SHARD, b"s" * 32)


def test_two_ends_with_the_key_prove_themselves_to_each_other() -> None:
    caller, callee = ends()
    claim = caller.receive_data(callee.greeting())
    assert not callee.proven
    answer = callee.receive_data(claim)
    assert callee.proven
    assert callee.caller == EDGE
    assert not caller.proven
    assert caller.receive_data(answer) == b""
    assert caller.proven


def test_the_bytes_are_those_of_version_1() -> None:
    """Actors of two versions of the engine meet during an upgrade."""
    caller, callee = ends()
    claim = caller.receive_data(callee.greeting())
    assert callee.greeting() == b"englink\x01" + b"s" * 32
    assert claim == b"c" * 32 + EDGE + bytes.fromhex("6f6159f4d2297327f0403ad12e346c0d4ca2963f67a16ab2b28a39e14a8b2680")
    assert callee.receive_data(claim) == bytes.fromhex("2310e242af10487673cc41ce70fe7aae5d7fc76460a7c6842466565b43061cb8")


@given(st.data())
def test_it_does_not_matter_how_the_stream_is_cut(data: st.DataObject) -> None:
    def cut(message: bytes) -> Sequence[bytes]:
        cuts = sorted(data.draw(st.sets(st.integers(1, len(message) - 1), max_size=5)))
        return [message[a:b] for a, b in zip([0, *cuts], [*cuts, len(message)], strict=True)]

    caller, callee = ends()
    claim = b"".join(caller.receive_data(part) for part in cut(callee.greeting()))
    answer = b"".join(callee.receive_data(part) for part in cut(claim))
    assert b"".join(caller.receive_data(part) for part in cut(answer)) == b""
    assert caller.proven
    assert callee.proven


@pytest.mark.parametrize("differs", [{"caller_key": OTHER_KEY}, {"wanted": OTHER_SHARD}], ids=["another key", "another actor"])
def test_a_callee_rejects_who_has_another_key_or_wants_another_actor(differs: dict[str, bytes]) -> None:
    caller, callee = ends(**differs)
    with pytest.raises(HandshakeFailed, match="another key, or takes"):
        callee.receive_data(caller.receive_data(callee.greeting()))
    assert not callee.proven


def test_a_caller_rejects_who_cannot_prove_the_key() -> None:
    caller, _ = ends()
    stranger = CalleeHandshake(OTHER_KEY, SHARD, b"s" * 32)
    assert caller.receive_data(stranger.greeting())
    with pytest.raises(HandshakeFailed, match="another key"):
        caller.receive_data(b"\x00" * 32)
    assert not caller.proven


def test_a_caller_rejects_its_own_proof_sent_back() -> None:
    caller, callee = ends()
    claim = caller.receive_data(callee.greeting())
    with pytest.raises(HandshakeFailed):
        caller.receive_data(claim[-32:])


def test_a_callee_rejects_its_own_answer_and_its_own_nonce_sent_back() -> None:
    """A stranger has another connection to it answer its challenge, where nonce and identity are as wanted."""
    caller, callee = ends()
    answer = callee.receive_data(caller.receive_data(callee.greeting()))
    victim = CalleeHandshake(KEY, SHARD, b"s" * 32)
    with pytest.raises(HandshakeFailed):
        victim.receive_data(b"c" * 32 + EDGE + answer)


def test_a_recorded_claim_is_worth_nothing_to_another_connection() -> None:
    caller, callee = ends()
    claim = caller.receive_data(callee.greeting())
    later = CalleeHandshake(KEY, SHARD, b"t" * 32)
    with pytest.raises(HandshakeFailed):
        later.receive_data(claim)


def test_something_else_that_listens_is_noticed_before_anything_is_proven_to_it() -> None:
    caller, _ = ends()
    with pytest.raises(HandshakeFailed, match="another protocol"):
        caller.receive_data(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[:40])


def test_frames_before_the_answer_are_rejected() -> None:
    caller, callee = ends()
    claim = caller.receive_data(callee.greeting())
    with pytest.raises(HandshakeFailed, match="more bytes"):
        callee.receive_data(claim + b"f")
    assert not callee.proven


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_garbage_proves_nothing_and_is_not_kept(chunks: list[bytes]) -> None:
    for end in ends():
        try:
            for chunk in chunks:
                end.receive_data(chunk)
                assert len(end._received) <= 128
        except HandshakeFailed:
            pass
        assert not end.proven


@given(st.integers(0, 95), st.integers(1, 255))
def test_one_changed_byte_of_a_claim_is_enough_to_be_rejected(place: int, change: int) -> None:
    caller, callee = ends()
    claim = bytearray(caller.receive_data(callee.greeting()))
    claim[place] ^= change
    with pytest.raises(HandshakeFailed):
        callee.receive_data(bytes(claim))


@given(st.integers(0, 39), st.integers(1, 255))
def test_one_changed_byte_of_a_greeting_is_enough_to_be_rejected(place: int, change: int) -> None:
    caller, callee = ends()
    greeting = bytearray(callee.greeting())
    greeting[place] ^= change
    with pytest.raises(HandshakeFailed):
        callee.receive_data(caller.receive_data(bytes(greeting)))


def test_the_namespace_is_part_of_who_one_is() -> None:
    assert identity("a", "shard-0") != identity("b", "shard-0")
    assert len(MAGIC) == 8
