"""Receiving: the three transports, acknowledgements, and presence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.config import Config
from engine.core.model.constants import REASON_CHARS_MAX, SEQ_MAX
from engine.http.description.json_schema import SEQ, TIME_MS, Schema, answer_of, object_of, printable, ref
from engine.http.description.member_schemas import always, delivered
from engine.http.description.operation import Part, json_of, operation, parameter

_CURSOR_TEXT = "The `event_id` of the last message handled, `<epoch>-<seq>`. Acknowledges everything up to it."

by_client = partial(operation, "receiving", "connect")


def paths(config: Config) -> Part:
    """See `Description`."""
    cursor = parameter("last_event_id", "query", _CURSOR_TEXT)
    cursor_header = parameter("Last-Event-ID", "header", f"{_CURSOR_TEXT} Counts more than the query parameter.")
    device = parameter("device", "query", f"The client's name for itself, of which {config.id_chars_max} characters are kept.")
    wait = parameter("wait", "query", "Seconds to wait for a message.", {"type": "number", "minimum": 0, "default": 25})
    explicit = parameter("ack", "query", "`explicit`: unacknowledged messages are sent again on the same stream.", {"enum": ["explicit"]})
    client = parameter("X-Client-ID", "header", f"The client's name for itself, of which {config.id_chars_max} characters are kept.")
    returned = parameter("digest", "query", "`1`: a digest of what was missed comes too, after an absence.", {"enum": ["1"]})
    last_seq = parameter(
        "X-Last-Seq", "header", "The last sequence number the client has.", {"type": "integer", "minimum": 0, "maximum": SEQ_MAX}
    )
    counts = parameter("counts", "query", "`true`: the counts of the inbox come too, now and whenever they change.", {"enum": ["true"]})
    stream: Part = {"text/event-stream": {"schema": {"type": "string", "description": "`id`, `event: message` and `data`: a Message."}}}
    return {
        "GET /v1/ws": by_client(
            "connect",
            "The WebSocket, subprotocol `notify.v1.json`; the token may also be the subprotocol `bearer.<token>`.",
            {101: ("The connection speaks WebSocket.", {})},
            (426,),
            parameters=(cursor, device, returned, counts),
        ),
        "GET /v1/sse": by_client(
            "stream",
            "Server-sent events.",
            {200: ("A stream without end.", stream)},
            parameters=(cursor, cursor_header, device, explicit, returned, counts),
        ),
        "GET /v1/poll": by_client(
            "poll",
            "Long polling: at once when something is pending, else after `wait`.",
            {200: ("What is pending; nothing when the time was up.", json_of("PollAnswer"))},
            parameters=(cursor, cursor_header, device, wait),
        ),
        "POST /v1/ack": by_client(
            "acknowledge",
            "Acknowledge what came over SSE or long polling.",
            {200: ("Acknowledged.", json_of("Acknowledged"))},
            (409,),
            body=json_of("Acknowledgement"),
        ),
        "POST /v1/nack": by_client(
            "refuse",
            "Refuse what came over SSE or long polling: no retry, to the dead letters.",
            {200: ("Among the dead letters, or settled before.", json_of("Refused"))},
            body=json_of("Refusal"),
        ),
        "GET /v1/heartbeat": by_client(
            "probe",
            "Tell that the client is there, and ask whether the engine takes the user as online.",
            {200: ("The user's presence.", json_of("Presence"))},
            parameters=(client, last_seq),
        ),
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    return {
        "Message": object_of("A message as every transport delivers it.", required=always(), **delivered()),
        "PollAnswer": object_of(
            "What is pending, in order. Presenting `last_event_id` in the next request acknowledges all of it.",
            required=("messages", "last_event_id", "resumed", "user"),
            messages={"type": "array", "items": ref("Message")},
            last_event_id={"type": "string", "description": "The cursor for the next request."},
            user={"type": "string", "description": "Whose messages these are."},
            resumed={"enum": ["new", "ok", "gap"], "description": "`gap`: the cursor given was not one of this mailbox."},
            early={
                "type": "array",
                "items": ref("Message"),
                "description": "Early copies, without `event_id`: acknowledge them by `ids`. Absent without any.",
            },
            gaps={
                "type": "array",
                "items": object_of("Messages that will not come.", required=("from", "to"), to=SEQ, **{"from": SEQ}),
                "description": "What was trimmed, replaced or has expired; absent without any.",
            },
            frames={
                "type": "array",
                "items": {"type": "object"},
                "description": "Frames of a WebSocket that concern no message, such as `part`. Absent without any.",
            },
        ),
        "Acknowledgement": {
            "type": "object",
            "description": "`seq` acknowledges everything up to it, `ids` just these messages.",
            "properties": {
                "seq": SEQ,
                "epoch": printable(
                    config, "Of `seq`: the one before the number in an `event_id`. With another one nothing is acknowledged."
                ),
                "ids": {"type": "array", "items": printable(config), "maxItems": config.items_max},
                "ts": TIME_MS,
            },
            "anyOf": [{"required": ["seq"]}, {"required": ["ids"], "properties": {"ids": {"minItems": 1}}}],
            "additionalProperties": False,
        },
        "Acknowledged": answer_of("Done.", acknowledged={"const": True}),
        "Refusal": {
            "type": "object",
            "description": "Messages that the client cannot handle, and why.",
            "properties": {
                "ids": {"type": "array", "items": printable(config), "minItems": 1, "maxItems": config.items_max},
                "reason": {"type": "string", "maxLength": REASON_CHARS_MAX},
            },
            "required": ["ids"],
            "additionalProperties": False,
        },
        "Refused": answer_of("Done.", nacked={"const": True}),
        "Presence": answer_of(
            "Whether the user is online: connected, or suspect since its last connection ended abnormally.",
            online={"type": "boolean"},
            state={"enum": ["connected", "suspect", "offline"]},
            seq={**SEQ, "title": "newest"},
        ),
    }
