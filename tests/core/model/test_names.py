"""What counts as a name, and UUIDs of version 7 to the bit."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.model.names import RANDOM_BITS, is_event_type, is_id, is_tenant, is_user, uuid7

CHARS_MAX = 128


def test_the_example_of_rfc_9562_comes_out_to_the_bit() -> None:
    # Appendix A.6: 2022-02-22T19:22:22Z, rand_a 0xCC3, rand_b 0b01_1000 (6 bits) 0xC4DC0C0C07398F
    random_bits = 0xCC3 << 62 | 0x18C4DC0C0C07398F
    assert uuid7(0x017F22E279B0, random_bits) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@given(now_ms=st.integers(0, (1 << 48) - 1), random_bits=st.integers(0, (1 << RANDOM_BITS) - 1))
def test_a_uuid7_is_a_valid_uuid_that_holds_its_time_and_its_random_bits(now_ms: int, random_bits: int) -> None:
    text = uuid7(now_ms, random_bits)
    parsed = uuid.UUID(text)
    assert str(parsed) == text
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert parsed.int >> 80 == now_ms
    assert (parsed.int >> 64 & 0xFFF) << 62 | parsed.int & (1 << 62) - 1 == random_bits


@given(st.lists(st.tuples(st.integers(0, (1 << 48) - 1), st.integers(0, (1 << RANDOM_BITS) - 1)), min_size=2, max_size=2))
def test_uuid7_sorts_as_text_like_its_time_and_random_bits(pairs: list[tuple[int, int]]) -> None:
    assert [uuid7(*pair) for pair in sorted(pairs)] == sorted(uuid7(*pair) for pair in pairs)


@pytest.mark.parametrize("text", ["a", "default", "A.b_c-9", "x" * 64])
def test_a_tenant_is_letters_digits_and_a_few_signs(text: str) -> None:
    assert is_tenant(text)


@pytest.mark.parametrize("text", ["", "a:b", "a b", "ä", "x" * 65, "a\n", "{a}", "a/b", "\ud800"])
def test_a_tenant_is_nothing_that_could_end_a_key(text: str) -> None:
    assert not is_tenant(text)


@pytest.mark.parametrize("text", ["u1", "ann@example.com", "a:b", "Zoë", "家", "👩‍💻", " ", "x" * CHARS_MAX])
def test_a_user_is_any_text_without_control_characters(text: str) -> None:
    assert is_user(text, CHARS_MAX)


@pytest.mark.parametrize("text", ["", "x" * (CHARS_MAX + 1), "a\nb", "a\r", "\x00", "\x7f", "\x85", "\u2028", "\ud800", "a\udc00"])
def test_a_user_holds_nothing_that_ends_a_line_or_has_no_utf_8_form(text: str) -> None:
    assert not is_user(text, CHARS_MAX)


@given(st.text(max_size=CHARS_MAX + 2))
def test_every_user_and_id_has_a_utf_8_form_and_one_line(text: str) -> None:
    if is_user(text, CHARS_MAX) or is_id(text, CHARS_MAX):
        text.encode()
        assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    ["post.liked", "a", "A-1_b.c.d", "https://example.com/types/order", "urn:a:b.c", "Microsoft.Storage/BlobCreated", "x" * CHARS_MAX],
)
def test_an_event_type_is_words_joined_by_dots(text: str) -> None:
    assert is_event_type(text, CHARS_MAX)


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a b", "a\n", "é", 'a"b', "x" * (CHARS_MAX + 1), "\ud800"])
def test_an_event_type_is_nothing_else(text: str) -> None:
    assert not is_event_type(text, CHARS_MAX)


@pytest.mark.parametrize("text", ["", "a\tb", "\u200b", "x" * (CHARS_MAX + 1), "\ud800"])
def test_an_id_is_printable(text: str) -> None:
    assert not is_id(text, CHARS_MAX)
    assert is_id("Order #7, retry", CHARS_MAX)
