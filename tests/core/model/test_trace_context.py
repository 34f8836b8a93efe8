"""Trace contexts: what is read of W3C Trace Context, and how a message carries one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.model.trace_context import TRACE_BYTES, TraceContext, parse_traceparent, sampled_trace_id, trace_in, traced_body

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BODY = b'"id":"m","ts":1,"type":"t","priority":"normal","data":{"traceparent":"x"}'


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
    ],
)
def test_a_valid_traceparent_is_read_also_of_a_later_version(text: str, sampled: bool) -> None:
    assert parse_traceparent(text) == TraceContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "text",
    [
        "", "00", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-01-more", f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}-1", f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01.x",
    ],
)  # fmt: skip
def test_what_is_no_traceparent_is_none(text: str) -> None:
    assert parse_traceparent(text) is None


@given(st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1), st.booleans())
def test_a_body_carries_a_context_and_all_that_it_had(trace: int, span: int, sampled: bool) -> None:
    context = TraceContext(f"{trace:032x}", f"{span:016x}", sampled)
    body = traced_body(context, BODY)
    assert trace_in(body) == trace_in(b"{%b}" % body) == parse_traceparent(str(context)) == context
    assert msgspec.json.decode(b"{%b}" % body) == {"traceparent": str(context), **msgspec.json.decode(b"{%b}" % BODY)}


@pytest.mark.parametrize(
    "body", [b"", b"{", BODY, b"{%b}" % BODY, b'"traceparent":"', b'"traceparent":"00-zz"', b'"traceparent":1,"id":"m"']
)
def test_a_body_without_a_context_has_none(body: bytes) -> None:
    assert trace_in(body) is None


@pytest.mark.parametrize(("sampled", "named"), [(True, "a" * 32), (False, "")])
def test_the_beginning_of_a_body_names_the_trace_in_which_it_is_recorded(sampled: bool, named: str) -> None:
    body = traced_body(TraceContext("a" * 32, "b" * 16, sampled), b'"id":"x"')
    assert sampled_trace_id(body[:TRACE_BYTES]) == named
    assert sampled_trace_id(b'"id":"x"'[:TRACE_BYTES]) == ""
