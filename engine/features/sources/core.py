"""The tables `[[source]]` as types, the requests made of rows, and the fate of each row by the edge's answer. Pure.

    row --requests_of--> bodies of /v1/notifications or /v1/events --an edge--> answers --fates_of--> Fates

Fates of a row
    accepted   the engine keeps it, or has had it before (a repeat under the same id)
    dead       the engine will refuse it for ever; with the reason
    neither    it stays in the source and is read again
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from engine.config import Tenant
from engine.core.model.message import TIMER_EFFECT
from engine.core.model.names import is_id
from engine.core.model.question import QUESTIONS_FULL
from engine.core.wire.records import POISONED, TIMERS_FULL
from engine.errors import ConfigError

HttpAnswer = tuple[int, Mapping[str, str], bytes]
"""Status, headers with names in lower case, body."""

_RETRY_S: Final = 1.0
_RETRY_CAP_S: Final = 30.0
_REASON_CHARS_MAX: Final = 1000
_ID_CHARS_MAX: Final = 128
"""The engine's `id_chars_max`."""

_FAILED: Final = 500

PATHS: Final = {"notifications": "/v1/notifications", "events": "/v1/events"}


class _Common(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Members of every table `[[source]]`.

    Attributes:
        name: in commands, metrics and logs.
        connection: URL of the server; it may hold a password.
        tenant: of the notifications and events.
        what: what a row holds.
        rows_max: rows of one request. With 500 a row cost 1.45 times one over HTTP in batches of 250, with 1000 it cost 1.27 times one.
    """

    name: Annotated[str, Meta(pattern=r"\A[a-z0-9_-]{1,32}\Z")]
    connection: Annotated[str, Meta(min_length=1)]
    tenant: Tenant = "default"
    what: Literal["notifications", "events"] = "notifications"
    rows_max: Annotated[int, Meta(ge=1, le=1000)] = 1000


class PostgresqlSource(_Common, frozen=True, kw_only=True, tag="postgresql"):
    """An outbox table; its dead rows are in the table `<table>_dead`.

    Attributes:
        table: its name, with a schema if it needs one.
        poll_ms: between two looks when no NOTIFY comes; it wakes the server once.
    """

    table: Annotated[str, Meta(pattern=r"\A[a-z_][a-z0-9_]{0,40}(\.[a-z_][a-z0-9_]{0,40})?\Z")] = "notification_outbox"
    poll_ms: Annotated[int, Meta(ge=10, le=60_000)] = 1000


class RedisSource(_Common, frozen=True, kw_only=True, tag="redis"):
    """A Redis stream; its dead entries are in the stream `<stream>:dead`.

    Attributes:
        stream: its key.
        group: the consumer group that the engine makes.
    """

    stream: Annotated[str, Meta(min_length=1, max_length=200)] = "notifications"
    group: Annotated[str, Meta(min_length=1, max_length=64)] = "engine"


class NatsSource(_Common, frozen=True, kw_only=True, tag="nats"):
    """A stream of NATS JetStream; its dead messages are in the stream `<stream>_DEAD`.

    Attributes:
        stream: its name. It exists.
        consumer: the durable consumer that the engine makes.
    """

    stream: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,100}\Z")]
    consumer: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")] = "engine"


class KafkaSource(_Common, frozen=True, kw_only=True, tag="kafka"):
    """Topics of Kafka; the dead records of a topic are in the topic `<topic>.dead`.

    Attributes:
        topics: their names.
        group: the consumer group.
        sasl_mechanism: how the user of the connection, if it names one, proves its password.
    """

    topics: Annotated[tuple[Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{1,200}\Z")], ...], Meta(min_length=1, max_length=100)]
    group: Annotated[str, Meta(min_length=1, max_length=64)] = "engine"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"


Source = PostgresqlSource | RedisSource | NatsSource | KafkaSource

_SCHEMES: Final[Mapping[type[Source], tuple[str, ...]]] = {
    PostgresqlSource: ("postgresql://",),
    RedisSource: ("redis://", "rediss://", "unix://"),
    NatsSource: ("nats://", "tls://"),
    KafkaSource: ("kafka://", "kafka+ssl://"),
}

_SOURCES: Final = msgspec.json.Decoder(tuple[Source, ...])


def sources_of(text: str) -> tuple[Source, ...]:
    """The sources that the setting `sources` holds, none for "".

    Raises:
        ConfigError: a table is not allowed; the message names the field and what is allowed, and quotes no value.
    """
    if not text:
        return ()
    try:
        sources = _SOURCES.decode(text.encode())
    except msgspec.MsgspecError as error:
        if "Invalid value" in str(error):  # of the tag: msgspec quotes it, and does not tell which there are
            raise ConfigError("sources: kind: allowed are postgresql, redis, nats and kafka") from None
        raise ConfigError(f"sources: {error} ($[0] is the first table [[source]])") from None
    names = [source.name for source in sources]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"sources: name: {repeated[0]} is given twice; each source needs a name of its own")
    for source in sources:
        schemes = _SCHEMES[type(source)]
        if not source.connection.startswith(schemes):
            raise ConfigError(f"sources: connection of {source.name}: allowed is a URL that begins with {' or '.join(schemes)}")
    return sources


class SourceRow(Struct, frozen=True):
    """A row as it was read.

    Attributes:
        key: identifies it in its source.
        id: of its message, unless the body has an `id`.
        body: JSON.
    """

    key: Any
    id: str
    body: bytes


class Held(Struct, frozen=True):
    """Why rows stay in the source, and the first one by position; None: the refusal is of all that were sent, and names none."""

    place: int | None
    reason: str


class Fates(Struct):
    """What became of the rows of a batch, by position.

    Attributes:
        accepted: the rows to delete.
        dead: the rows to set aside, with the reason.
        wait_s: before the rest is sent again.
        held: why it waits; None: it does not.
        split: the refusal names no row, so that fewer rows have to be sent at a time.
    """

    accepted: list[int] = []
    dead: dict[int, str] = {}
    wait_s: float = 0.0
    held: Held | None = None
    split: bool = False


class _Error(Struct):
    index: int = -1
    detail: str = ""


class _Problem(Struct):
    detail: str = ""
    errors: list[_Error] = []
    results: list[Raw] = []  # of each item; empty: none was accepted


class _Identified(Struct):
    id: Raw = Raw()  # empty: the body has none


_LASTING: Final = (TIMERS_FULL, QUESTIONS_FULL, POISONED)
_OBJECT: Final = msgspec.json.Decoder(_Identified)
_PROBLEM: Final = msgspec.json.Decoder(_Problem)
_encode: Final = msgspec.json.encode


def requests_of(source: Source, rows: Sequence[SourceRow]) -> tuple[list[bytes], list[int], dict[int, str]]:
    """The bodies to send, the position of each readable row, and the reasons of the others by position.

    All notifications are in one body; each event has one of its own.
    """
    items, places, unreadable = list[bytes](), list[int](), dict[int, str]()
    for place, row in enumerate(rows):
        try:
            has_id = bool(_OBJECT.decode(row.body).id)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            unreadable[place] = f"a JSON object is needed: {error if row.body else 'there is no body'}"
            continue
        items.append(row.body if has_id else _identified(row))
        places.append(place)
    if source.what == "notifications":
        return ([b"[%b]" % b",".join(items)] if items else []), places, unreadable
    return items, places, unreadable


def _identified(row: SourceRow) -> bytes:
    """The object of the row with its id as the last member. The other members are copied as they are."""
    members = row.body.rstrip()[:-1].rstrip()
    return b'%b%b"id":%b}' % (members, b"" if members.endswith(b"{") else b",", _encode(_allowed(row.id)))


def _allowed(id: str) -> str:
    """The id of a row, or its digest where the engine would refuse it: a stream or topic may have any name."""
    return id if is_id(id, _ID_CHARS_MAX) and not id.startswith(TIMER_EFFECT) else sha256(id.encode()).hexdigest()


def fates_of(source: Source, places: Sequence[int], answers: Sequence[HttpAnswer]) -> Fates:
    """The fates of the rows at these positions.

    Args:
        answers: to the bodies of `requests_of`; fewer where an edge stopped before the last one.
    """
    fates = Fates()
    if source.what == "notifications":
        for answer in answers:
            _judge(fates, places, answer, by_item=True)
    else:
        for place, answer in zip(places, answers, strict=False):
            _judge(fates, [place], answer, by_item=False)
    return fates


def _judge(fates: Fates, places: Sequence[int], answer: HttpAnswer, *, by_item: bool) -> None:
    """Add the fates of the rows of one request. `by_item`: each is an item of it; otherwise all items are of its only row."""
    status, headers, body = answer
    if 200 <= status < 300:
        fates.accepted += places
        return
    try:
        problem = _PROBLEM.decode(body)
    except msgspec.MsgspecError:
        problem = _Problem()
    reasons: dict[int, list[str]] = {}
    for error in problem.errors:
        if 0 <= error.index < len(places) or not by_item:
            reasons.setdefault(places[error.index if by_item else 0], []).append(error.detail or problem.detail)
    if status in (401, 403, 408, 429) or status >= 500:
        if problem.detail == TIMERS_FULL and not by_item:
            reasons = {places[0]: [TIMERS_FULL]}
        if _judge_waiting(fates, places, reasons, results=bool(problem.results)):
            left = {place: of_row[0] for place, of_row in reasons.items() if place not in fates.dead}
            if fates.held is None:
                fates.held = _held(places, left, status, problem.detail)
            # A failure of the engine may be of one row: fewer are sent until it is alone, and it stays alone.
            fates.split = fates.split or (status == _FAILED and by_item and not left)
            fates.wait_s = max(fates.wait_s, _wait_s(headers.get("retry-after", "")))
        return
    if not reasons and len(places) > 1:
        fates.split = True
        return
    detail = problem.detail or f"the engine answered {status}"
    dead = {place: _reason(details[0]) for place, details in reasons.items()} or {places[0]: _reason(detail)}
    fates.dead |= dead
    if status == 409 and problem.results:  # each of the others was accepted; after a 422, or when a question conflicts, nothing was
        fates.accepted += [place for place in places if place not in dead]


def _judge_waiting(fates: Fates, places: Sequence[int], reasons: Mapping[int, Sequence[str]], *, results: bool) -> bool:
    """Whether rows wait after a refusal that may pass, for these reasons by position. `results`: those without a reason were accepted.

    Those are settled: sent again for as long as another one waits, they would outlive the memory for their ids. A user who has too many
    timers or questions may have them for long, and a record that ends shards is refused until an operator lets it in. A row for one is
    dead: it would hold up the source.
    """
    lasting = {place: _reason(of_row[0]) for place, of_row in reasons.items() if all(reason in _LASTING for reason in of_row)}
    fates.dead |= lasting
    if results:
        fates.accepted += [place for place in places if place not in reasons]
    left = {place: of_row for place, of_row in reasons.items() if place not in lasting}
    if results and any(reason.endswith(TIMERS_FULL) for of_row in left.values() for reason in of_row):
        if len(places) > 1:  # the steps of one of these rows found no room
            fates.split = True
        else:
            fates.dead |= {place: _reason(of_row[0]) for place, of_row in left.items()}
        return False
    return bool(left) or not lasting


def _held(places: Sequence[int], left: Mapping[int, str], status: int, detail: str) -> Held:
    """Why rows wait after this answer. `left`: its reasons for them, by position."""
    place = next(iter(left), places[0] if len(places) == 1 else None)
    reason = detail if place is None else left.get(place, detail)
    return Held(place, _reason(f"the engine answers {status}: {reason}" if reason else f"the engine answers {status}"))


def _reason(detail: str) -> str:
    return detail[:_REASON_CHARS_MAX]


def _wait_s(header: str) -> float:
    try:
        return min(max(float(header), 0.0), _RETRY_CAP_S) or _RETRY_S
    except ValueError:
        return _RETRY_S
