"""The message that tells the answer: the message of the question once more, with `answer` in the place of `ask`, which `replaces` it.

Its id is made of the question's, so it is published once, however often it is tried. So
are the action and the event that the question may name.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import Raw, to_builtins

from engine.core.model.action import Action
from engine.core.model.routing import split_key, timer_id, topic_of
from engine.core.wire.records import Timer
from engine.features.questions.core import GivenAnswer
from engine.features.questions.store import StoredQuestion
from engine.publish.asked_questions import OUTCOME
from engine.publish.drafts import Draft, republished

_OWN: Final = ("id", "ask", "due", "replaces", "traceparent")
"""Members of the question's message that the outcome has not, or has of its own."""

_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
_encode: Final = msgspec.json.Encoder().encode


def outcome_id(id: str) -> str:
    """The id of the message that tells the answer to the question with this id."""
    return f"{OUTCOME}{id}"


def action_of(key: str, id: str, target: str, outcome: Draft, now_ms: int) -> Timer:
    """The timer, due now, that calls the target with the outcome: it is stored, tried again and given up as an action of a rule is."""
    unique = blake2b(f"{key}\n{id}".encode(), digest_size=16).hexdigest()
    sid = timer_id(key, f"{OUTCOME}{unique}")
    return Timer(sid, key, now_ms, now_ms, outcome.ttl_ms, outcome.envelope, action=Action(target, unique))


def event_of(key: str, id: str, type: str, answer: GivenAnswer) -> bytes:
    """The event for the rules, as `POST /v1/events` takes it; its user is the one who was asked."""
    members = {
        "type": type,
        "user": split_key(key)[1],
        "id": outcome_id(id),
        "ts": answer.at,
        "data": {"question": id, **to_builtins(answer)},
    }
    return _encode(members)


def outcome_of(key: str, id: str, stored: StoredQuestion, answer: GivenAnswer, now_ms: int, ttl_ms: int) -> Draft:
    """The message for whom the key stands, a user or a topic. It is answered already, so no limit for contacting the user counts it."""
    members = {name: value for name, value in _MEMBERS.decode(b"{%b}" % stored.body).items() if name not in _OWN}
    members |= {"replaces": Raw(_encode(id)), "answer": Raw(_encode(answer))}
    envelope = republished(outcome_id(id), members, stored.priority)
    topic = topic_of(key)
    return Draft(key, "" if topic is not None else split_key(key)[1], envelope, True, now_ms + ttl_ms, ttl_ms, 0, topic=topic)
