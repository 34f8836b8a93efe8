"""Dead letters: messages that clients refused, and actions that were given up."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.config import Config
from engine.core.model.constants import PRIORITIES
from engine.http.description.json_schema import SEQ, TIME_MS, Schema, answer_of, closed_object, object_of, ref, user_name
from engine.http.description.operation import TENANT, Part, json_of, operation, parameter

by_admin = partial(operation, "operating", "admin")


def paths(config: Config) -> Part:
    """See `Description`."""
    limit: Schema = {"type": "integer", "minimum": 1, "maximum": config.dead_letters_page_max, "default": config.dead_letters_page_max}
    return {
        "GET /v1/dead-letters": by_admin(
            "listDeadLetters",
            "Messages that clients refused. A page may have fewer than `limit`, or none, and be followed by others.",
            {200: ("Some of them.", json_of("DeadLetterPage"))},
            parameters=(
                TENANT,
                parameter("user", "query", "Only those of this user.", user_name(config)),
                parameter("order", "query", "Which come first.", {"enum": ["newest", "oldest"], "default": "newest"}),
                parameter("after", "query", "The `after` of the page before.", _letter_id("An id of a dead letter.")),
                parameter("limit", "query", "How many at most.", limit),
            ),
        ),
        "/v1/dead-letters/{letter}": [parameter("letter", "path", "Its `letter`.", _letter_id("An id of a dead letter."), required=True)],
        "GET /v1/dead-letters/{letter}": by_admin(
            "deadLetter", "A dead letter with its message.", {200: ("It.", json_of("DeadLetter"))}, (404,), parameters=(TENANT,)
        ),
        "POST /v1/dead-letters/redrive": by_admin(
            "redriveDeadLetters",
            "Publish dead letters again, each under an id derived from it, and remove what is accepted. Repeating it delivers once.",
            {200: ("What became of each.", json_of("Redriven"))},
            (409,),
            parameters=(TENANT,),
            body=json_of("DeadLetterChoice"),
        ),
        "POST /v1/dead-letters/drop": by_admin(
            "dropDeadLetters",
            "Delete dead letters. Repeating it changes nothing.",
            {200: ("They are gone.", json_of("Dropped"))},
            parameters=(TENANT,),
            body=json_of("DeadLetterChoice"),
        ),
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    return {
        "DeadLetterPage": object_of(
            "Dead letters of a tenant, and how many there are.",
            required=("tenant", "total", "dead_letters"),
            tenant={"type": "string"},
            total={"type": "integer", "minimum": 0},
            dead_letters={"type": "array", "items": ref("DeadLetterSummary"), "maxItems": config.dead_letters_page_max},
            after=_letter_id("Where the next page begins; left out when there is none."),
        ),
        "DeadLetterSummary": _dead_letter("A message that a client refused, or whose action was given up."),
        "DeadLetter": _dead_letter(
            "A message that a client refused, or whose action was given up, with its members.",
            notification={"type": "object", "description": "The message as clients were sent it, without `seq`, `event_id` and `attempt`."},
        ),
        "DeadLetterChoice": closed_object(
            "Some dead letters.",
            required=("letters",),
            letters={"type": "array", "items": _letter_id("Its `letter`."), "minItems": 1, "maxItems": config.dead_letters_page_max},
        ),
        "Redriven": answer_of(
            "What became of each dead letter, oldest first.",
            results={
                "type": "array",
                "items": object_of(
                    "Of one. It is removed with all but `suppressed` and `unreadable`.",
                    required=("letter", "status"),
                    letter={"type": "string"},
                    status={"enum": ["accepted", "scheduled", "merged", "duplicate", "suppressed", "gone", "unreadable"]},
                    id={"type": "string", "description": "Under which it is published."},
                    user={"type": "string"},
                    seq=SEQ,
                    scheduled_id={"type": "string"},
                    scheduled_at=TIME_MS,
                    reason={"type": "string"},
                ),
            },
        ),
        "Dropped": answer_of("How many there were.", dropped={"type": "integer", "minimum": 0}),
    }


def _letter_id(description: str) -> Schema:
    return {"type": "string", "pattern": "^[0-9]{1,15}-[0-9]{1,10}$", "description": description}


def _dead_letter(description: str, **more: Schema) -> Schema:
    return object_of(
        description,
        required=("letter", "at", "user", "id", "seq", "type", "priority", "reason", "attempts", *more),
        letter=_letter_id("Its own id."),
        at={**TIME_MS, "description": "When it was refused, ms since the epoch."},
        user={"type": "string"},
        id={"type": "string", "description": "Of the message."},
        seq=SEQ,
        type={"type": "string"},
        priority={"enum": list(PRIORITIES)},
        reason={"type": "string", "description": "What the client gave."},
        attempts={"type": "integer", "minimum": 0, "description": "How often it had been sent before."},
        action={
            "type": "string",
            "description": "Of an action that was given up: what was to be called in place of delivering the message.",
        },
        **more,
    )
