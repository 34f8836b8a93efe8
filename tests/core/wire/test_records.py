"""Records between actors, and stored ones, while an engine is upgraded: processes of two versions read what the other writes.

`layouts.json` has the layouts of all records as of the last release. To change one: append fields that have a default, and nothing else.
Records of new kinds belong to the next formats (`engine.core.model.formats`), which are written once every process reads them; they are
named here. At a release, run `python -m tests.core.wire.test_records`, which writes the file anew, and take the names away.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec import inspect

from engine.core.mailbox.broadcast_log import BroadcastEntry
from engine.core.model.formats import FORMATS
from engine.core.model.routing import SlotMap
from engine.core.wire import records as wire
from tests.support import stored

LAYOUTS: Final = Path(__file__).parent / "data" / "layouts.json"

LINKS: Final = (wire.to_shard, wire.from_shard, wire.to_scheduler, wire.scheduler_to_edge, wire.scheduler_to_shard)
CAME_SINCE: Final[dict[int, set[str]]] = {2: {"ChannelCap", "ChannelStep", "MailDigest", "StepTerms"}, 3: {"Show", "Shown"}}
"""Records that the last release does not read, by the formats that have them."""

STORED: Final = (stored.LAYOUTS.record, stored.LAYOUTS.page, wire.Timer, BroadcastEntry, SlotMap)


def structs_in(kind: Any) -> dict[type, inspect.StructType]:
    """All structs that a value of this type has in it."""
    found: dict[type, inspect.StructType] = {}
    rest = [kind]
    while rest:
        one = rest.pop()
        if isinstance(one, inspect.StructType):
            if one.cls in found:
                continue
            found[one.cls] = one
            rest += [field.type for field in one.fields]
        elif isinstance(one, inspect.Type):
            rest += [part for name in one.__struct_fields__ for part in _parts(getattr(one, name))]
    return found


def _parts(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


def layout_of(struct: inspect.StructType) -> dict[str, Any]:
    fields = [[field.encode_name, type(field.type).__name__, field.required] for field in struct.fields]
    return {"tag": struct.tag, "array": struct.array_like, "fields": fields}


@cache
def layouts() -> dict[str, Any]:
    """Of all records, by the names of their classes."""
    kinds = [inspect.type_info(decoder.type) for decoder in LINKS] + [inspect.type_info(kind) for kind in STORED]
    found = {cls.__name__: layout_of(struct) for kind in kinds for cls, struct in structs_in(kind).items()}
    return dict(sorted(found.items()))


RELEASED: Final[dict[str, Any]] = json.loads(LAYOUTS.read_text()) if LAYOUTS.exists() else {}


def compatible(released: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether each of the two versions reads what the other writes."""
    kept = len(released["fields"])
    return (
        (released["tag"], released["array"]) == (now["tag"], now["array"])
        and now["fields"][:kept] == released["fields"]
        and not any(required for _, _, required in now["fields"][kept:])
    )


@pytest.mark.parametrize("name", sorted(RELEASED))
def test_a_record_is_what_the_last_release_reads_and_writes_but_for_fields_at_its_end(name: str) -> None:
    now = layouts()
    assert name in now, "a release that upgrades while it serves still reads what the one before writes"
    assert compatible(RELEASED[name], now[name])


def test_a_record_that_the_last_release_does_not_read_belongs_to_newer_formats() -> None:
    assert layouts().keys() - RELEASED.keys() == set().union(*CAME_SINCE.values())
    assert max(CAME_SINCE, default=FORMATS) == FORMATS


def test_requests_of_newer_formats_are_known_to_those_who_send_them() -> None:
    asked = {cls.__name__ for cls in structs_in(inspect.type_info(wire.to_shard.type)) if "ref" in cls.__struct_fields__}
    assert {kind.__name__: formats for kind, formats in wire.NEWER.items()} == {
        name: formats for formats, names in CAME_SINCE.items() for name in names & asked
    }


def test_a_reader_of_the_version_before_ignores_fields_at_the_end_and_one_of_the_next_fills_them_in() -> None:
    attach = wire.Attach(1, "default:anna", 0, "", 0, "s", "d", True, 7, ("a",))
    packed: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(attach))
    newer = msgspec.msgpack.encode([[*packed, "a field of the next version", {"and": 1}]])
    assert wire.to_shard.decode(newer) == [attach]
    older = msgspec.msgpack.encode([packed[:-6]])
    assert wire.to_shard.decode(older) == [msgspec.structs.replace(attach, resume=False, sent=0, topics=())]


def test_layouts_that_cannot_be_upgraded_while_an_engine_serves_are_noticed() -> None:
    one = RELEASED["Attach"]
    fields = one["fields"]
    assert compatible(one, one | {"fields": [*fields, ["more", "IntType", False]]})
    for changed in (
        [*fields, ["more", "IntType", True]],
        fields[:-1],
        [fields[1], fields[0], *fields[2:]],
        [["conn", "StrType", True], *fields[1:]],
    ):
        assert not compatible(one, one | {"fields": changed})
    assert not compatible(one, one | {"tag": 99})


if __name__ == "__main__":
    LAYOUTS.parent.mkdir(exist_ok=True)
    LAYOUTS.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(layout)}" for name, layout in layouts().items()) + "\n}\n")
