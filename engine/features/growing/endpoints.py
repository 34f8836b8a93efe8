"""`/v1/growing` and `/v1/parts`: begin a message that grows, add to it, end it, and read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.api.json_bodies import decode_body
from engine.api.publish_endpoint import drafts_of
from engine.auth.tokens import Principal
from engine.config import Config
from engine.core.model.constants import SEQ_MAX
from engine.core.model.names import is_id, is_user
from engine.core.model.routing import mailbox_key
from engine.errors import Invalid
from engine.features.growing import description
from engine.features.growing.core import IDLE, PARTS_MAX, Head
from engine.features.growing.growing import Growing, GrownPart
from engine.features.growing.store import GrowingStore, StoredGrowth
from engine.gateway.gateway import Gateway
from engine.http.endpoint_table import EndpointTable, json_answer, route, without_head
from engine.http.problems import Problem, bad_request, unprocessable
from engine.publish import media_types
from engine.publish.drafts import Draft
from engine.publish.media_types import Content
from engine.store.lua import Replicas

_Whole = int | float
"""A number that JSON may write with a fraction of zero: `whole` checks it."""


class _Ending(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """What changes of a message when it ends."""

    type: str | UnsetType = UNSET
    data: Raw | UnsetType = UNSET


class _Begin(Struct, forbid_unknown_fields=True, gc=False):
    """The body of POST /v1/growing."""

    writer: str
    message: dict[str, Raw]
    list: bool = False
    idle: _Ending | UnsetType = UNSET


class _Progress(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """How far the work is: 0 to 1, or not known; a text, and the step that it is at."""

    value: float | None = None
    text: str = ""
    step: str = ""


class _Part(Struct, forbid_unknown_fields=True, gc=False):
    """One of the parts of POST /v1/parts."""

    user: str
    id: str
    generation: _Whole
    offset: _Whole
    text: str = ""
    progress: _Progress | UnsetType = UNSET


class _Parts(Struct, forbid_unknown_fields=True, gc=False):
    """The body of POST /v1/parts."""

    parts: list[_Part]


class _End(_Ending, forbid_unknown_fields=True, gc=False, kw_only=True):
    """The body of POST /v1/growing/{id}/end."""

    user: str
    generation: _Whole
    size: _Whole
    progress: _Progress | UnsetType = UNSET


_BEGIN: Final = msgspec.json.Decoder(_Begin)
_PARTS: Final = msgspec.json.Decoder(_Parts)
_END: Final = msgspec.json.Decoder(_End)
_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
_ANY_TYPE: Final = "any"
"""Where the type of a message is not known, and was checked before."""
_encode: Final = msgspec.json.Encoder().encode


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    return feature_of(ports.config, ports.gateway, GrowingStore(ports.stores, ports.config, Replicas.wanted(ports.config)))


def feature_of(config: Config, gateway: Gateway, store: GrowingStore) -> EdgeFeature:
    """The feature, with this storage."""
    growing = Growing(config, gateway, store)
    gateway.kept_of_user["growing"] = growing.kept_rows
    gateway.erase_of_user["growing"] = store.erase
    return EdgeFeature("growing", lambda access: table(access, growing), growing.run, growing.drain, stats=growing.stats)


def table(access: Access, growing: Growing) -> EndpointTable:
    """The endpoints."""
    config, gateway = access.config, access.gateway

    async def begin(request: Request) -> Response:
        """`POST /v1/growing`."""
        principal = access.authenticate(request, "publish")
        asked = decode_body(_BEGIN, await access.body(request), _Begin)
        gateway.check_room(principal.tenant)
        try:
            user, id, head = _head_of(asked, principal, gateway, config)
        except Invalid as error:
            raise media_types.unacceptable(error) from None
        state, growth, (reason, ending) = await growing.begin(mailbox_key(principal.tenant, user), id, asked.writer, head)
        answer = {"id": id, "state": state, "generation": growth.generation, "have": growth.size, "stored": growth.stored}
        kind = _MEMBERS.decode(ending).get("type") if ending else None
        return json_answer(answer | ({"ended": reason} if reason else {}) | ({} if kind is None else {"type": kind}))

    async def take(request: Request) -> Response:
        """`POST /v1/parts`."""
        principal = access.authenticate(request, "publish")
        asked = decode_body(_PARTS, await access.body(request), _Parts)
        gateway.check_room(principal.tenant)
        prefix = mailbox_key(principal.tenant, "")
        try:
            if len(asked.parts) > PARTS_MAX:
                raise Invalid(f"at most {PARTS_MAX} parts", "$.parts")
            parts = [_part_of(part, index, prefix, config) for index, part in enumerate(asked.parts)]
        except Invalid as error:
            raise media_types.unacceptable(error) from None
        return json_answer({"parts": await growing.take(parts)})

    async def end(request: Request) -> Response:
        """`POST /v1/growing/{id}/end`."""
        principal = access.authenticate(request, "publish")
        asked = decode_body(_END, await access.body(request), _End)
        try:
            if not is_user(asked.user, config.id_chars_max):
                raise Invalid(f"text of 1 to {config.id_chars_max} characters without control characters", "$.user")
            generation, size = _whole(asked.generation, "$.generation"), _whole(asked.size, "$.size")
            ending = _ending_of(asked, {"user": asked.user, "type": _ANY_TYPE}, "$", principal, gateway, config)
            progress = b"" if asked.progress is UNSET else _progress_of(asked.progress, "$.progress", config)
        except Invalid as error:
            raise media_types.unacceptable(error) from None
        id = request.path_params["id"]
        result = await growing.end(mailbox_key(principal.tenant, asked.user), id, generation, size, ending, progress)
        answer = {"id": id, "state": "ended"}
        if isinstance(result, str):
            return json_answer(answer | ({"ended": result} if result == IDLE else {}))
        return json_answer({**answer, "seq": result.seq, "status": result.status})

    async def look(request: Request) -> Response:
        """`GET /v1/growing/{id}?user=&generation=&offset=&wait=`: without `wait` it does not wait."""
        _, key, _ = access.subscriber(request)
        generation, offset = _number(request, "generation"), _number(request, "offset")
        wait_s = access.wait_s(request) if "wait" in request.query_params else 0.0
        id = request.path_params["id"]
        stored, begins = await growing.look(key, id, generation, offset, wait_s)
        access.confirm(request)
        text = stored.text[begins:].decode(errors="replace")
        return json_answer({**_shown(id, stored), "offset": begins, "text": text})

    async def listed(request: Request) -> Response:
        """`GET /v1/growing?user=`."""
        _, key, _ = access.subscriber(request)
        found = await growing.all_of(key)
        return json_answer({"growing": [_shown(id, stored) for id, stored in found]})

    routes = [
        route("/v1/growing", POST=begin, GET=listed),
        without_head(route("/v1/growing/{id:segment}", GET=look)),
        route("/v1/growing/{id:segment}/end", POST=end),
        route("/v1/parts", POST=take),
    ]
    return EndpointTable(routes, description)


def _head_of(asked: _Begin, principal: Principal, gateway: Gateway, config: Config) -> tuple[str, str, Head]:
    """User, id and head of a message that begins. Raises Invalid, Problem."""
    if not is_id(asked.writer, config.id_chars_max):
        raise Invalid(f"printable text of 1 to {config.id_chars_max} characters", "$.writer")
    members = dict(asked.message)
    for name in members:
        if name not in description.MEMBERS:
            raise Invalid(f"a message that grows has only {', '.join(description.MEMBERS)}", f"$.message.{name}")
    _check_data(members.get("data", UNSET), "$.message.data", config)
    if "id" not in members:
        members["id"] = Raw(_encode(gateway.shard_client.new_id()))
    item = _encode(members)
    draft = _checked(item, "$.message", principal, gateway, config)
    idle = b"" if asked.idle is UNSET else _ending_of(asked.idle, members, "$.idle", principal, gateway, config)
    return draft.user, draft.envelope.id, Head(item, draft.envelope.body, asked.list, idle)


def _ending_of(asked: _Ending, members: Mapping[str, Any], place: str, principal: Principal, gateway: Gateway, config: Config) -> bytes:
    """The ending of a message with these members, in JSON. A message that is closed must be one that can be published: it is checked here.

    Raises Invalid, Problem.
    """
    if asked.type is UNSET and asked.data is UNSET:
        return b""
    _check_data(asked.data, f"{place}.data", config)
    ending = _encode(_Ending(asked.type, asked.data))
    _checked(_encode({**members, **_MEMBERS.decode(ending)}), place, principal, gateway, config)
    return ending


def _checked(item: bytes, place: str, principal: Principal, gateway: Gateway, config: Config) -> Draft:
    """The only draft of an item, which is at this place of the body. Raises Problem."""
    try:
        (draft,) = drafts_of(gateway, config, item, Content(), principal, gateway.category_book.in_use(principal.tenant))
    except Problem as problem:
        if problem.status != 422:
            raise
        errors = [{**error, "path": place + error.get("path", "$")[1:]} for error in problem.members.get("errors", ())]
        raise unprocessable(f"{place}: {problem.detail}", errors) from None
    return draft


def _check_data(data: Raw | UnsetType, place: str, config: Config) -> None:
    """Check that the text fits beside what the message has. Raises Invalid."""
    if data is UNSET:
        return
    if len(bytes(data)) > config.context_bytes_max:
        raise Invalid(f"of a message that grows: at most {config.context_bytes_max} bytes", place)
    try:
        found = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise Invalid(media_types.malformed(error), place) from None
    except UnicodeDecodeError:
        raise Invalid("not valid UTF-8", place) from None
    if not isinstance(found, dict):
        raise Invalid("of a message that grows: an object, to which the text is added", place)
    for name in ("text", "items", "progress", "ended"):
        if name in found:
            raise Invalid("the engine sets it at the end", f"{place}.{name}")


def _part_of(part: _Part, index: int, prefix: str, config: Config) -> GrownPart:
    """Raises Invalid."""
    generation, offset, progress = part.generation, part.offset, b""
    if not (type(generation) is type(offset) is int and 0 <= generation <= SEQ_MAX and 0 <= offset <= SEQ_MAX):
        generation = _whole(generation, f"$.parts[{index}].generation")
        offset = _whole(offset, f"$.parts[{index}].offset")
    if part.progress is not UNSET:
        progress = _progress_of(part.progress, f"$.parts[{index}].progress", config)
    return GrownPart((prefix + part.user, part.id), generation, offset, part.text, progress)


def _progress_of(progress: _Progress, path: str, config: Config) -> bytes:
    chars_max = config.growing_progress_chars_max
    if progress.value is not None and not 0 <= progress.value <= 1:
        raise Invalid("0 to 1", f"{path}.value")
    for name in ("text", "step"):
        if len(getattr(progress, name)) > chars_max:
            raise Invalid(f"at most {chars_max} characters", f"{path}.{name}")
    return _encode(progress)


def _whole(value: _Whole, path: str) -> int:
    if not 0 <= value <= SEQ_MAX or value != int(value):
        raise Invalid("a whole number, 0 or more", path)
    return int(value)


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) <= SEQ_MAX):
        raise bad_request(f"`{name}`: a whole number, 0 to {SEQ_MAX}")
    return int(text)


def _shown(id: str, stored: StoredGrowth) -> dict[str, Any]:
    """A message as readers get it, without its text."""
    shown: dict[str, Any] = {
        "id": id,
        "state": "growing" if stored.reason is None else "ended",
        "generation": stored.generation,
        "size": len(stored.text),
        "list": stored.head.list,
        "message": Raw(b"{%b}" % stored.head.body),
    }
    if stored.progress:
        shown["progress"] = Raw(stored.progress)
    if stored.reason:
        shown["ended"] = stored.reason
    return shown
