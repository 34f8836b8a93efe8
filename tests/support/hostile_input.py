"""What a hostile or broken client sends: texts that are almost JSON, values of every wrong kind, bytes of any kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

DEPTHS = (1, 199, 200, 201, 1000, 5000)
"""Around `json_depth_max`, around the recursion limits of Python and of C decoders."""

ODD_TOKENS: tuple[bytes, ...] = (
    b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e400", b"1e-400", b"-0", b"-0.0", b"01", b"1.", b".5", b"+1", b"0x10",
    b"1" + b"0" * 400, b"-1" + b"0" * 30, b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"9007199254740993",
    b"1.7976931348623157e308", b"5e-324", b"0.1e1", b"true", b"false", b"null", b"nul", b"True", b"None",
    b'""', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\ud83d\\ude00"', b'"\\u0000"', b'"\\u2028"', b'"\\x41"', b'"\xff"', b'"\xed\xa0\x80"',
    b'"a\nb"', b'"a\tb"', b'"', b"'a'", b"{", b"}", b"[", b"]", b"[,]", b"[1,]", b"{,}", b'{"a"}', b'{"a":}', b'{"a":1,}', b"{1:2}", b"",
    b"\xef\xbb\xbf1", b"/* c */ 1", b"[]", b"{}", b'{"":{}}', b'{"a":1,"a":2}', b"[[[]]]", b"[1]trailing",
)  # fmt: skip


def nested(depth: int, array: bool) -> bytes:
    """Valid JSON, this deep."""
    return b"[" * depth + b"]" * depth if array else b'{"a":' * depth + b"1" + b"}" * depth


texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "u1", "a:b", "a.b", ".", "a..b", "é", "\u2028", "\x00", "x" * 128, "x" * 129, "x" * 5000, "high", "-1", "1"]),
)
numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.5, 1e-9, -1e-9, 1e15, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 1e308, 253_402_300_799_999]),
    st.floats(allow_nan=False, allow_infinity=False),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)


def encoded(value: Any) -> bytes:
    """JSON text of a value; characters without a UTF-8 form as escapes."""
    return json.dumps(value).encode()


json_tokens = st.one_of(
    values.map(encoded),
    st.sampled_from(ODD_TOKENS),
    st.builds(nested, st.sampled_from(DEPTHS), st.booleans()),
)
"""One JSON value, or what is nearly one."""


@st.composite
def objects(draw: st.DrawFn, fields: dict[str, st.SearchStrategy[bytes]], required: Sequence[str] = ()) -> bytes:
    """The text of an object with some of these members, each sometimes of a wrong kind, twice, or under another name."""
    chosen = draw(st.lists(st.sampled_from([*fields, *fields, "unknown", "", "\ud800", "Type", "__class__"]), max_size=6))
    members = []
    for name in [*required, *chosen]:
        value = draw(fields[name]) if name in fields and draw(st.integers(0, 5)) else draw(json_tokens)
        members.append(encoded(name) + b":" + value)
    separator = draw(st.sampled_from([b",", b", ", b",\n", b"\r\n,\t"]))
    return b"{" + separator.join(members) + b"}"


def mutated(base: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Texts of `base`, some with a few bytes cut out, put in or changed."""

    @st.composite
    def mutate(draw: st.DrawFn) -> bytes:
        text = draw(base)
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            start = draw(st.integers(0, len(text)))
            stop = min(start + draw(st.integers(0, 4)), len(text))
            text = text[:start] + draw(st.binary(max_size=4)) + text[stop:]
        return text

    return mutate()


def strict_json(text: bytes | str) -> Any:
    """The value of a text that any JSON reader takes: no NaN, no infinity, valid UTF-8.

    Raises:
        ValueError: it is none.
    """

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text.decode() if isinstance(text, bytes) else text, parse_constant=refuse)


integers = st.one_of(st.integers(-2, 5), st.sampled_from([2**31, 2**48, 2**53, 2**62, 2**63 - 1, 2**64 - 1, -(2**63)]))
scalars = st.one_of(st.none(), st.booleans(), integers, st.floats(), texts, st.binary(max_size=12))
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3), max_leaves=6)
