"""Trace context (W3C Trace Context, https://www.w3.org/TR/trace-context/): where a message belongs in a publisher's trace.

It travels in the body of the message, as its first member, `"traceparent":"00-<trace id>-<span id>-<flags>",`. So journal, links, timers,
hand-overs and every stored format carry it as they carry any other member that clients read, a message without one has no byte more, and
to see whether a body has one is one comparison.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16

_MEMBER: Final = b'"traceparent":"'
_VALUE_END: Final = len(_MEMBER) + 55

TRACE_BYTES: Final = _VALUE_END
"""The beginning of a body that tells everything about its context."""


class TraceContext(Struct, frozen=True, gc=False):
    """A span, as what follows from it refers to it.

    Args:
        trace_id: 32 hexadecimal digits, not all 0.
        span_id: 16 hexadecimal digits, not all 0.
        sampled: whether the spans of this trace are recorded.
    """

    trace_id: str
    span_id: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-0{int(self.sampled)}"


def parse_traceparent(text: str) -> TraceContext | None:
    """The context that a `traceparent` names; None when it is not valid. Of a later version than 00 what this one defines is read."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1))


def traced_body(context: TraceContext, body: bytes) -> bytes:
    """The body of a message with this context. It must have none yet."""
    return b'%b%b",%b' % (_MEMBER, str(context).encode(), body)


def trace_in(body: bytes) -> TraceContext | None:
    """The context of a message; None for none. `body` may begin with the brace of an object."""
    begin = body.startswith(b"{")
    if not body.startswith(_MEMBER, begin):
        return None
    return parse_traceparent(bytes(body[begin + len(_MEMBER) : begin + _VALUE_END]).decode("latin-1"))


def sampled_trace_id(body: bytes) -> str:
    """The id of the trace in which a message is recorded, "" for none: what an exemplar of a metric refers to."""
    context = trace_in(body)
    return context.trace_id if context is not None and context.sampled else ""
