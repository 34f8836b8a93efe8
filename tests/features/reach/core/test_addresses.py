"""Which texts are addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Invalid
from engine.features.reach.core.addresses import Addresses, check_addresses, decoder, encode_addresses


@given(st.emails())
def test_an_address_is_taken_and_read_back(email: str) -> None:
    given_ = Addresses(email)
    try:
        check_addresses(given_)
    except Invalid:
        assert email.rpartition("@")[0].isascii()  # the strategy makes local parts and domains that browsers refuse
    assert decoder.decode(encode_addresses(given_)) == given_


@pytest.mark.parametrize(
    "email", ["ann", "@example.org", "ann@", "ann@example.org\nBcc: x@y.z", "a b@example.org", "Ann <ann@example.org>", "a@" + "b" * 260]
)
def test_anything_else_is_refused_by_its_member(email: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_addresses(Addresses(email))
    assert refused.value.path == "$.email"


def test_addresses_do_not_show_themselves() -> None:
    assert "ann" not in repr(Addresses("ann@example.org"))
