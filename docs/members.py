"""Writes the members of messages into docs/PROTOCOL-PUBLISHING.md and the clients for browsers, Go and Kotlin: `python docs/members.py`.

A test compares all.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from engine.config import Config
from engine.core.model.members import DELIVERED, MEMBERS, Member

_PAGE: Final = Path(__file__).with_name("PROTOCOL-PUBLISHING.md")
_CLIENT: Final = Path(__file__).parents[1] / "clients" / "js" / "index.d.ts"
_GO_CLIENT: Final = Path(__file__).parents[1] / "clients" / "go" / "notify" / "message.go"
_KOTLIN_CLIENT: Final = Path(__file__).parents[1] / "clients" / "kotlin" / "src" / "main" / "kotlin" / "notify" / "Message.kt"
_MADE_BY: Final = "members, made by docs/members.py"
_TYPES: Final = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    dict: "object",
    dict[str, Any]: "object",
    list: "array",
    Any: "any JSON",
}
_SCRIPT_TYPES: Final = {str: "string", int: "number", Any: "any"}
_GO_TYPES: Final = {str: "string", int: "int64", Any: "json.RawMessage", list[Any]: "[]json.RawMessage", dict[str, Any]: "json.RawMessage"}
_GO_NAMES: Final = {"id": "ID", "url": "URL", "ts": "TS"}


def pages() -> dict[Path, str]:
    """The files as they are to be, by path."""
    return {
        _PAGE: _with_block(_PAGE, "<!-- {} -->", _reference()),
        _CLIENT: _with_block(_CLIENT, "  // {}", _declaration()),
        _GO_CLIENT: _with_block(_GO_CLIENT, "\t// {}", _go_fields()),
        _KOTLIN_CLIENT: _with_block(_KOTLIN_CLIENT, "    // {}", _kotlin_properties()),
    }


def _with_block(path: Path, comment: str, lines: Iterator[str]) -> str:
    """The file with these lines between its two marks."""
    begin, end = comment.format(_MADE_BY) + "\n", comment.format("end of members") + "\n"
    before, _, rest = path.read_text().partition(begin)
    _, _, after = rest.partition(end)
    return "".join((before, begin, *(f"{line}\n" for line in lines), end, after))


def _reference() -> Iterator[str]:
    config = Config()
    yield "| member | type | set by | read by | meaning | limit |"
    yield "|---|---|---|---|---|---|"
    for member in MEMBERS:
        name = f"`{member.name}`" + (" ¹" if member.attribute else "")
        yield f"| {name} | {_type(member.kind.type)} | {member.set_by} | {member.read_by} | {member.meaning} | {member.limit(config)} |"


def _type(kind: Any) -> str:
    if kind in _TYPES:
        return _TYPES[kind]
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(f"`{str(value).lower()}`" for value in arguments)
    if typing.get_origin(kind) is list:
        return f"array of {_type(arguments[0])}"
    return " or ".join(map(_type, arguments))


def _declaration() -> Iterator[str]:
    for member in DELIVERED.values():
        yield f"  /** {member.meaning} */"
        yield f"  {member.name}{'' if member.always else '?'}: {_script_type(member)};"


def _script_type(member: Member) -> str:
    kind = member.kind.type
    if member.name == "data":
        return "Data"
    if kind in _SCRIPT_TYPES:
        return _SCRIPT_TYPES[kind]
    if typing.get_origin(kind) is typing.Literal:
        return " | ".join("true" if value is True else f'"{value}"' for value in typing.get_args(kind))
    if member.name in ("ask", "answer"):
        return {"ask": "Question", "answer": "Answer"}[member.name]
    assert kind == list[Any]
    return "any[]"


def _go_fields() -> Iterator[str]:
    for member in DELIVERED.values():
        words = member.name.split("_")
        name = "".join(_GO_NAMES.get(word, word.capitalize()) for word in words)
        absent = "" if member.always else ",omitempty"
        yield f"\t// {name}: {member.meaning}"
        yield f'\t{name} {_go_type(member)} `json:"{member.name}{absent}"`'


def _go_type(member: Member) -> str:
    kind = member.kind.type
    if member.name == "seq":
        return "uint64"
    if typing.get_origin(kind) is typing.Literal:
        return "bool" if typing.get_args(kind) == (True,) else "string"
    return _GO_TYPES[kind]


def _kotlin_properties() -> Iterator[str]:
    for member in DELIVERED.values():
        first, *words = member.name.split("_")
        name = first + "".join(map(str.capitalize, words))
        yield f"    /** {member.meaning} */"
        yield f"    public val {name}: {_kotlin_value(member)}"


def _kotlin_value(member: Member) -> str:
    """Type and value of a property."""
    kind, absent = member.kind.type, "" if member.always else "?"
    if kind in (int, float):
        return f'Long{absent} = number("{member.name}")' + (" ?: 0" if member.always else "")
    if typing.get_origin(kind) is typing.Literal and typing.get_args(kind) == (True,):
        return f'Boolean = text("{member.name}") == "true"'
    if kind is str or typing.get_origin(kind) is typing.Literal:
        return f'String{absent} = text("{member.name}")' + (' ?: ""' if member.always else "")
    return f'JsonElement? = members["{member.name}"]'


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
