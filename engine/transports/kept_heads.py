"""What the heads of publish requests mean, kept by their bytes: a client repeats its heads, so most are parsed and checked once.

A head is kept when the parser has found it to be all of a request in front of its body, and `engine.transports.http_protocol` to be plain:
of HTTP/1.1, with a Content-Length, without any field that something between server and endpoint would look at, and of a connection that
stays open. Nothing else decides what such bytes mean at the beginning of a request, so equal bytes mean the same on any connection: whose
token, what kind of body, and how long. What may change meanwhile is not kept, and is checked for each request: whether the token is valid,
not expired and not revoked, quotas, room, and whether the edge drains.

What is found here is one request, or its beginning with the whole head; where more follows, the parser reads all of it. Only heads of
admitted requests are kept, so that nobody without a token can fill the table; the oldest makes room.
"""

from __future__ import annotations

from typing import Final

from engine.api.publish_endpoint import PATH, PublishHead

HEAD_BYTES_MAX: Final = 2048
"""Of a kept head: a token and a few short fields."""

_BEGINS: Final = b"POST %b HTTP/1.1\r\n" % PATH.encode()
_ENDS: Final = b"\r\n\r\n"


class KeptHeads:
    """The kept heads of one edge.

    Args:
        heads_max: kept at most.
    """

    def __init__(self, heads_max: int) -> None:
        self._heads_max = heads_max
        self._heads: dict[bytes, tuple[PublishHead, int]] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def find(self, data: bytes) -> tuple[PublishHead, bytes, int] | None:
        """What the head means that `data` begins with, the body, and how many bytes of it are missing; None when the head is not kept, or
        more follows than the body."""
        start = data.find(_ENDS, 0, HEAD_BYTES_MAX) + len(_ENDS)
        kept = self._heads.get(data[:start])
        if kept is None:
            return None
        head, body_bytes = kept
        missing = body_bytes + start - len(data)
        return (head, data[start:], missing) if missing >= 0 else None

    def keep(self, data: bytes, body_bytes: int, head: PublishHead) -> None:
        """Keep the head that `data` begins with, unless there is more or less in `data` than one request whose body has so many bytes.

        A head with a trace context, or with the attributes of an event, does not come again: it would take the place of one that does.
        """
        if head.content.traceparent or head.content.attributes:
            return
        start = data.find(_ENDS, 0, HEAD_BYTES_MAX) + len(_ENDS)
        if not body_bytes or len(data) - start != body_bytes or not data.startswith(_BEGINS):
            return
        if len(self._heads) >= self._heads_max:
            del self._heads[next(iter(self._heads))]
        self._heads[data[:start]] = head, body_bytes
