"""The first result under an id, as storage keeps it for the repeats: the digest of the payload and what became of it.

Two layouts: packed, in the buckets of `engine.store.accepted_ids`, and as text, in a key for each id: ids of broadcasts and of
actions.
"""

from __future__ import annotations

from typing import Final

import msgspec

NEVER: Final = -1
"""In place of a sequence number: the message was suppressed, and so is every repeat of it."""

DIGEST_BYTES: Final = 8
"""Of the digest of a payload."""

FirstResult = tuple[bytes, int, str]
"""Digest; sequence number, 0 for a delayed or merged message, or `NEVER`; scheduled id, or with `NEVER` the reason, or empty."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(int | tuple[int, str])


def packed_result(digest: bytes, seq: int, detail: str) -> bytes:
    """Digest, then the number in MessagePack, or number and detail: mostly 9 to 11 bytes."""
    return digest + _encode((seq, detail) if detail else seq)


def unpacked_result(value: bytes) -> FirstResult:
    """The inverse of `packed_result`. Raises ValueError when malformed."""
    try:
        rest = _decoder.decode(value[DIGEST_BYTES:])
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    return (value[:DIGEST_BYTES], rest, "") if isinstance(rest, int) else (value[:DIGEST_BYTES], *rest)


def idempotency_value(digest: bytes, seq: int, detail: str) -> bytes:
    """The same as text: `<digest in hex>|<seq>|<detail>`."""
    return f"{digest.hex()}|{seq}|{detail}".encode()


def parse_idempotency_value(value: bytes) -> FirstResult:
    """The inverse of `idempotency_value`. Raises ValueError when malformed."""
    digest, seq, detail = value.split(b"|", 2)
    return bytes.fromhex(digest.decode()), int(seq), detail.decode()
