"""What storage keeps with an id, in both layouts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.commit import first_result

DIGESTS = st.binary(min_size=first_result.DIGEST_BYTES, max_size=first_result.DIGEST_BYTES)
SEQS = st.integers(first_result.NEVER, 1 << 53)


@given(DIGESTS, SEQS, st.text(max_size=20))
def test_what_is_stored_with_an_id_is_read_as_it_was_written(digest: bytes, seq: int, detail: str) -> None:
    assert first_result.unpacked_result(first_result.packed_result(digest, seq, detail)) == (digest, seq, detail)
    assert first_result.parse_idempotency_value(first_result.idempotency_value(digest, seq, detail)) == (digest, seq, detail)


@pytest.mark.parametrize(("seq", "size"), [(0, 9), (127, 9), (65_535, 11), (1 << 31, 13), (first_result.NEVER, 9)])
def test_a_number_takes_as_many_bytes_as_it_needs(seq: int, size: int) -> None:
    assert len(first_result.packed_result(bytes(first_result.DIGEST_BYTES), seq, "")) == size


@pytest.mark.parametrize("value", [b"", b"digest..", b"digest..\xc1", b"digest..\x05\x05", b"digest..\xa1a", b"digest..\x91\x05"])
def test_what_cannot_be_read_is_a_value_error(value: bytes) -> None:
    with pytest.raises(ValueError):
        first_result.unpacked_result(value)
