"""Messages that grow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from engine.config import Config
from engine.core.model.constants import SEQ_MAX
from engine.features.growing.core import BEHIND, ENDED, FULL, IDLE, OK, PARTS_MAX, REPLACED
from engine.http.description.json_schema import Schema, answer_of, closed_object, object_of, printable, user_name
from engine.http.description.member_schemas import sent
from engine.http.description.operation import Part, json_of, operation, parameter, whose

MEMBERS: Final = ("user", "type", "id", "priority", "actor", "target", "context", "url", "image", "data", "ttl", "category")
"""What a message that grows may have of the members of a notification."""

_NUMBER: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": SEQ_MAX}
_SIZE: Final[Schema] = {**_NUMBER, "description": "Bytes of the text in UTF-8."}
_GENERATION: Final[Schema] = {**_NUMBER, "description": "Grows when another writer begins the message anew."}

by_client = partial(operation, "receiving", "connect")
by_publisher = partial(operation, "publishing", "publish")


def paths(config: Config) -> Part:
    """See `Description`."""
    id = parameter("id", "path", "Id of the message.", printable(config), required=True)
    generation = parameter("generation", "query", "Of the text that the reader has: of another one it gets all.", _NUMBER)
    offset = parameter("offset", "query", "Bytes of the text that the reader has.", _NUMBER)
    wait = parameter(
        "wait",
        "query",
        f"Wait so many seconds for more text, at most {config.poll_wait_s_max}; without it the request does not wait.",
        {"type": "number", "minimum": 0},
    )
    return {
        "POST /v1/growing": by_publisher(
            "grow",
            "Begin a message that grows. The same writer finds its own; another writer begins it anew.",
            {200: ("It grows, or it has ended (`state`).", json_of("Growth"))},
            body=json_of("NewGrowth"),
        ),
        "GET /v1/growing": by_client(
            "growing",
            "The messages of the user that grow.",
            {200: ("All of them, without their text.", json_of("GrowingMessages"))},
            parameters=(whose(config),),
        ),
        "POST /v1/parts": by_publisher(
            "addParts",
            "Add parts to messages that grow. A repeat of a part changes nothing.",
            {200: ("What became of each, in their order.", json_of("PartResults"))},
            body=json_of("Parts"),
        ),
        "/v1/growing/{id}": [id],
        "GET /v1/growing/{id}": by_client(
            "grown",
            "A message that grows, or grew within the last hour: its text from an offset on.",
            {200: ("As soon as there is text, or at the end of `wait`.", json_of("GrownText"))},
            (404,),
            parameters=(whose(config), generation, offset, wait),
        ),
        "/v1/growing/{id}/end": [id],
        "POST /v1/growing/{id}/end": by_publisher(
            "endGrowth",
            "Publish the message with its whole text.",
            {200: ("It is published; durable.", json_of("GrowthEnd"))},
            (404, 409),
            body=json_of("EndOfGrowth"),
        ),
    }


def schemas(config: Config, categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    chars: Schema = {"type": "string", "maxLength": config.growing_progress_chars_max}
    message = sent(config, categories, *MEMBERS)
    message["data"] = {
        "type": "object",
        "description": f"An object of at most {config.context_bytes_max} bytes, to which the text is added as `text`, a list as `items`.",
        "not": {"anyOf": [{"required": [name]} for name in ("text", "items", "progress", "ended")]},
    }
    ending = {"type": {**message["type"], "description": "In place of the type with which it began."}, "data": {**message["data"]}}
    ending["data"]["description"] = f"An object of at most {config.context_bytes_max} bytes, whose members are added to `data`."
    why: Schema = {"enum": [IDLE], "description": "Its publisher fell silent."}
    state: Schema = {"enum": ["growing", "ended"]}
    shown: dict[str, Schema] = {
        "id": {"type": "string"},
        "state": state,
        "generation": _GENERATION,
        "size": _SIZE,
        "list": {"type": "boolean"},
        "message": {"type": "object", "description": "Its members, without the text."},
        "progress": {"type": "object"},
        "ended": why,
    }
    optional = ("progress", "ended")
    return {
        "NewGrowth": closed_object(
            "A message that grows.",
            required=("writer", "message"),
            writer=printable(config, "The publisher's name for this run: unguessable text, the same for its repeats."),
            message=closed_object("Members of a notification.", required=("type", "user"), **message),
            list={"type": "boolean", "description": "The text is a list of JSON values, one a line."},
            idle=closed_object("What changes of it when its publisher falls silent.", required=(), **ending),
        ),
        "Growth": answer_of(
            "Where the publisher goes on.",
            optional=("ended", "type"),
            ended=why,
            type={"type": "string", "description": "Of a message that ended: the type that its end named."},
            id={"type": "string"},
            state={"enum": [OK, ENDED]},
            generation=_GENERATION,
            have=_SIZE,
            stored=_SIZE,
        ),
        "Progress": closed_object(
            "How far the work is.", value={"type": ["number", "null"], "minimum": 0, "maximum": 1}, text=chars, step=chars
        ),
        "Parts": closed_object(
            "Parts of any messages that grow.",
            required=("parts",),
            parts={
                "type": "array",
                "maxItems": PARTS_MAX,
                "items": closed_object(
                    "A part.",
                    required=("user", "id", "generation", "offset"),
                    user={"type": "string"},
                    id={"type": "string"},
                    generation=_GENERATION,
                    offset={**_NUMBER, "description": "Bytes of the text before this part."},
                    text={"type": "string"},
                    progress={"$ref": "#/components/schemas/Progress"},
                ),
            },
        ),
        "PartResults": answer_of(
            "What became of each part.",
            parts={
                "type": "array",
                "items": answer_of(
                    f"`{BEHIND}`: send again from `have`; `{FULL}`: the text is too long; `{REPLACED}`: another writer has begun it anew.",
                    state={"enum": [OK, BEHIND, FULL, ENDED, REPLACED]},
                    have=_SIZE,
                    stored={**_SIZE, "description": "So many of them outlive a crash of the edge."},
                ),
            },
        ),
        "EndOfGrowth": closed_object(
            "The end of a message that grows.",
            required=("user", "generation", "size"),
            user=user_name(config),
            generation=_GENERATION,
            size={**_SIZE, "description": "Of the whole text: 409 with `have` when the engine has less."},
            progress={"$ref": "#/components/schemas/Progress"},
            **ending,
        ),
        "GrowthEnd": object_of(
            "The end.",
            required=("id", "state"),
            id={"type": "string"},
            state={"enum": [ENDED]},
            seq=_NUMBER,
            status={"type": "string", "description": "Of the message, as of a publish request; absent for one that had ended."},
            ended=why,
        ),
        "GrowingMessages": answer_of("All of them.", growing={"type": "array", "items": answer_of("One.", optional=optional, **shown)}),
        "GrownText": answer_of(
            "The text from `offset` on, which is that of the request, 0 for another generation, or the beginning of its character.",
            optional=optional,
            **shown,
            offset=_SIZE,
            text={"type": "string"},
        ),
    }
