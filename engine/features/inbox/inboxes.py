"""`/v1/inbox`: a user's kept messages, and what the user does with them.

The shard of the user gives pages of messages as they are stored (`engine.features.inbox.core.inbox_requests`); the edge looks for types
and texts in them, so that a search costs the shard no more than reading on. A search reads pages until it has enough: an inbox is bounded.

A mark names messages by ids. The shard knows the ids of recent messages; those of older ones are looked up in the inbox, by reading it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from engine.api.ack_and_patch import check_ids, epoch_of
from engine.api.json_bodies import decode_body
from engine.config import Config
from engine.core.inbox.inbox import ALL, ARCHIVED, IN_ARCHIVE, PINNED, READ, SEEN, UNREAD
from engine.core.model.constants import SEQ_MAX
from engine.core.wire.records import CONFLICT, NOT_FOUND, OK, InboxIs, InboxMarked, InboxRow, MarkInbox, ReadInbox
from engine.errors import Invalid, Unavailable
from engine.gateway.shard_client import ShardClient
from engine.http.problems import Problem, bad_request, not_found
from engine.publish import media_types

MARKS: Final[Mapping[str, tuple[int, bool]]] = {
    "read": (READ, True),
    "unread": (READ, False),
    "seen": (SEEN, True),
    "archive": (ARCHIVED, True),
    "unarchive": (ARCHIVED, False),
    "pin": (PINNED, True),
    "unpin": (PINNED, False),
}
"""What `POST /v1/inbox/{mark}` does."""

LIMIT_DEFAULT: Final = 50
"""Messages of one answer without `limit`."""

QUERY_CHARS_MAX: Final = 200
"""Of `q` and `type`: what somebody types into a search field."""


class _Chosen(Struct, forbid_unknown_fields=True, gc=False):
    """The body of POST /v1/inbox/{mark}."""

    ids: list[str] | UnsetType = UNSET
    upto: int | UnsetType = UNSET
    epoch: str | UnsetType = UNSET
    all: bool | UnsetType = UNSET


class _Names(Struct, gc=False):
    id: str
    type: str = ""


class InboxQuery(Struct, frozen=True):
    """What `GET /v1/inbox` asks for; `before` 0: from the newest on. `type` may end in `.*`; `text` is casefolded."""

    before: int
    limit: int
    view: int
    type: str
    text: str


_CHOSEN: Final = msgspec.json.Decoder(_Chosen)
_NAMES: Final = msgspec.json.Decoder(_Names)
_BOOLEANS: Final = {"true": True, "false": False}


def parse_query(parameters: Mapping[str, str], config: Config) -> InboxQuery:
    """The query of `GET /v1/inbox`.

    Raises:
        Problem: 400.
    """
    before = _number(parameters, "before", SEQ_MAX, 0)
    limit = _number(parameters, "limit", config.inbox_page_max, min(LIMIT_DEFAULT, config.inbox_page_max))
    for name in ("type", "q"):
        if len(parameters.get(name, "")) > QUERY_CHARS_MAX:
            raise bad_request(f"`{name}`: at most {QUERY_CHARS_MAX} characters")
    view = UNREAD * _flag(parameters, "unread") | IN_ARCHIVE * _flag(parameters, "archived")
    return InboxQuery(before, limit, view, parameters.get("type", ""), parameters.get("q", "").casefold())


def _number(parameters: Mapping[str, str], name: str, high: int, default: int) -> int:
    text = parameters.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and 1 <= int(text) <= high):
        raise bad_request(f"`{name}`: a whole number, 1 to {high}")
    return int(text)


def _flag(parameters: Mapping[str, str], name: str) -> bool:
    text = parameters.get(name, "false")
    if text not in _BOOLEANS:
        raise bad_request(f"`{name}`: true or false")
    return _BOOLEANS[text]


async def page_of(shard_client: ShardClient, key: str, before: int, limit: int, view: int) -> InboxIs:
    """Messages of an inbox, the newest first, see `ReadInbox`. Raises as `read`."""
    return answered(await shard_client.ask(InboxIs, lambda ref: ReadInbox(ref, key, before, limit, view)))


async def mark_all(
    shard_client: ShardClient, key: str, flag: int, on: bool, seqs: list[int], ids: list[str], upto: int, epoch: str
) -> InboxMarked:
    """Set a mark of messages of an inbox, or take it away, see `MarkInbox`; durable with the answer."""
    return await shard_client.ask(InboxMarked, lambda ref: MarkInbox(ref, key, flag, on, seqs, ids, upto, epoch))


async def read(shard_client: ShardClient, key: str, query: InboxQuery, config: Config) -> bytes:
    """The answer to `GET /v1/inbox`, as JSON.

    Raises:
        Problem: 404, the engine keeps no inboxes.
        Overloaded, Unavailable: the shard or its storage did not answer.
    """
    shows = _filter(query)
    rows: list[InboxRow] = []
    before, epoch = query.before, ""
    while True:
        wanted = query.limit - len(rows) if shows is None else config.inbox_page_max
        page = await page_of(shard_client, key, before, wanted, query.view)
        if epoch not in ("", page.epoch):  # the answer would name those of the pages before by numbers of other messages
            raise Unavailable("the inbox has begun anew")
        epoch = page.epoch
        rows += page.rows if shows is None else [row for row in page.rows if shows(row.body)]
        before = page.before
        if not before or len(rows) >= query.limit:
            break
    if len(rows) > query.limit:
        before = rows[query.limit - 1].seq
        del rows[query.limit :]
    messages = b",".join([_message(page.epoch, row) for row in rows])
    more = b',"before":%d' % before if before else b""
    return b'{"messages":[%b],"unread":%d,"unseen":%d,"revision":%d%b}' % (messages, page.unread, page.unseen, page.revision, more)


_MESSAGE: Final = b'{"seq":%d,"event_id":"%b-%d","accepted_at":%d,"acknowledged":%b,"read":%b,"seen":%b,"archived":%b,"pinned":%b,%b}'


def _message(epoch: str, row: InboxRow) -> bytes:
    marks = [_TRUTH[bool(row.flags & flag)] for flag in (READ, SEEN, ARCHIVED, PINNED)]
    return _MESSAGE % (row.seq, epoch.encode(), row.seq, row.accepted_ms, _TRUTH[row.acked], *marks, row.body)


_TRUTH: Final = (b"false", b"true")


def _filter(query: InboxQuery) -> Callable[[bytes], bool] | None:
    """Whether a message is of the type, and has the text, that the query names; None when it names none."""
    if not query.type and not query.text:
        return None
    prefix = query.type[:-1] if query.type.endswith(".*") else ""

    def shows(body: bytes) -> bool:
        members = b"{%b}" % body
        if query.type:
            type_ = _NAMES.decode(members).type
            if not (type_.startswith(prefix) if prefix else type_ == query.type):
                return False
        return not query.text or _has_text(msgspec.json.decode(members), query.text)

    return shows


def _has_text(value: Any, text: str) -> bool:
    if isinstance(value, str):
        return text in value.casefold()
    if isinstance(value, dict):
        return any(_has_text(one, text) for one in value.values())
    return isinstance(value, list) and any(_has_text(one, text) for one in value)


async def mark(shard_client: ShardClient, key: str, name: str, body: bytes, config: Config) -> dict[str, Any]:
    """Carry out `POST /v1/inbox/{mark}`; durable on return. Returns the counts, and the ids that the inbox does not have.

    Raises:
        Problem: 400, 404 (no such mark, or the engine keeps no inboxes), 409 (a number of another epoch) or 422.
        Overloaded, Unavailable: the shard or its storage did not answer.
    """
    flag, on = _mark_of(name)
    ids, upto, epoch = _chosen(body, config)
    answer = await mark_all(shard_client, key, flag, on, [], ids, upto, epoch)
    if answer.status == CONFLICT:
        raise Problem(409, f"{upto} is a number of epoch {epoch}, and this is another one")
    if answered(answer).unknown:
        found, epoch = await find_rows(shard_client, key, set(answer.unknown), config, (ALL, IN_ARCHIVE))
        unknown = [id for id in answer.unknown if id not in found]
        if found:
            seqs = sorted(row.seq for row in found.values())
            answer = answered(await mark_all(shard_client, key, flag, on, seqs, [], 0, epoch))
        answer.unknown = unknown
    counts = {"unread": answer.unread, "unseen": answer.unseen, "revision": answer.revision}
    return {**counts, "unknown": answer.unknown} if answer.unknown else counts


def _mark_of(name: str) -> tuple[int, bool]:
    if name not in MARKS:
        raise not_found(f"messages are marked as one of {', '.join(MARKS)}")
    return MARKS[name]


def _chosen(body: bytes, config: Config) -> tuple[list[str], int, str]:
    """The ids, the number up to which messages are marked, 0 for none and -1 for all, and its epoch, "" when there is none."""
    chosen = decode_body(_CHOSEN, body, _Chosen)
    try:
        epoch = epoch_of(chosen.epoch, config)
        given = [field for field in ("ids", "upto", "all") if getattr(chosen, field) is not UNSET]
        if len(given) != 1:
            raise Invalid("exactly one of ids, upto and all is needed")
        if chosen.ids is not UNSET:
            check_ids(chosen.ids, config)
            return chosen.ids, 0, ""
        if chosen.all is not UNSET:
            if not chosen.all:
                raise Invalid("true, or leave it out", "$.all")
            return [], -1, ""
        if chosen.upto is UNSET or not 1 <= chosen.upto <= SEQ_MAX:
            raise Invalid(f"1 to {SEQ_MAX}", "$.upto")
        return [], chosen.upto, epoch
    except Invalid as error:
        raise media_types.unacceptable(error) from None


async def find_rows(
    shard_client: ShardClient, key: str, ids: Collection[str], config: Config, views: Iterable[int]
) -> tuple[dict[str, InboxRow], str]:
    """Those messages of these views of the inbox that have one of these ids, by id, and the epoch of their numbers. Raises as `mark`."""
    found: dict[str, InboxRow] = {}
    epoch = ""
    for view in views:
        before = 0
        while len(found) < len(ids):
            page = await page_of(shard_client, key, before, config.inbox_page_max, view)
            if page.epoch != epoch:  # numbers have begun anew: those of earlier pages are of other messages now
                found.clear()
                epoch = page.epoch
            for row in page.rows:
                id = _NAMES.decode(b"{%b}" % row.body).id
                if id in ids:
                    found[id] = row
            before = page.before
            if not before:
                break
    return found, epoch


InboxAnswer = TypeVar("InboxAnswer", InboxIs, InboxMarked)


def answered(answer: InboxAnswer) -> InboxAnswer:
    """Return the answer when its status is OK.

    Raises:
        Problem: 404, the engine keeps no inboxes.
        Unavailable: storage did not answer, or numbers have begun anew since messages were looked up.
    """
    if answer.status == NOT_FOUND:
        raise not_found("this engine keeps no inboxes: inbox_max is 0")
    if answer.status == CONFLICT:
        raise Unavailable("the inbox has begun anew")
    if answer.status != OK:
        raise Unavailable("durable storage did not answer")
    return answer


async def kept_rows(shard_client: ShardClient, config: Config, key: str) -> AsyncIterator[bytes]:
    """Every message of an inbox with its marks, in JSON: the newest first, archived ones last. Raises as `read`."""
    for view in (ALL, IN_ARCHIVE) if config.inbox_max else ():
        before = 0
        while True:
            page = await page_of(shard_client, key, before, config.inbox_page_max, view)
            for row in page.rows:
                yield _message(page.epoch, row)
            before = page.before
            if not before:
                break
