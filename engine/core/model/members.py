"""The members of a message, one row each: what it holds, who sets it, who reads it, and its limit.

The table makes the JSON Schemas, what a draft copies, the reference in docs/PROTOCOL-PUBLISHING.md and the declaration of the browser
client (docs/members.py writes these two). A test compares it with structs and typed dictionaries, which a type checker must see. A member
that only clients read is a row here, a field of `engine.publish.items`, one of `engine.client.message_members`, and the code that shows it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import Struct

from engine.config import Config
from engine.core.model.constants import SEQ_MAX


class Kind(Struct, frozen=True):
    """What a member may hold: its type, and in words its limit, where names in braces are settings."""

    type: Any
    limit: str = ""


class Member(Struct, frozen=True):
    """A member of a message.

    Attributes:
        attribute: a CloudEvent may have it as an extension attribute.
        always: every delivered message has it.
    """

    name: str
    kind: Kind
    set_by: Literal["publisher", "engine"]
    read_by: Literal["engine", "clients", "both"]
    meaning: str
    attribute: bool = False
    always: bool = False

    def limit(self, config: Config) -> str:
        """The limit of its kind, with the values of the settings."""
        return self.kind.limit.format_map({name: getattr(config, name) for name in config.__struct_fields__})


TYPE: Final = Kind(str, "Words of letters, digits, `_`, `-`, `/` and `:`, joined by dots; at most {id_chars_max} characters.")
USER: Final = Kind(str, "1 to {id_chars_max} characters, none of them a control character.")
USERS: Final = Kind(list[str], "1 to {items_max} users.")
TOPIC: Final = Kind(str, "1 to {id_chars_max} printable characters, without spaces and `*`.")
ID: Final = Kind(str, "1 to {id_chars_max} printable characters; not `timer:` at the beginning.")
PRIORITY: Final = Kind(Literal["high", "normal", "low"])
CONTEXT: Final = Kind(Any, "At most {context_bytes_max} bytes.")
LINK: Final = Kind(str, "An http(s) URL, or a path on the site that shows the message; at most {context_bytes_max} bytes.")
DATA: Final = Kind(Any, "At most {data_bytes_max} bytes.")
TIME_MS: Final = Kind(int, "Milliseconds since the epoch, up to the year 9999.")
DELAY: Final = Kind(float, "Seconds, 0 to {delay_s_max}.")
TTL: Final = Kind(float, "Seconds, more than 0, at most {ttl_s_max}.")
DUE: Final = Kind(int | str, "Milliseconds since the epoch, or RFC 3339; at most {delay_s_max} seconds ahead.")
FLAG: Final = Kind(bool)
COLLAPSE: Final = Kind(dict, "`window` up to {collapse_window_s_max} seconds, `text` up to {collapse_text_chars_max} characters.")
ASK: Final = Kind(
    dict[str, Any], "Up to {question_answers_max} `answers`, `deadline` up to {question_deadline_s_max} seconds. For one user, or a topic."
)
CATEGORY: Final = Kind(str, "One that the rules define, or `touch`.")
TRACE: Final = Kind(str, "As W3C Trace Context writes it.")
SEQ: Final = Kind(int, f"0 to {SEQ_MAX}.")
COUNT: Final = Kind(int, "At least 1.")
TEXT: Final = Kind(str)
TRUE: Final = Kind(Literal[True])
ACTORS: Final = Kind(list[Any])
ANSWER: Final = Kind(dict[str, Any])

MEMBERS: Final = (
    Member("type", TYPE, "publisher", "both", "What happened.", always=True),
    Member("user", USER, "publisher", "engine", "Whom to notify."),
    Member("users", USERS, "publisher", "engine", "Several users, all under the same id."),
    Member("topic", TOPIC, "publisher", "engine", "The topic whose subscribers and members get it. Low priority unless given."),
    Member("broadcast", FLAG, "publisher", "engine", "Everyone, also who connects before it expires. Low priority unless given."),
    Member("id", ID, "publisher", "both", "Idempotency key, kept 24 h per user. The engine makes one when it is absent.", always=True),
    Member("priority", PRIORITY, "publisher", "both", "Which goes first under load; normal unless given.", attribute=True, always=True),
    Member("actor", CONTEXT, "publisher", "both", "Who did it."),
    Member("target", CONTEXT, "publisher", "both", "To what."),
    Member("context", CONTEXT, "publisher", "clients", "Where."),
    Member("url", LINK, "publisher", "clients", "The link that a client opens.", attribute=True),
    Member("image", LINK, "publisher", "clients", "The picture that a client shows beside it.", attribute=True),
    Member("data", DATA, "publisher", "clients", "The payload.", always=True),
    Member("ts", TIME_MS, "publisher", "clients", "When it happened; when it was accepted, unless given.", always=True),
    Member("delay", DELAY, "publisher", "engine", "Deliver so much later.", attribute=True),
    Member("at", DUE, "publisher", "engine", "Deliver at this time; now when it is past.", attribute=True),
    Member("ttl", TTL, "publisher", "engine", "Not delivered after this time, which counts from when it is due.", attribute=True),
    Member("retain", FLAG, "publisher", "engine", "False: only for connections that exist now.", attribute=True),
    Member("collapse", COLLAPSE, "publisher", "engine", "A newer message of its key replaces it, or is merged with it."),
    Member("ask", ASK, "publisher", "both", "A question to the user, which is answered once."),
    Member("category", CATEGORY, "publisher", "engine", "The category whose limits it counts against. For users only.", attribute=True),
    Member("unless_active", FLAG, "publisher", "engine", "Not delivered when the user was active since publishing. For users only."),
    Member("traceparent", TRACE, "publisher", "both", "The trace it belongs to (W3C Trace Context).", attribute=True),
    Member("seq", SEQ, "engine", "clients", "Its number in the user's mailbox. A repeat has the same.", always=True),
    Member("event_id", TEXT, "engine", "clients", "The cursor after this message, `<epoch>-<seq>`. An early copy has none."),
    Member("early", TRUE, "engine", "clients", "It came ahead of lower numbers."),
    Member("due", TIME_MS, "engine", "clients", "When it was due, if it was delayed."),
    Member("attempt", COUNT, "engine", "clients", "How often it was sent on this connection.", always=True),
    Member("count", COUNT, "engine", "clients", "How many messages it stands for."),
    Member("actors", ACTORS, "engine", "clients", "The first different actors of a summary."),
    Member("first_ts", TIME_MS, "engine", "clients", "The first time of a summary's messages."),
    Member("last_ts", TIME_MS, "engine", "clients", "The last time of a summary's messages."),
    Member("collapse", TEXT, "engine", "clients", "The key of a summary."),
    Member("text", TEXT, "engine", "clients", "The text of a summary, by the publisher's template."),
    Member("replaces", TEXT, "engine", "clients", "The id of the message that a summary replaces. Acknowledge both."),
    Member("answer", ANSWER, "engine", "clients", "The answer to the question that it replaces: `answer`, `label`, `text`, `by`, `at`."),
    Member("unsubscribe", TEXT, "engine", "clients", "The path that turns its category off for this user, where the category has one."),
)

SENT: Final = {member.name: member for member in MEMBERS if member.set_by == "publisher"}
"""What a publisher may give."""

DELIVERED: Final = {member.name: member for member in MEMBERS if member.read_by != "engine"}
"""What a client gets."""

COPIED: Final = tuple(member for member in SENT.values() if member.kind in (CONTEXT, LINK))
"""What the engine checks, and copies from a notification to the message."""

_REST_BYTES: Final = 4096  # names, numbers, id and type
_ASK_BYTES: Final = 16 << 10  # a question with its labels, or its answer with a text


def message_bytes_max(config: Config) -> int:
    """Size of the largest message in storage."""
    return config.data_bytes_max + len(COPIED) * config.context_bytes_max + _REST_BYTES + _ASK_BYTES
