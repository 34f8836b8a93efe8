"""One operation of the OpenAPI description: its parameters, its answers, and the problems it may be refused with."""

from __future__ import annotations

from typing import Any, Final

from engine.config import Config
from engine.http.description.json_schema import Schema, ref, user_name

Part = dict[str, Any]

PROBLEMS: Final[dict[int, tuple[str, str]]] = {
    400: ("BadRequest", "The request cannot be read."),
    401: ("Unauthorized", "No token, or one that is not good."),
    403: ("Forbidden", "The token lacks the scope, or the page's origin is not allowed."),
    404: ("NotFound", "There is no such thing."),
    408: ("RequestTimeout", "The body did not arrive in time."),
    409: ("Conflict", "It contradicts what happened before: the same id with another payload, or a timer that has fired."),
    412: ("PreconditionFailed", "Somebody else has changed it meanwhile: read it, and decide again."),
    413: ("ContentTooLarge", "More bytes or more items than allowed."),
    415: ("UnsupportedMediaType", "Another media type than those in `Accept`."),
    422: ("Unprocessable", "Readable, but against the rules: `errors` lists each bad item. Nothing was accepted."),
    426: ("UpgradeRequired", "This endpoint speaks WebSocket."),
    428: ("PreconditionRequired", "`If-Match` is needed."),
    429: ("TooManyRequests", "A limit is reached; nothing was lost, repeat after `Retry-After` under the same ids."),
    431: ("RequestHeaderFieldsTooLarge", "The head has more bytes or headers than allowed."),
    503: ("Unavailable", "What is needed does not answer; repeat after `Retry-After` under the same ids."),
}
_PROBLEMS_OF_ALL: Final = (401, 403, 429, 431, 503)
_PROBLEMS_OF_BODIES: Final = (400, 408, 413, 422)
_HEADERS: dict[int, Part] = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}, "description": "RFC 6750."}},
    415: {"Accept": {"schema": {"type": "string"}}},
    429: {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}},
    503: {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}},
}


def problem_response(status: int, text: str) -> Part:
    """The answer that every operation refers to."""
    response: Part = {"description": text, "content": {"application/problem+json": {"schema": ref("Problem")}}}
    if status in _HEADERS:
        response["headers"] = _HEADERS[status]
    return response


def operation(
    tag: str,
    scope: str | None,
    name: str,
    summary: str,
    answers: dict[int, tuple[str, Part]],
    problems: tuple[int, ...] = (),
    *,
    parameters: tuple[Part, ...] = (),
    body: Part | None = None,
) -> Part:
    """One operation.

    Args:
        scope: what the token needs, None for no token at all.
        answers: description and content by status.
        problems: those beside `_PROBLEMS_OF_ALL` and, where there is something to read in the request, `_PROBLEMS_OF_BODIES` or 400.
    """
    if scope:
        read = _PROBLEMS_OF_BODIES if body is not None else (400,) if parameters else ()
        problems = (*_PROBLEMS_OF_ALL, *read, *problems)
    made: Part = {
        "operationId": name,
        "tags": [tag],
        "summary": summary,
        "responses": {
            **{
                str(status): {"description": text} | ({"content": content} if content else {})
                for status, (text, content) in answers.items()
            },
            **{str(status): {"$ref": f"#/components/responses/{PROBLEMS[status][0]}"} for status in problems},
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


def json_of(schema: str) -> Part:
    """A body of this schema."""
    return {"application/json": {"schema": ref(schema)}}


def parameter(name: str, place: str, text: str, schema: Schema | None = None, *, required: bool = False) -> Part:
    """A parameter; `place` is `query`, `path` or `header`. Text, unless a schema says otherwise."""
    return {"name": name, "in": place, "required": required, "description": text, "schema": schema or {"type": "string"}}


TENANT = parameter(
    "tenant",
    "query",
    "Whose; the bearer's when left out. Another one needs the scope `operator`.",
    {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
)


def whose(config: Config) -> Part:
    """The parameter `user` of what users ask for themselves."""
    return parameter("user", "query", "Another user; needs the scope `publish` or `admin`. The bearer when left out.", user_name(config))


def user_in_path(config: Config) -> Part:
    """The parameter `user` of what is about the user that the path names."""
    return parameter("user", "path", "Whose.", user_name(config), required=True)
