"""What a sealed configuration shows, who can open it, and what a proof is worth."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from engine.config import SECRETS, Config, Secret
from engine.errors import NotProven
from engine.store.sealed_config import check_proof, engine_key, proof, seal, without_secrets

KEY = engine_key(bytes(range(32)))
MARKERS = {
    "redis_url": "redis://:marker-one@h/0",
    "jwt_secret": "marker-two",
    "jwt_jwks_url": "https://u:marker-three@idp/keys",
    "webhook_secret": "marker-four",
    "history_url": "postgresql://engine:marker@db/history",
    "ray_events_secret": "marker-five",
    "smtp_url": "smtp://engine:marker-seven@mail",
    "apprise_recipients": '{"oncall": "json://marker-eight@host"}',
    "sources": '[{"connection": "postgresql://engine:marker-six@db/app"}]',
}
CONFIG = Config(**MARKERS, shards=7)


def test_every_secret_of_a_configuration_is_one_of_the_markers() -> None:
    assert MARKERS.keys() == set(SECRETS)


def test_who_has_the_key_gets_the_whole_configuration() -> None:
    sealed = pickle.loads(pickle.dumps(seal(CONFIG, KEY)))
    assert sealed.opened(KEY) == CONFIG
    assert sealed.public == without_secrets(CONFIG) == Config(shards=7)


def test_what_is_sealed_shows_no_secret() -> None:
    sealed = seal(CONFIG, KEY)
    for shown in (repr(sealed).encode(), pickle.dumps(sealed), msgspec.msgpack.encode(sealed.box)):
        assert b"marker" not in shown


def test_a_configuration_neither_shows_its_secrets_nor_is_pickled_with_them() -> None:
    assert "marker" not in repr(CONFIG) + repr(msgspec.structs.replace(CONFIG, shards=1))
    assert isinstance(msgspec.structs.replace(CONFIG, jwt_secret="plain").jwt_secret, Secret)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(CONFIG)
    assert pickle.loads(pickle.dumps(without_secrets(CONFIG))) == Config(shards=7)


def test_a_configuration_that_another_version_pickled_is_read_as_far_as_it_is_known() -> None:
    """Ray constructs an actor's next process, which an upgrade starts, with what the version before has given it."""
    read, (values,) = Config(shards=7).__reduce__()
    del values["edges"]  # as of a version that has no such setting
    assert read(values | {"of_the_next_version": 1}) == Config(shards=7)


@pytest.mark.parametrize("key", [engine_key(bytes(32)), b"", bytes(31)])
def test_another_key_opens_nothing(key: bytes) -> None:
    with pytest.raises(NotProven):
        seal(CONFIG, KEY).opened(key)


def test_a_box_of_another_namespace_or_altered_is_not_opened() -> None:
    sealed = seal(CONFIG, KEY)
    moved = msgspec.structs.replace(sealed, public=msgspec.structs.replace(sealed.public, namespace="other"))
    altered = msgspec.structs.replace(sealed, box=sealed.box[:-1] + bytes([sealed.box[-1] ^ 1]))
    for wrong in (moved, altered, msgspec.structs.replace(sealed, box=b"")):
        with pytest.raises(NotProven):
            wrong.opened(KEY)


def test_a_proof_is_good_for_its_purpose_and_its_engine_only() -> None:
    check_proof(KEY, "stop", proof(KEY, "stop"))
    for given in (proof(KEY, "drain"), proof(engine_key(bytes(32)), "stop"), b"", None, "stop"):
        with pytest.raises(NotProven, match="stop"):
            check_proof(KEY, "stop", given)
