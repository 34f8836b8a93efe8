"""The handshake of a link over TCP: both ends prove that they hold the engine's link key before anything else is read.

Messages have fixed sizes, so nothing is parsed before the proof:
    callee -> caller   greeting   MAGIC (8 bytes), nonce of the callee (32)
    caller -> callee   claim      nonce of the caller (32), identity of the caller (32), proof as caller (32)
    callee -> caller   answer     proof as callee (32)

    proof as ROLE = HMAC-SHA256(key, label of ROLE | identity of caller | identity of callee | nonce of callee | nonce of caller)

What each part is for. The nonces are fresh at both ends, so a recorded handshake is worth nothing. The label is of one role, so an end
does not accept its own proof sent back. The identities are digests of namespace and name: a port that another actor has taken over since
its address was given out does not pass for the old one. The caller proves first: a stranger who connects gets 40 bytes made without the
key. What follows is bound to nothing but the connection: someone on the path can read and change it; against that there is TLS.

States of either end
    waiting   for the other end's next message
    proven    the other end holds the key; what comes next belongs to the link
    failed    a proof is wrong, or more bytes came than the message has: the connection must be closed, and nothing of it read
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

MAGIC: Final = b"englink\x01"
"""Begins the greeting, so that a caller notices at once when something else listens; its last byte is the version of the handshake."""

NONCE_BYTES: Final = 32
KEY_BYTES: Final = 32

_DIGEST_BYTES: Final = 32
_GREETING_BYTES: Final = len(MAGIC) + NONCE_BYTES
_CLAIM_BYTES: Final = NONCE_BYTES + 2 * _DIGEST_BYTES
_CALLER: Final = b"engine link 1 caller"
_CALLEE: Final = b"engine link 1 callee"


class HandshakeFailed(ConnectionError):
    """The other end did not prove that it holds the key."""


def identity(namespace: str, name: str) -> bytes:
    """What a proof binds an actor by."""
    return hashlib.sha256(f"{namespace}/{name}".encode()).digest()


class _Handshake:
    """What both ends share: the bytes received of the message that is expected, and whether the other end has proven itself."""

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES
        self._key = key
        self._received = b""
        self.proven = False

    def greeting(self) -> bytes:
        """What to send when the connection is made."""
        return b""

    def receive_data(self, data: bytes) -> bytes:
        """Accept bytes; returns what to send in return. `proven` is set when the handshake is complete.

        Raises:
            HandshakeFailed: the connection must be closed.
        """
        raise NotImplementedError

    def _message(self, data: bytes, size: int) -> bytes | None:
        """The message of this size when it is complete. More is never kept: neither end may send more before it has an answer."""
        if self.proven or len(self._received) + len(data) > size:
            raise HandshakeFailed("more bytes than the handshake has")
        self._received += data
        if len(self._received) < size:
            return None
        message, self._received = self._received, b""
        return message

    def _proof(self, role: bytes, caller: bytes, callee: bytes, callee_nonce: bytes, caller_nonce: bytes) -> bytes:
        return hmac.digest(self._key, role + caller + callee + callee_nonce + caller_nonce, "sha256")


class CalleeHandshake(_Handshake):
    """The end that was connected to.

    Args:
        key: the engine's link key.
        callee: the own identity.
        nonce: `NONCE_BYTES` random bytes, used once.

    Attributes:
        caller: the identity of the other end, once it is proven.
    """

    def __init__(self, key: bytes, callee: bytes, nonce: bytes) -> None:
        super().__init__(key)
        self._callee = callee
        self._nonce = nonce
        self.caller = b""

    def greeting(self) -> bytes:
        return MAGIC + self._nonce

    def receive_data(self, data: bytes) -> bytes:
        claim = self._message(data, _CLAIM_BYTES)
        if claim is None:
            return b""
        nonce, caller, proof = claim[:NONCE_BYTES], claim[NONCE_BYTES:-_DIGEST_BYTES], claim[-_DIGEST_BYTES:]
        bound = (caller, self._callee, self._nonce, nonce)
        if not hmac.compare_digest(proof, self._proof(_CALLER, *bound)):
            raise HandshakeFailed("the caller holds another key, or takes this actor for another")
        self.caller = caller
        self.proven = True
        return self._proof(_CALLEE, *bound)


class CallerHandshake(_Handshake):
    """The end that connects.

    Args:
        key: the engine's link key.
        caller: the own identity.
        callee: the identity that the other end must prove.
        nonce: `NONCE_BYTES` random bytes, used once.
    """

    def __init__(self, key: bytes, caller: bytes, callee: bytes, nonce: bytes) -> None:
        super().__init__(key)
        self._caller = caller
        self._callee = callee
        self._nonce = nonce
        self._expected = b""  # the callee's proof, once it has sent its nonce

    def receive_data(self, data: bytes) -> bytes:
        if self._expected:
            answer = self._message(data, _DIGEST_BYTES)
            if answer is not None:
                if not hmac.compare_digest(answer, self._expected):
                    raise HandshakeFailed("the callee holds another key, or is another actor")
                self.proven = True
            return b""
        greeting = self._message(data, _GREETING_BYTES)
        if greeting is None:
            return b""
        if not greeting.startswith(MAGIC):
            raise HandshakeFailed("the callee speaks another protocol")
        bound = (self._caller, self._callee, greeting[len(MAGIC) :], self._nonce)
        self._expected = self._proof(_CALLEE, *bound)
        return self._nonce + self._caller + self._proof(_CALLER, *bound)
