"""`/v1/dead-letters`: list the dead letters of a tenant, look at one, redrive or drop them.

A redrive publishes the message again under an id derived from the dead letter, and removes the letter once the publish is accepted.

| the edge dies, or storage is away ... | then | effect of repeating the request |
|---|---|---|
| before the publish | nothing has happened | as the first |
| after the publish, before its answer | the message is accepted, the letter still there | the publish is a duplicate, the letter goes |
| after its answer, before the removal | the same | the same |

So a letter that is redriven twice, by two operators at once, or from both of the entries that a dying shard can leave of one message, is
delivered once; ids are kept for 24 h (`idempotency_caller_s`). What the contact policy suppresses is not delivered, and its letter
stays. So does that of a question: it is answered under its own id, and what a client does with another one would be a 404.
A message that is refused again becomes a dead letter under its new id, which can be redriven as any other.

An action that was given up is redriven as a timer that is due now, under its key: the target can recognise what it did before.

The message keeps its members, its time among them. Otherwise it is published as if it were new: with the default time to live, and the
profile of its user applies. The limits of its category do not, they are not part of a dead letter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access, limit_of
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.api.json_bodies import decode_body
from engine.config import Config
from engine.core.model.action import Action
from engine.core.model.constants import PRIORITIES
from engine.core.model.routing import mailbox_key
from engine.core.model.trace_context import trace_in, traced_body
from engine.errors import Invalid
from engine.features.dead_letters import description
from engine.features.dead_letters.store import DeadLetterStream, StoredLetter
from engine.gateway.gateway import Gateway
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import Problem, bad_request, not_found
from engine.publish import media_types
from engine.publish.drafts import Draft, republished
from engine.publish.results import ItemResult

LETTER_PATTERN: Final = "[0-9]{1,15}-[0-9]{1,10}"
"""Ids that Redis gives entries of a stream, until the year 33658."""

REDRIVE: Final = "redrive:"
"""Prefix of the ids of redriven messages."""

_REFUSED: Final = frozenset(("conflict", "unavailable", "overloaded"))
_STAYS: Final = _REFUSED | {"suppressed"}
"""Results with which the letter is kept."""

_GONE: Final = "gone"
_UNREADABLE: Final = "unreadable"
_SUPPRESSED: Final = "suppressed"
_QUESTION: Final = "a question is answered under its own id: its publisher asks again"


class _Chosen(Struct, forbid_unknown_fields=True):
    letters: list[str]


class _Typed(Struct):
    type: str = ""


_CHOSEN: Final = msgspec.json.Decoder(_Chosen)
_TYPED: Final = msgspec.json.Decoder(_Typed)
_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])


class DeadLetters:
    """The dead letters, on one edge."""

    def __init__(self, config: Config, store: DeadLetterStream, gateway: Gateway) -> None:
        self._config = config
        self._store = store
        self._gateway = gateway

    async def page(self, tenant: str, user: str | None, query: QueryParams) -> dict[str, Any]:
        """Some dead letters as `GET /v1/dead-letters` answers them; `user`: that of the query. Raises Problem: 400; StorageUnavailable."""
        after, order = query.get("after", ""), query.get("order", "newest")
        if order not in ("newest", "oldest"):
            raise bad_request("`order`: newest or oldest")
        if "after" in query and not is_letter(after):
            raise bad_request("`after`: what the page before answered as `after`")
        count_max = self._config.dead_letters_page_max
        limit = limit_of(query, count_max, count_max)
        page = await self._store.page(tenant, user or "", after, limit, oldest_first=order == "oldest")
        following = {"after": page.after} if page.after else {}
        return {"tenant": tenant, "total": page.total, "dead_letters": [summary(letter) for letter in page.letters], **following}

    async def look(self, tenant: str, letter: str) -> dict[str, Any]:
        """One dead letter with its message. Raises Problem: 404; StorageUnavailable."""
        (found,) = await self._store.read(tenant, [letter])
        if found is None:
            raise not_found("there is no such dead letter: it was redriven, dropped, or trimmed by newer ones")
        return {**summary(found), "notification": _members(found)}

    async def redrive(self, tenant: str, body: bytes) -> dict[str, Any]:
        """Publish the messages of these dead letters again, oldest first, and remove the letters that were accepted.

        Raises:
            Problem: 400 or 422, the request is not valid; 409, 429 or 503: not all were accepted, `results` has the outcome of each that
                was published, with its `letter`, and the letters that were are removed: the request can be repeated.
            Overloaded, Unavailable: nothing was published.
        """
        places = self._chosen(body)
        letters = sorted(places, key=_position)
        now_ms = self._gateway.wall_ms()
        results: dict[str, dict[str, Any]] = {}
        drafts: dict[str, Draft] = {}
        for letter, found in zip(letters, await self._store.read(tenant, letters), strict=True):
            if found is None:
                results[letter] = {"letter": letter, "status": _GONE}
            elif not found.action and "ask" in _members(found):
                results[letter] = {"letter": letter, "status": _SUPPRESSED, "reason": _QUESTION}
            elif (draft := _draft(tenant, found, now_ms, self._config.ttl_s_default * 1000)) is None:
                results[letter] = {"letter": letter, "status": _UNREADABLE, "reason": "the stored message cannot be read"}
            else:
                drafts[letter] = draft
        refused: Problem | None = None
        posted: Sequence[Mapping[str, Any]] = ()
        if drafts:
            # A message that storage has twice among these is published once: two posts of one id in a request would be a repeat.
            distinct = {(draft.key, draft.envelope.id): draft for draft in drafts.values()}
            try:
                made: Sequence[ItemResult] = await self._gateway.shard_client.post(list(distinct.values()))
                posted = msgspec.to_builtins(made)
            except Problem as problem:
                if "results" not in problem.members:
                    raise
                refused, posted = problem, problem.members["results"]
            of_draft = dict(zip(distinct, posted, strict=True))
            results |= {
                letter: {"letter": letter, **of_draft[draft.key, draft.envelope.id]} for letter, draft in drafts.items()
            }  # fmt: skip
        await self._store.remove(tenant, [letter for letter in drafts if results[letter]["status"] not in _STAYS])
        if refused is not None:
            kept = [letter for letter in drafts if results[letter]["status"] in _REFUSED]
            reasons = {letter: results[letter].get("reason", "") for letter in kept}
            refused.detail = f"{len(kept)} of {len(letters)} dead letters stay, the first is {kept[0]}: {reasons[kept[0]]}"
            refused.members["results"] = [results[letter] for letter in drafts]
            refused.members["errors"] = [
                {"index": places[letter], "user": drafts[letter].user, "detail": reason} for letter, reason in reasons.items()
            ]
            raise refused
        return {"results": [results[letter] for letter in letters]}

    async def drop(self, tenant: str, body: bytes) -> dict[str, Any]:
        """Delete these dead letters. Raises Problem: 400 or 422, the request is not valid; 503: repeat it."""
        return {"dropped": await self._store.remove(tenant, list(self._chosen(body)))}

    def _chosen(self, body: bytes) -> dict[str, int]:
        """The letters that a request names, each with its first place there. Raises Problem."""
        letters = decode_body(_CHOSEN, body, _Chosen).letters
        count_max = self._config.dead_letters_page_max
        if not 0 < len(letters) <= count_max:
            raise media_types.unacceptable(Invalid(f"1 to {count_max} dead letters are needed", "$.letters"))
        for index, letter in enumerate(letters):
            if not is_letter(letter):
                raise media_types.unacceptable(Invalid("the `letter` of a dead letter, such as 1700000000000-0", f"$.letters[{index}]"))
        return {letter: letters.index(letter) for letter in letters}


def is_letter(text: str) -> bool:
    """Whether this may be the id of a dead letter."""
    at_ms, _, number = text.partition("-")
    return all(part.isascii() and part.isdigit() for part in (at_ms, number)) and len(at_ms) <= 15 and len(number) <= 10


def redriven_id(letter: StoredLetter) -> str:
    """The id under which a dead letter is published again; the same for both entries of one message, and another for each action.

    Actions of one message and one target differ in their keys alone: addresses of a user at one service, steps by one channel.
    """
    return REDRIVE + hashlib.sha256(f"{letter.seq}:{letter.id}{letter.action}{letter.key}".encode()).hexdigest()[:32]


def _draft(tenant: str, letter: StoredLetter, now_ms: int, ttl_ms: int) -> Draft | None:
    """The message of a dead letter, to be published again; None when it cannot be read."""
    members = _members(letter)
    members.pop("id", None)
    traced = members.pop("traceparent", None)  # it stays the first member
    if "type" not in members or not letter.user:
        return None
    envelope = republished(redriven_id(letter), members, letter.priority)
    if traced is not None and (context := trace_in(letter.body)) is not None:
        envelope = msgspec.structs.replace(envelope, body=traced_body(context, envelope.body))
    draft = Draft(mailbox_key(tenant, letter.user), letter.user, envelope, True, now_ms + ttl_ms, ttl_ms, 0)
    if letter.action:
        draft.due_ms, draft.action = now_ms, Action(letter.action, letter.key)
    return draft


def _members(letter: StoredLetter) -> dict[str, Raw]:
    """The members of the message; none when it cannot be read."""
    try:
        return _MEMBERS.decode(letter.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def summary(letter: StoredLetter) -> dict[str, Any]:
    """A dead letter without its message, as lists have it."""
    try:
        type_ = _TYPED.decode(letter.body).type
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        type_ = ""
    return {
        "letter": letter.letter,
        "at": letter.at_ms,
        "user": letter.user,
        "id": letter.id,
        "seq": letter.seq,
        "type": type_,
        "priority": PRIORITIES[letter.priority],
        "reason": letter.reason,
        "attempts": letter.attempts,
        **({"action": letter.action} if letter.action else {}),
    }


def _details(tenant: str, body: bytes) -> dict[str, Any]:
    """Which letters an act is about, as far as the body can be read."""
    try:
        return {"tenant": tenant, "letters": _CHOSEN.decode(body).letters}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _position(letter: str) -> tuple[int, int]:
    at_ms, _, number = letter.partition("-")
    return int(at_ms), int(number)


class _LetterConvertor(Convertor[str]):
    """The id of a dead letter, so that `/v1/dead-letters/redrive` is none."""

    regex = LETTER_PATTERN

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("letter", _LetterConvertor())


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    store = DeadLetterStream(ports.redis, ports.config)
    return EdgeFeature("dead_letters", lambda access: table(access, store))


def table(access: Access, store: DeadLetterStream) -> EndpointTable:
    """The endpoints."""
    letters = DeadLetters(access.config, store, access.gateway)

    async def page(request: Request) -> Response:
        return json_answer(await letters.page(access.tenant_of(request), access.queried_user(request), request.query_params))

    async def look(request: Request) -> Response:
        return json_answer(await letters.look(access.tenant_of(request), request.path_params["letter"]))

    async def redrive(request: Request) -> Response:
        tenant = access.tenant_of(request)
        access.gateway.check_room(tenant)
        body = await access.body(request)
        request.state.details = _details(tenant, body)
        return json_answer(await letters.redrive(tenant, body))

    async def drop(request: Request) -> Response:
        tenant = access.tenant_of(request)
        body = await access.body(request)
        request.state.details = _details(tenant, body)
        return json_answer(await letters.drop(tenant, body))

    routes = [
        route("/v1/dead-letters", GET=page),
        route("/v1/dead-letters/redrive", POST=access.audited("redrive_dead_letters", redrive)),
        route("/v1/dead-letters/drop", POST=access.audited("drop_dead_letters", drop)),
        route("/v1/dead-letters/{letter:letter}", GET=look),
    ]
    return EndpointTable(routes, description)
