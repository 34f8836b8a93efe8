"""What a link does for the receiver, whichever transport it is, and how it ends.

States: made -> `open` -> any number of `receive` and `send`, each by one task -> `close` or `abort`. Whatever goes wrong raises
`LinkEnded`, from `receive` and from `send` alike; after that the link is only closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ssl import SSLContext
from typing import Final, Protocol
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from engine.client.credentials import Credentials, EngineUrl
from engine.client.http_connection import HttpConnection, Response
from engine.client.protocol import Transport
from engine.client.publish_results import problem_of
from engine.client.retried_requests import retry_after_s

FRAME_BYTES_MAX: Final = 8 << 20  # an engine sends at most 256 KiB
CLOSE_TIMEOUT_S: Final = 2.0


_ACK: Final = b'{"type":"ack",'
_NACK: Final = b'{"type":"nack",'


class _Ids(Struct):
    ids: list[str]


class _Taken(Struct):
    """What an engine answers; a proxy's page is no object."""


_ids: Final = msgspec.json.Decoder(_Ids)
_taken: Final = msgspec.json.Decoder(_Taken)


class LinkEnded(Exception):
    """A link could not be made, or has ended.

    Args:
        reason: for people.
        code: the WebSocket close code, of a stream too; 0 without one.
        status: the HTTP status that refused the link; 0 when there was none.
        retry_after_s: the server's wish, with either.
        reached: a server, or a proxy, took the connection. Without one no other transport gets through.
        silent: nothing was heard in time.
    """

    def __init__(
        self, reason: str, *, code: int = 0, status: int = 0, retry_after_s: float | None = None, reached: bool = True, silent: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.status = status
        self.retry_after_s = retry_after_s
        self.reached = reached
        self.silent = silent


class LinkOptions(Struct, frozen=True):
    """What all links of a client have in common.

    Args:
        cursor: the one to present now.
        timeout_s: for one request.
    """

    address: EngineUrl
    credentials: Credentials
    cursor: Callable[[], str | None]
    device: str | None = None
    digest: bool = False
    counts: bool = False
    ssl: SSLContext | None = None
    timeout_s: float = 10.0

    def query(self, cursor: str | None, **more: str | None) -> str:
        """`?last_event_id=...&device=...` and more; without what is empty."""
        given = {"last_event_id": cursor, "device": self.device, **more}
        text = urlencode({name: value for name, value in given.items() if value})
        return f"?{text}" if text else ""

    @property
    def extras(self) -> dict[str, str]:
        """The parameters for frames that polling does not have."""
        return ({"digest": "1"} if self.digest else {}) | ({"counts": "true"} if self.counts else {})

    async def authorization(self) -> dict[str, str]:
        """The header with the current token. Raises LinkEnded when there is no fresh one."""
        try:
            return {"Authorization": f"Bearer {await self.credentials.get()}"}
        except Exception as error:
            raise LinkEnded(f"no fresh token: {error!r}") from error


class Link(Protocol):
    """One connection to an engine.

    Attributes:
        transport: which one.
        presented: the cursor that it began with.
        duplex: it takes all frames; one that does not takes `ack` and `nack`, as requests.
    """

    transport: Transport
    presented: str | None
    duplex: bool

    async def open(self, timeout_s: float) -> None:
        """Connect with the current cursor, as far as to know that this transport gets through. Once; leaves nothing open when it fails."""

    async def receive(self) -> Sequence[bytes]:
        """The next frames; empty when the server has shown that it is there, and has nothing."""

    async def send(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """Send frames. Returns the frames that answer requests. Some may have arrived when it fails."""

    async def close(self) -> None:
        """End it in the way of the transport; within `CLOSE_TIMEOUT_S`, else it is aborted."""

    def abort(self) -> None:
        """End it at once. Idempotent."""


def refusal_of(answer: Response) -> LinkEnded:
    """The end of a link that was answered by this."""
    return LinkEnded(
        problem_of(answer).detail or f"HTTP {answer.status}",
        status=answer.status,
        retry_after_s=retry_after_s(answer.headers.get("retry-after")),
    )


def broken(error: OSError) -> LinkEnded:
    """The end of a link whose connection failed. Silence is not what a host without a server answers; a firewall may be."""
    reached = isinstance(error, ConnectionError | TimeoutError) and not isinstance(error, ConnectionRefusedError)
    return LinkEnded(str(error) or type(error).__name__, reached=reached, silent=isinstance(error, TimeoutError))


class SettlingRequests:
    """Acknowledges by `POST /v1/ack` and refuses by `POST /v1/nack`, one request after the other, for links that only receive."""

    def __init__(self, options: LinkOptions) -> None:
        self._options = options
        self._http = HttpConnection(options.address, connections_max=1, ssl=options.ssl)

    async def post(self, frames: Sequence[bytes]) -> list[bytes]:
        """Send these `ack` and `nack` frames; returns `nacked` for each `nack`.

        Raises LinkEnded without a status: the session sends it again on the next connection, and is refused then if it has to be.
        """
        answers = []
        for frame in frames:
            if frame.startswith(_ACK):
                await self._post("/v1/ack", b"{" + frame.removeprefix(_ACK), "acknowledgement")
            else:
                await self._post("/v1/nack", b"{" + frame.removeprefix(_NACK), "refusal")
                answers.append(msgspec.json.encode({"type": "nacked", "ids": _ids.decode(frame).ids}))
        return answers

    async def _post(self, path: str, body: bytes, what: str) -> None:
        headers = await self._options.authorization() | {"Content-Type": "application/json"}
        try:
            answer = await self._http.request("POST", path, headers, body, timeout_s=self._options.timeout_s)
        except OSError as error:
            raise LinkEnded(f"{what} failed: {broken(error).reason}") from error
        if answer.status != 200:
            refusal = refusal_of(answer)
            raise LinkEnded(f"{what} failed: {refusal.reason}", retry_after_s=refusal.retry_after_s)
        try:
            _taken.decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LinkEnded(f"{what} failed: the answer is not an engine's: {error}") from error

    def close(self) -> None:
        self._http.close()
