"""What a hostile or broken client sends over a WebSocket: messages that are almost right, and frames of every kind."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from tests.support.edge_world import client_frame
from tests.support.hostile_input import encoded, json_tokens, mutated, objects, texts, values

seqs = st.sampled_from([b"0", b"1", b"-1", b"1.0", b"1e3", b"999999999999999999", b"9223372036854775807", b"9223372036854775808", b'"1"'])
ids = st.one_of(st.lists(texts, max_size=4).map(encoded), values.map(encoded))
client_messages = st.one_of(
    objects({"type": st.just(b'"ack"'), "seq": seqs, "ids": ids, "ts": json_tokens}, ["type"]),
    objects({"type": st.just(b'"nack"'), "ids": ids, "reason": texts.map(encoded)}, ["type", "ids"]),
    objects({"type": st.just(b'"ping"'), "ts": json_tokens}, ["type"]),
    objects({"type": st.just(b'"auth"'), "token": texts.map(encoded)}, ["type", "token"]),
    objects({"type": json_tokens}, ["type"]),
    seqs.map(lambda seq: b'{"type":"ack","seq":%b}' % seq),
    json_tokens,
    st.binary(max_size=30),
)
masks = st.binary(min_size=4, max_size=4)
opcodes = st.sampled_from([0, 1, 1, 1, 2, 3, 7, 8, 9, 10, 11, 15])
codes = st.integers(0, 65535).map(lambda code: struct.pack("!H", code))


def frames_for(bytes_max: int) -> st.SearchStrategy[bytes]:
    """One frame, valid or not, for a server that takes messages of up to `bytes_max` bytes."""
    sizes = (125, 126, bytes_max, bytes_max + 1, 70_000)
    return st.one_of(
        st.builds(client_frame, mutated(client_messages), mask=masks),
        st.builds(client_frame, mutated(client_messages), opcodes, fin=st.booleans(), mask=masks),
        st.builds(lambda code, reason, mask: client_frame(code + reason, 8, mask=mask), codes, st.binary(max_size=130), masks),
        st.builds(lambda head, rest: head + rest, st.binary(min_size=2, max_size=14), st.binary(max_size=20)),
        st.sampled_from([client_frame(b"x" * size, opcode) for size in sizes for opcode in (1, 2, 9)]),
        st.sampled_from([b"\x81\xff" + struct.pack("!Q", size) for size in (0, 1 << 31, 1 << 62, 1 << 63, (1 << 64) - 1)]),
    )
