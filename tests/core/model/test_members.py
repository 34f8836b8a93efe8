"""The table of a message's members, and the structs that a type checker must see."""

from __future__ import annotations

import runpy
from pathlib import Path

import msgspec

from engine.auth.tokens import Principal
from engine.config import Config
from engine.core.model.members import COPIED, DELIVERED, LINK, MEMBERS, SENT, message_bytes_max
from engine.publish.drafts import parse_drafts
from engine.publish.items import Item, Options
from engine.publish.media_types import Content
from tests.support.member_types import alternatives

CONFIG = Config(jwt_secret="x" * 32)


def test_items_have_the_members_that_publishers_set_with_their_types() -> None:
    fields = {field.name: field.type for field in msgspec.structs.fields(Item)}
    assert fields.keys() == SENT.keys()
    for name, kind in fields.items():
        assert alternatives(kind) == alternatives(SENT[name].kind.type), name


def test_options_are_type_data_and_the_extension_attributes() -> None:
    assert set(Options.__struct_fields__) == {"type", "data"} | {name for name, member in SENT.items() if member.attribute}


def test_each_member_has_one_row_for_each_that_sets_it() -> None:
    assert len({(member.name, member.set_by) for member in MEMBERS}) == len(MEMBERS)
    assert not [member.name for member in MEMBERS if member.set_by == "engine" and member.read_by == "engine"]


def test_a_limit_names_settings_and_ends_its_sentence() -> None:
    texts = [member.limit(CONFIG) for member in MEMBERS] + [member.meaning for member in MEMBERS]
    assert not [text for text in texts if text and not text.endswith((".", ".)"))]
    assert SENT["url"].limit(Config(context_bytes_max=77)).endswith("at most 77 bytes.")


def test_the_largest_message_fits_its_bound() -> None:
    config = Config(jwt_secret="x" * 32, context_bytes_max=512, data_bytes_max=1024)
    link, text = "/" + "a" * 511, "a" * 510
    item = {"user": "u", "type": "t" * config.id_chars_max, "id": "i" * config.id_chars_max, "data": "a" * 1022}
    item |= {member.name: link if member.kind is LINK else text for member in COPIED}
    principal = Principal("t", "u", frozenset(), 0)
    (draft,) = parse_drafts(msgspec.json.encode(item), Content(), principal, config, 1_700_000_000_000, lambda: "")
    assert len(COPIED) * 512 + 1024 < len(draft.envelope.body) < message_bytes_max(config)


def test_clients_get_what_publishers_set_for_them_and_what_the_engine_adds() -> None:
    assert {member.name for member in COPIED} <= DELIVERED.keys()
    assert {"seq", "event_id", "attempt"} <= DELIVERED.keys()
    assert not {"user", "delay", "ttl"} & DELIVERED.keys()


def test_protocol_and_declaration_are_what_their_script_writes() -> None:
    pages = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "members.py"))["pages"]()
    assert {path.name for path in pages} == {"PROTOCOL-PUBLISHING.md", "index.d.ts", "message.go", "Message.kt"}
    for path, text in pages.items():
        assert path.read_text() == text, "python docs/members.py"
        assert any(form in text for form in ("`url`", "  url?: string;", 'json:"url,omitempty"', "val url: String?"))
