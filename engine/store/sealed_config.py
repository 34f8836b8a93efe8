"""The configuration as Ray may keep it: its secrets are encrypted, with a key that Ray does not have.

What an actor is constructed with stays in Ray's control service for as long as the actor may be restarted, and in its Redis, where it has
one. So the constructor gets a `SealedConfig`: settings that anyone may read, and a box with the secrets (`engine.config.SECRETS`).

    link key     in Redis (`engine.store.stored_secret`): who can read it can read and write all messages anyway
    engine key   HMAC-SHA256(link key, label). `engine up` derives it when it has connected to Redis, seals the configuration, and hands the
                 key to the controller, which hands it to the others (`engine.actors.engine_key`)
    box          AES-256-GCM(engine key, secrets), bound to the namespace
    proof        HMAC-SHA256(engine key, purpose): who presents it is a process of this engine. Methods of actors that change something or
                 tell something about users want one. It is of one purpose, so who is shown it can do nothing else with it

A Redis that has lost its data, or a link key that was deleted, gives another engine key to whoever asks then. Running actors keep theirs.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

from engine.config import SECRETS, Config
from engine.errors import NotProven

_KEY_LABEL: Final = b"engine key 1"
_BOX_LABEL: Final = "engine secrets 1 of "
_PROOF_LABEL: Final = "engine proof 1 of "
_NONCE_BYTES: Final = 12  # random: a key seals one configuration per start, far below 2^32 (NIST SP 800-38D, section 8.3)


class SealedConfig(Struct, frozen=True):
    """A configuration whose secrets only the holder of the engine key can read.

    Attributes:
        public: the configuration with empty secrets.
    """

    public: Config
    box: bytes

    def opened(self, key: bytes) -> Config:
        """The whole configuration. Raises NotProven when it was sealed with another key, or altered."""
        try:
            content = AESGCM(key).decrypt(self.box[:_NONCE_BYTES], self.box[_NONCE_BYTES:], _bound_to(self.public))
        except (InvalidTag, ValueError) as error:
            raise NotProven("this is not the key that the configuration was sealed with") from error
        return msgspec.structs.replace(self.public, **msgspec.msgpack.decode(content, type=dict[str, str]))


def engine_key(link_key: bytes) -> bytes:
    """The key for the configuration of the engine that has this link key."""
    return hmac.digest(link_key, _KEY_LABEL, "sha256")


def seal(config: Config, key: bytes) -> SealedConfig:
    """The configuration for the arguments of actors."""
    content = msgspec.msgpack.encode({name: str(getattr(config, name)) for name in SECRETS})
    public = without_secrets(config)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return SealedConfig(public, nonce + AESGCM(key).encrypt(nonce, content, _bound_to(public)))


def without_secrets(config: Config) -> Config:
    """The part of the configuration that anyone may read."""
    return msgspec.structs.replace(config, **dict.fromkeys(SECRETS, ""))


def proof(key: bytes, purpose: str) -> bytes:
    """Shows the holder of the key to be a process of this engine, for one purpose: the name of a method, or of a session of a link."""
    return hmac.digest(key, (_PROOF_LABEL + purpose).encode(), "sha256")


def check_proof(key: bytes, purpose: str, given: object) -> None:
    """Raises NotProven unless this is the `proof` of this purpose."""
    if not isinstance(given, bytes) or not hmac.compare_digest(given, proof(key, purpose)):
        raise NotProven(f"{purpose}: only the engine's own processes may ask for this")


def _bound_to(public: Config) -> bytes:
    return (_BOX_LABEL + public.namespace).encode()
