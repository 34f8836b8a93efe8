"""HTTP errors as RFC 9457 problem details (`application/problem+json`).

A `Problem` is raised where the error is detected and becomes a response in `engine.http.error_responses`. `detail` is for people and may
quote what the client sent, but never a token.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from engine.errors import EngineError

RETRY_AFTER_S: Final = 1
"""Storage and shards are back within seconds, and a repeat under the same id is no duplicate."""

MEDIA_TYPE: Final = "application/problem+json"
REALM: Final = "engine"

# Problem types, where the status alone is not enough for a program. All others are `about:blank`.
ID_CONFLICT: Final = "urn:engine:problem:id-conflict"
ALREADY_FIRED: Final = "urn:engine:problem:already-fired"
INVALID_ITEMS: Final = "urn:engine:problem:invalid-items"
OVER_QUOTA: Final = "urn:engine:problem:over-quota"


class Problem(EngineError):
    """An HTTP error response.

    Args:
        detail: what is wrong with this request and what is allowed, for people.
        title: the kind of problem, by default the status phrase.
        type: a URI of the kind, for programs.
        headers: of the response, such as `Retry-After`.
        members: further members of the body, such as `errors`.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        title: str = "",
        type: str = "about:blank",
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title or HTTPStatus(status).phrase
        self.detail = detail
        self.type = type
        self.headers = dict(headers or {})
        self.members = members

    def body(self) -> dict[str, Any]:
        """The members of the response's JSON object."""
        return {"type": self.type, "title": self.title, "status": self.status, "detail": self.detail, **self.members}


def problem_response(problem: Problem) -> Response:
    """The response. It must not be cached: a repeat may succeed."""
    # ASCII with escapes: `detail` may quote a client's text, and a lone surrogate in it has no UTF-8 form.
    body = json.dumps(problem.body(), separators=(",", ":")).encode()
    return Response(body, problem.status, {"Cache-Control": "no-store", **problem.headers}, MEDIA_TYPE)


def bad_request(detail: str) -> Problem:
    """400: the request is malformed."""
    return Problem(400, detail)


def unauthorized(detail: str, *, presented: bool = True) -> Problem:
    """401 with the challenge of RFC 6750, section 3. `presented`: there was a token, and it is not valid."""
    challenge = f'Bearer realm="{REALM}"' + (', error="invalid_token"' if presented else "")
    return Problem(401, detail, headers={"WWW-Authenticate": challenge})


def forbidden(detail: str, *, scope: str = "") -> Problem:
    """403. `scope`: the one that the token lacks (RFC 6750, section 3.1)."""
    if not scope:
        return Problem(403, detail)
    return Problem(403, detail, headers={"WWW-Authenticate": f'Bearer realm="{REALM}", error="insufficient_scope", scope="{scope}"'})


def not_found(detail: str) -> Problem:
    """404."""
    return Problem(404, detail)


def method_not_allowed(allowed: Sequence[str]) -> Problem:
    """405 with `Allow`."""
    methods = ", ".join(allowed)
    return Problem(405, f"allowed here: {methods}", headers={"Allow": methods})


def conflict(detail: str, *, type: str = ID_CONFLICT, **members: Any) -> Problem:
    """409: the same id with another payload, or with `type=ALREADY_FIRED` a timer that has fired."""
    return Problem(409, detail, type=type, **members)


def content_too_large(detail: str, **members: Any) -> Problem:
    """413."""
    return Problem(413, detail, title="Content Too Large", **members)  # the phrase of RFC 9110; Python before 3.13 has another


def unsupported_media_type(detail: str, accepted: Sequence[str]) -> Problem:
    """415 with the accepted media types (RFC 9110, section 15.5.16)."""
    return Problem(415, detail, headers={"Accept": ", ".join(accepted)})


def unprocessable(detail: str, errors: Sequence[Mapping[str, Any]]) -> Problem:
    """422: well-formed, but not valid. Each error has `path` and `detail`, in a batch also `index`."""
    return Problem(422, detail, title="Unprocessable Content", type=INVALID_ITEMS, errors=list(errors))


def too_many_requests(detail: str, retry_after_s: int) -> Problem:
    """429: a limit is reached, nothing was accepted."""
    return Problem(429, detail, headers={"Retry-After": str(retry_after_s)})


def over_quota(quota: str, detail: str, retry_after_s: int) -> Problem:
    """429: a quota of the tenant is used up; `quota` is the name of its setting."""
    return Problem(429, detail, type=OVER_QUOTA, headers={"Retry-After": str(retry_after_s)}, quota=quota)


def unavailable(detail: str, retry_after_s: int) -> Problem:
    """503: storage or a shard does not answer, nothing was accepted."""
    return Problem(503, detail, headers={"Retry-After": str(retry_after_s)})


def retry_after_s(delay_ms: float) -> int:
    """`Retry-After` for a backlog of `delay_ms`: whole seconds (RFC 9110), spread so that rejected clients do not return all at once."""
    return whole_seconds(delay_ms * random.uniform(1.0, 1.5))


def whole_seconds(delay_ms: float) -> int:
    """The whole seconds of a `Retry-After`: at least one, and right on average."""
    seconds = delay_ms / 1000
    whole = int(seconds)
    return max(1, whole + (random.random() < seconds - whole))


def too_large(bytes_max: int) -> Problem:
    """413 for a body over its limit."""
    return content_too_large(f"a request body is at most {bytes_max} bytes")
