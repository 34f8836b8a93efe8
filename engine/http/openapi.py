"""The OpenAPI 3.1 description of the HTTP interface, written by hand for client developers.

A test compares it with the routes: every endpoint is described, and every described one exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine import __version__
from engine.config import Config
from engine.core.model.constants import SEQ_MAX
from engine.http.schemas import Schema, items_of, letter_id, printable, ref, schemas, topic_name, user_name

Part = dict[str, Any]

_PROBLEMS: dict[int, tuple[str, str]] = {
    400: ("BadRequest", "The request cannot be read."),
    401: ("Unauthorized", "No token, or one that is not good."),
    403: ("Forbidden", "The token lacks the scope, or the page's origin is not allowed."),
    404: ("NotFound", "There is no such thing."),
    408: ("RequestTimeout", "The body did not arrive in time."),
    409: ("Conflict", "It contradicts what happened before: the same id with another payload, or a timer that has fired."),
    413: ("ContentTooLarge", "More bytes or more items than allowed."),
    415: ("UnsupportedMediaType", "Another media type than those in `Accept`."),
    422: ("Unprocessable", "Readable, but against the rules: `errors` lists each bad item. Nothing was accepted."),
    426: ("UpgradeRequired", "This endpoint speaks WebSocket."),
    429: ("TooManyRequests", "A limit is reached; nothing was lost, repeat after `Retry-After` under the same ids."),
    503: ("Unavailable", "What is needed does not answer; repeat after `Retry-After` under the same ids."),
}
_HEADERS: dict[int, Part] = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}, "description": "RFC 6750."}},
    415: {"Accept": {"schema": {"type": "string"}}},
    429: {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}},
    503: {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}},
}
_CURSOR_TEXT = "The `event_id` of the last message handled, `<epoch>-<seq>`. Acknowledges everything up to it."


def document(config: Config, categories: Sequence[str]) -> Part:
    """The document that `GET /openapi.json` returns. `categories`: the names of those that are defined."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Notification engine",
            "version": __version__,
            "description": "Acknowledged, at-least-once notifications over WebSocket, SSE and long polling, under one cursor.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": "publishing"}, {"name": "contact policy"}, {"name": "receiving"}, {"name": "operating"}],
        "security": [{"bearer": []}, {"cookie": []}, {"query": []}],
        "paths": {
            **_publishing(config),
            **_subscribing(config),
            **_contact_policy(config),
            **_receiving(config),
            **_operating(),
            **_dead_letters(config),
        },
        "components": {
            "schemas": schemas(config, categories),
            "responses": {name: _problem_response(status, text) for status, (name, text) in _PROBLEMS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "notify_token"},
                "query": {"type": "apiKey", "in": "query", "name": "token"},
            },
        },
    }


def _problem_response(status: int, text: str) -> Part:
    response: Part = {"description": text, "content": {"application/problem+json": {"schema": ref("Problem")}}}
    if status in _HEADERS:
        response["headers"] = _HEADERS[status]
    return response


def _operation(
    name: str,
    tag: str,
    summary: str,
    answers: dict[int, tuple[str, Part]],
    problems: tuple[int, ...] = (),
    *,
    scope: str | None,
    parameters: tuple[Part, ...] = (),
    body: Part | None = None,
) -> Part:
    """One operation. `answers`: description and content by status. `scope`: what the token needs, None for no token at all."""
    problems = (*((401, 403) if scope else ()), *problems)
    made: Part = {
        "operationId": name,
        "tags": [tag],
        "summary": summary,
        "responses": {
            **{
                str(status): {"description": text} | ({"content": content} if content else {})
                for status, (text, content) in answers.items()
            },
            **{str(status): {"$ref": f"#/components/responses/{_PROBLEMS[status][0]}"} for status in problems},
        },
    }
    if scope:
        made["description"] = f"Needs the scope `{scope}`."
    else:
        made["security"] = []
    if parameters:
        made["parameters"] = list(parameters)
    if body is not None:
        made["requestBody"] = {"required": True, "content": body}
    return made


def _json(schema: str) -> Part:
    return {"application/json": {"schema": ref(schema)}}


def _parameter(name: str, place: str, text: str, schema: Schema | None = None, *, required: bool = False) -> Part:
    return {"name": name, "in": place, "required": required, "description": text, "schema": schema or {"type": "string"}}


def _publishing(config: Config) -> Part:
    body: Part = {
        "application/json": {
            "schema": {"oneOf": [ref("Notification"), items_of(config, ref("Notification"))]},
            "example": {"user": "ann", "type": "post.liked", "data": {"post": 7}},
        },
        "application/x-ndjson": {"schema": {"type": "string", "description": "One notification per line."}},
        "application/cloudevents+json": {"schema": ref("CloudEvent")},
        "application/cloudevents-batch+json": {"schema": items_of(config, ref("CloudEvent"))},
    }
    scheduled_id = _parameter("sid", "path", "The `scheduled_id` that publishing answered.", required=True)
    user = _parameter("user", "query", "Whose.", user_name(config), required=True)
    collapse = _parameter("collapse", "query", "Only those of this collapse key; all when left out.", printable(config))
    return {
        "/v1/notifications": {
            "post": _operation(
                "publish",
                "publishing",
                "Publish one or many notifications. All or none of a well-formed request is accepted; a 202 is on durable storage.",
                {202: ("Accepted.", _json("PublishAnswer"))},
                (400, 408, 409, 413, 415, 422, 429, 503),
                scope="publish",
                body=body,
            )
        },
        "/v1/events": {
            "post": _operation(
                "event",
                "publishing",
                "An event for the rules, which publish, schedule and cancel. Sending it again under its id changes nothing.",
                {202: ("What the rules made of it is on durable storage.", _json("EventAnswer"))},
                (400, 408, 409, 413, 422, 429, 503),
                scope="publish",
                body=_json("Event"),
            )
        },
        "/v1/scheduled": {
            "get": _operation(
                "listScheduled",
                "publishing",
                "The scheduled notifications of a user.",
                {200: ("They.", _json("ScheduledList"))},
                (400, 429, 503),
                scope="publish",
                parameters=(user, collapse),
            ),
            "delete": _operation(
                "cancelAllScheduled",
                "publishing",
                "Cancel the scheduled notifications of a user that have not fired.",
                {200: ("They will not be delivered.", _json("CancelledAll"))},
                (400, 429, 503),
                scope="publish",
                parameters=(user, collapse),
            ),
        },
        "/v1/scheduled/{sid}": {
            "parameters": [scheduled_id],
            "get": _operation(
                "inspectScheduled",
                "publishing",
                "One scheduled notification.",
                {200: ("It.", _json("Scheduled"))},
                (404, 409, 429, 503),
                scope="publish",
            ),
            "patch": _operation(
                "reschedule",
                "publishing",
                "Move it to another time.",
                {200: ("As it is now.", _json("Scheduled"))},
                (400, 404, 408, 409, 413, 422, 429, 503),
                scope="publish",
                body=_json("Schedule"),
            ),
            "delete": _operation(
                "cancelScheduled",
                "publishing",
                "Cancel it.",
                {200: ("Cancelled.", _json("Cancelled"))},
                (404, 409, 429, 503),
                scope="publish",
            ),
        },
    }


def _subscribing(config: Config) -> Part:
    topic = _parameter("topic", "path", "The topic; it may contain slashes.", topic_name(config), required=True)
    user = _parameter("user", "query", "Another user; needs the scope `publish` or `admin`. The bearer when left out.", user_name(config))
    answer = {200: ("The topics that the user is subscribed to now.", _json("Subscriptions"))}
    problems = (400, 429, 503)
    return {
        "/v1/subscriptions": {
            "get": _operation(
                "listSubscriptions",
                "receiving",
                "The topics a user is subscribed to.",
                answer,
                problems,
                scope="connect",
                parameters=(user,),
            ),
        },
        "/v1/subscriptions/{topic}": {
            "parameters": [topic],
            "put": _operation(
                "subscribe",
                "receiving",
                "Subscribe to a topic, from now on. The claim `topics` of the token, where there is one, must allow it.",
                answer,
                problems,
                scope="connect",
                parameters=(user,),
            ),
            "delete": _operation("unsubscribe", "receiving", "End a subscription.", answer, problems, scope="connect", parameters=(user,)),
        },
    }


def _contact_policy(config: Config) -> Part:
    user = _parameter("user", "path", "Whose.", user_name(config), required=True)
    names: Schema = items_of(config, printable(config))
    signals: Schema = {"oneOf": [ref("Signal"), items_of(config, ref("Signal")) | {"minItems": 0}]}
    answer = {200: ("The profile as it is kept.", _json("Profile"))}
    return {
        "/v1/users/{user}/profile": {
            "parameters": [user],
            "get": _operation(
                "getProfile",
                "contact policy",
                "What a user wants. The user's own token may ask, or one with the scope `publish` or `admin`.",
                answer,
                (404, 429, 503),
                scope="connect",
            ),
            "put": _operation(
                "setProfile",
                "contact policy",
                "Keep what a user wants, in place of what was kept; durable with the answer. The scope `admin` will do as well.",
                answer,
                (404, 408, 413, 422, 429, 503),
                scope="publish",
                body=_json("Profile"),
            ),
            "delete": _operation(
                "forgetProfile",
                "contact policy",
                "Forget it: the user wants nothing in particular.",
                {204: ("Forgotten.", {})},
                (404, 429, 503),
                scope="publish",
            ),
        },
        "/v1/users/{user}": {
            "parameters": [user],
            "delete": _operation(
                "eraseUser",
                "contact policy",
                "Erase a user: messages, timers, profile, subscriptions, timeline, entries in streams for other systems. Connections are "
                "closed with 4403. After a 503 repeat it: nothing of the user is left only with the 204.",
                {204: ("Nothing of the user is left.", {})},
                (404, 429, 503),
                scope="admin",
            ),
        },
        "/v1/users/{user}/messages/{message}": {
            "parameters": [user, _parameter("message", "path", "Its id.", printable(config), required=True)],
            "get": _operation(
                "messageTimeline",
                "contact policy",
                "What is still known of a message. The user's own token may ask, or one with the scope `publish` or `admin`.",
                {200: ("Where it is, and what happened to it.", _json("Timeline"))},
                (404, 429, 503),
                scope="connect",
            ),
        },
        "/v1/signals": {
            "post": _operation(
                "countSignals",
                "publishing",
                "Signals that only count, such as views: merged by name and added up in storage about a second later, each once.",
                {202: ("Counted here; an edge that dies may lose its last second.", _json("SignalsAnswer"))},
                (400, 408, 413, 422, 429, 503),
                scope="publish",
                body={"application/json": {"schema": signals}},
            ),
            "get": _operation(
                "sumsOfSignals",
                "publishing",
                "What signals sum up to in storage.",
                {200: ("By name; 0 for what never came.", _json("SignalSums"))},
                (400, 429, 503),
                scope="publish",
                parameters=(_parameter("name", "query", "Of a signal; may be given many times.", names, required=True),),
            ),
        },
        "/v1/explain": {
            "post": _operation(
                "explain",
                "contact policy",
                "What would become of notifications now, and why. Changes nothing.",
                {200: ("One result for each user of each item.", _json("ExplainAnswer"))},
                (400, 408, 413, 415, 422, 429, 503),
                scope="publish",
                body={"application/json": {"schema": {"oneOf": [ref("Notification"), items_of(config, ref("Notification"))]}}},
            )
        },
    }


def _receiving(config: Config) -> Part:
    cursor = _parameter("last_event_id", "query", _CURSOR_TEXT)
    cursor_header = _parameter("Last-Event-ID", "header", f"{_CURSOR_TEXT} Counts more than the query parameter.")
    device = _parameter("device", "query", f"The client's name for itself, of which {config.id_chars_max} characters are kept.")
    wait = _parameter("wait", "query", "Seconds to wait for a message.", {"type": "number", "minimum": 0, "default": 25})
    explicit = _parameter("ack", "query", "`explicit`: unacknowledged messages are sent again on the same stream.", {"enum": ["explicit"]})
    client = _parameter("X-Client-ID", "header", f"The client's name for itself, of which {config.id_chars_max} characters are kept.")
    number: Schema = {"type": "integer", "minimum": 0, "maximum": SEQ_MAX}
    last_seq = _parameter("X-Last-Seq", "header", "The last sequence number the client has.", number)
    stream: Part = {"text/event-stream": {"schema": {"type": "string", "description": "`id`, `event: message` and `data`: a Message."}}}
    return {
        "/v1/ws": {
            "get": _operation(
                "connect",
                "receiving",
                "The WebSocket, subprotocol `notify.v1.json`; the token may also be the subprotocol `bearer.<token>`.",
                {101: ("The connection speaks WebSocket.", {})},
                (400, 426, 429, 503),
                scope="connect",
                parameters=(cursor, device),
            )
        },
        "/v1/sse": {
            "get": _operation(
                "stream",
                "receiving",
                "Server-sent events.",
                {200: ("A stream without end.", stream)},
                (429, 503),
                scope="connect",
                parameters=(cursor, cursor_header, device, explicit),
            )
        },
        "/v1/poll": {
            "get": _operation(
                "poll",
                "receiving",
                "Long polling: at once when something is pending, else after `wait`.",
                {200: ("What is pending; nothing when the time was up.", _json("PollAnswer"))},
                (400, 429, 503),
                scope="connect",
                parameters=(cursor, cursor_header, device, wait),
            )
        },
        "/v1/ack": {
            "post": _operation(
                "acknowledge",
                "receiving",
                "Acknowledge what came over SSE or long polling.",
                {200: ("Acknowledged.", _json("Acknowledged"))},
                (400, 408, 409, 413, 422, 429, 503),
                scope="connect",
                body=_json("Acknowledgement"),
            )
        },
        "/v1/heartbeat": {
            "get": _operation(
                "probe",
                "receiving",
                "Tell that the client is there, and ask whether the engine takes the user as online.",
                {200: ("The user's presence.", _json("Presence"))},
                (400, 429, 503),
                scope="connect",
                parameters=(client, last_seq),
            )
        },
    }


def _operating() -> Part:
    def public(name: str, summary: str, media_type: str, problems: tuple[int, ...] = (), schema: Part | None = None) -> Part:
        content = {media_type: {"schema": schema or {"type": "string"}}}
        return {"get": _operation(name, "operating", summary, {200: ("As said.", content)}, problems, scope=None)}

    text: Part = {"schema": {"type": "string"}}
    return {
        "/v1/status": {
            "get": _operation(
                "status",
                "operating",
                "For the scope `operator` every actor and the totals; for `admin` the figures of its tenant.",
                {200: ("Now.", {"application/json": {"schema": {"oneOf": [ref("Status"), ref("TenantStatus")]}}})},
                (429, 503),
                scope="admin",
            )
        },
        "/v1/tokens/revoke": {
            "post": _operation(
                "revokeTokens",
                "operating",
                "Revoke a token, or the tokens of a user, of the bearer's tenant. Repeating it changes nothing.",
                {200: ("Durable, in force on this edge and on every other one within a second.", _json("Revoked"))},
                (400, 408, 413, 422, 429, 503),
                scope="admin",
                body=_json("Revocation"),
            )
        },
        "/v1/edges/{edge}/drain": {
            "parameters": [_parameter("edge", "path", "Its name, such as `edge-0`.", required=True)],
            "post": _operation(
                "drainEdge",
                "operating",
                "Let an edge leave its clients to the other edges, and start anew.",
                {202: ("It has begun.", _json("Drain"))},
                (404, 409, 429, 503),
                scope="operator",
            ),
        },
        "/v1/scale": {
            "post": _operation(
                "scale",
                "operating",
                "Run with other numbers of actors, while the engine serves. Repeating it changes nothing.",
                {202: ("Stored, and begun.", _json("Scaling"))},
                (400, 408, 413, 422, 429, 503),
                scope="operator",
                body=_json("Numbers"),
            ),
        },
        "/v1/rebalance": {
            "post": _operation(
                "rebalance",
                "operating",
                "Move slots from busy shards to idle ones.",
                {202: ("Stored, and begun.", _json("Scaling"))},
                (429, 503),
                scope="operator",
            ),
        },
        "/v1/upgrade": {
            "post": _operation(
                "upgrade",
                "operating",
                "Replace every process by one that runs the code of its node then, one after another.",
                {202: ("Stored, and begun.", _json("Scaling"))},
                (429, 503),
                scope="operator",
            ),
        },
        "/healthz": public("health", "This process is up.", "application/json", schema=ref("Health")),
        "/readyz": public("ready", "Storage, shards and schedulers answer.", "application/json", (503,), ref("Readiness")),
        "/metrics": {
            "get": _operation(
                "metrics",
                "operating",
                "Figures for Prometheus, in its text format or, where `Accept` prefers it, OpenMetrics 1.0.",
                {200: ("As said.", {"text/plain": text, "application/openmetrics-text": text})},
                scope=None,
            )
        },
        "/openapi.json": public("openapi", "This document.", "application/json", schema={"type": "object"}),
        "/": public("demo", "A live demo page.", "text/html"),
        "/client.js": public("client", "The browser client, an ES module.", "text/javascript"),
    }


def _dead_letters(config: Config) -> Part:
    tenant = _parameter(
        "tenant",
        "query",
        "Whose; the bearer's when left out. Another one needs the scope `operator`.",
        {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
    )
    limit: Schema = {"type": "integer", "minimum": 1, "maximum": config.dead_letters_page_max, "default": config.dead_letters_page_max}
    chosen: Part = {"scope": "admin", "parameters": (tenant,), "body": _json("DeadLetterChoice")}
    return {
        "/v1/dead-letters": {
            "get": _operation(
                "listDeadLetters",
                "operating",
                "Messages that clients refused. A page may have fewer than `limit`, or none, and be followed by others.",
                {200: ("Some of them.", _json("DeadLetterPage"))},
                (400, 429, 503),
                scope="admin",
                parameters=(
                    tenant,
                    _parameter("user", "query", "Only those of this user.", user_name(config)),
                    _parameter("order", "query", "Which come first.", {"enum": ["newest", "oldest"], "default": "newest"}),
                    _parameter("after", "query", "The `after` of the page before.", letter_id("An id of a dead letter.")),
                    _parameter("limit", "query", "How many at most.", limit),
                ),
            )
        },
        "/v1/dead-letters/{letter}": {
            "parameters": [_parameter("letter", "path", "Its `letter`.", letter_id("An id of a dead letter."), required=True)],
            "get": _operation(
                "deadLetter",
                "operating",
                "A dead letter with its message.",
                {200: ("It.", _json("DeadLetter"))},
                (400, 404, 429, 503),
                scope="admin",
                parameters=(tenant,),
            ),
        },
        "/v1/dead-letters/redrive": {
            "post": _operation(
                "redriveDeadLetters",
                "operating",
                "Publish dead letters again, each under an id derived from it, and remove what is accepted. Repeating it delivers once.",
                {200: ("What became of each.", _json("Redriven"))},
                (400, 408, 409, 413, 422, 429, 503),
                **chosen,
            )
        },
        "/v1/dead-letters/drop": {
            "post": _operation(
                "dropDeadLetters",
                "operating",
                "Delete dead letters. Repeating it changes nothing.",
                {200: ("They are gone.", _json("Dropped"))},
                (400, 408, 413, 422, 429, 503),
                **chosen,
            )
        },
    }
