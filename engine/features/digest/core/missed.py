"""A message as the digest reads it: the members of its JSON object that say what it is about, whoever published it.

Publishers write `data` as they like. Its text is looked for under the names that people use (`TEXT_NAMES`), and `state` for how something
ended. What is not found is "".
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.core.model.category import PolicyTerms
from engine.features.policy.core.choices import target_names
from engine.features.policy.core.contact_policy import Facts

TEXT_NAMES: Final = ("title", "text", "body", "message", "subject", "summary", "content")
STATE_NAMES: Final = ("state", "conclusion", "status", "result")
TEXT_CHARS_MAX: Final = 300
"""Of a text: what a sentence model reads of it, and more than a line shows."""


class Missed(Struct, frozen=True, kw_only=True, gc=False):
    """A missed message.

    Args:
        seq: its number, 0 where it has none.
        id: the message's.
        type: event type, lower case.
        at_ms: when it happened, as its publisher says.
        expires_ms: when it is not delivered any more; 0: never.
        high: published with high priority.
        collapse: its collapse key, when a newer message of the key replaces it; "" for none.
        replaces: id of the message that it replaces.
        actors: who did it; the names of a summary's first ones.
        target: the name by which it is told from others of its kind, "" for none.
        facts: what decides whether the user still wants it; None: it is wanted.
        kind: of the target, or "".
        name: what the target is called by machines and in links: its id, or "".
        title: what people call the target, or "".
        scope: where it happened: `thread` or `branch` of the context, else "".
        place: of a scope, what it is part of (`repository`, `project`, `site`), or "".
        text: what it says, or "".
        state: how something ended, or "".
        count: how many messages it stands for.
    """

    id: str
    type: str
    at_ms: int
    seq: int = 0
    expires_ms: int = 0
    high: bool = False
    collapse: str = ""
    replaces: str = ""
    actors: tuple[str, ...] = ()
    target: str = ""
    facts: Facts | None = None
    kind: str = ""
    name: str = ""
    title: str = ""
    scope: str = ""
    place: str = ""
    text: str = ""
    state: str = ""
    count: int = 1


class _Body(Struct, gc=False):
    """The members of a message object that are read here; any of them may be anything that a publisher may write."""

    id: str
    type: str
    ts: int
    priority: str = "normal"
    actor: Any = None
    target: Any = None
    context: Any = None
    count: int = 1
    actors: Any = None
    text: str = ""
    replaces: str = ""
    data: Any = None


_decoder: Final = msgspec.json.Decoder(_Body)
_NO_TERMS: Final = PolicyTerms()


def read_missed(body: bytes, *, seq: int = 0, expires_ms: int = 0, collapse: str = "", terms: PolicyTerms | None = None) -> Missed:
    """A message from its JSON members without braces (`engine.core.model.message`), and its policy terms.

    Raises:
        msgspec.MsgspecError: the body is not one that the engine wrote.
    """
    found = _decoder.decode(b"{%b}" % body)
    terms = terms or _NO_TERMS
    data = found.data if isinstance(found.data, dict) else {}
    context = found.context if isinstance(found.context, dict) else {}
    target = found.target if isinstance(found.target, dict) else {}
    names = target_names(found.target)
    people = found.actors if isinstance(found.actors, list) and found.actors else [found.actor]
    title = _text(target, ("title", "name", "text")) or (_text(data, ("title",)) if names else "")
    return Missed(
        id=found.id,
        type=found.type.lower(),
        at_ms=found.ts,
        seq=seq,
        expires_ms=expires_ms,
        high=found.priority == "high",
        collapse=collapse,
        replaces=found.replaces,
        actors=tuple(dict.fromkeys(name for one in people if (name := _name(one)))),
        target=names[-1] if names else _text(target, ("url",)),
        facts=Facts(type=found.type, category=terms.category, limits=terms.limits, targets=names),
        kind=_text(target, ("kind",)),
        name=names[0] if names else "",
        title=title,
        scope=_text(context, ("thread", "branch")),
        place=_text(context, ("repository", "project", "site")),
        text=_line(found.text) or _text(data, TEXT_NAMES) or (_line(found.data) if isinstance(found.data, str) else ""),
        state=_text(data, STATE_NAMES).lower(),
        count=max(found.count, 1),
    )


def _text(members: dict[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = members.get(name)
        if isinstance(value, str) and value.strip():
            return _line(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return ""


def _line(text: str) -> str:
    return " ".join(text[:TEXT_CHARS_MAX].split())


def _name(actor: Any) -> str:
    """What an actor is called."""
    if isinstance(actor, str):
        return actor
    return _text(actor, ("name", "login", "id")) if isinstance(actor, dict) else ""
