"""The checksum among the fields of an entry that others read."""

from __future__ import annotations

import pytest

from engine.store.sealed_fields import is_whole, with_checksum

FIELDS = {"user": "ann", "seq": 7, "body": b'{"type":"x"}'}


def stored(fields: dict[str, object]) -> dict[bytes, bytes]:
    return {
        name.encode(): value if isinstance(value, bytes) else str(value).encode() for name, value in with_checksum("dead:t", fields).items()
    }


def test_fields_are_whole_as_redis_returns_them_in_any_order() -> None:
    entry = stored(FIELDS)
    assert is_whole(b"dead:t", entry)
    assert is_whole(b"dead:t", dict(reversed(entry.items())))


@pytest.mark.parametrize("name", [b"user", b"seq", b"body", b"crc32c"])
def test_every_bit_of_every_field_counts(name: bytes) -> None:
    entry = stored(FIELDS)
    for bit in range(8 * len(entry[name])):
        value = bytearray(entry[name])
        value[bit // 8] ^= 1 << bit % 8
        assert not is_whole(b"dead:t", {**entry, name: bytes(value)})


def test_a_field_too_many_too_few_or_under_another_name_counts() -> None:
    entry = stored(FIELDS)
    assert not is_whole(b"dead:t", {**entry, b"more": b""})
    assert not is_whole(b"dead:t", {name: value for name, value in entry.items() if name != b"seq"})
    assert not is_whole(b"dead:t", {name: value for name, value in entry.items() if name != b"crc32c"})
    assert not is_whole(b"dead:t", {b"usex" if name == b"user" else name: value for name, value in entry.items()})


def test_an_entry_is_not_whole_in_another_stream() -> None:
    assert not is_whole(b"dead:u", stored(FIELDS))
