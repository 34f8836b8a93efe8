"""A sink of Ray Data: each row of a dataset is a notification.

    Dataset --blocks in Ray's object store--> a write task: rows -> JSON --one body per call--> an edge: HTTP's own parser

A write task reads its blocks as Arrow tables, column by column, and encodes a body of up to `batch_max` rows while the edge works on the
previous one. Ray carries the body as bytes, through its object store beyond 100 KB, without pickling rows. Encoding where the rows are
leaves the edge, which serves connections as well, with what a publish over HTTP costs it, and the engine without a need for Arrow.

One body per write task is under way, so rows of one block reach a user in their order; Ray Data's `concurrency` bounds the tasks, and with
them what an edge is given at once. While the edge says that it is overloaded, tasks wait as long as it asks them to.

Every row has an id of its own, from the data. A write task or a job that was killed and runs again publishes the same ids, and the engine,
which remembers them for 24 hours, delivers each row once.

What becomes of a row, states of `outcomes_of`; the outcome is final:

    sent      202                       its result
    sent      409, with results         its result; `conflict` when its id was used with another payload
    sent      422, it is listed         `refused`, with what is wrong
    sent      422, another is listed    sent again, without those that are; nothing was accepted
    sent      another refusal           `refused` when it was alone, else sent again in halves
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Unpack

import msgspec
from msgspec import Struct
from ray.data import Datasink
from ray.data.block import BlockAccessor

from engine.client.credentials import Credentials
from engine.client.http_connection import Response
from engine.client.message_members import RowMembers, sent_form
from engine.client.publish_results import ItemError, PublishError, Result, problem_of, rejection_of, results_of
from engine.client.publisher import BODY_BYTES_MAX, PATH
from engine.client.retried_requests import RetriedRequests
from engine.ray.edge_calls import NAMESPACE, EdgeCalls
from engine.ray.task_publisher import TENANT

REFUSED: Final = "refused"
"""The status of a row whose notification is not valid."""

Column = str | Callable[[dict[str, Any]], Any]
"""The name of a column, or a function of a row, a dictionary by column."""

_ERRORS_MAX: Final = 100  # of refused rows that an exception names
_REFUSALS: Final = (400, 409, 413, 422)


class RowOutcome(Struct, frozen=True):
    """What became of a row: the statuses of a `Result`, `conflict` or `refused`; the last two, and `suppressed`, with the reason."""

    id: str
    user: str
    status: str
    seq: int | None = None
    reason: str | None = None


class _Row(Struct, frozen=True):
    id: str
    user: str
    body: bytes


class RowsWritten(Struct, frozen=True):
    """What became of the rows of a write task: how many had each status, and those that were refused, up to `_ERRORS_MAX`."""

    counts: dict[str, int]
    errors: list[ItemError]


class NotificationSink(Datasink[RowsWritten]):
    """Publishes a notification for each row of a dataset.

        ds.write_datasink(NotificationSink(user="user_id", type="report.ready", data=["report", "pages"], id="row_id"))

    To get what became of each row as a dataset, publish with `results` instead:

        outcomes = ds.map_batches(sink.results, batch_format="pyarrow", batch_size=10_000)

    Args:
        user: whom a row is for: a column, or a function of a row.
        type: of the notification: a text, or a function of a row.
        id: the row's own, the same whenever the job runs: a column, or a function of a row.
        data: a column, a list of columns, whose names become members, or a function of a row; None for none.
        namespace, tenant: as `AsyncPublisher`.
        batch_max: rows in one call of an edge; at most the engine's `items_max`.
        timeout_s, retry_for_s: as `AsyncPublisher`. Then the write fails; run again, it goes on where it was.
        members: further members of the notifications, `priority="low"`: values that all rows share, or functions of a row. Those that
            are None are left out.

    Attributes:
        counts: rows by status, of the last write that was completed. In the process that called `write_datasink`.

    Raises:
        PublishError: from the write, after everything else was published: rows were refused.
        Forbidden: likewise, at once: the tenant is not in the engine's `ray_publish`.
    """

    def __init__(
        self,
        *,
        user: Column,
        type: str | Callable[[dict[str, Any]], str],
        id: Column,
        data: Column | Sequence[str] | None = None,
        namespace: str = NAMESPACE,
        tenant: str = TENANT,
        batch_max: int = 1000,
        timeout_s: float = 10.0,
        retry_for_s: float = 600.0,
        **members: Unpack[RowMembers],
    ) -> None:
        if batch_max < 1:
            raise ValueError("batch_max must be at least 1")
        self._user, self._type, self._id, self._data = user, type, id, data
        self._members: Mapping[str, Any] = members
        self._namespace, self._tenant = namespace, tenant
        self._batch_max, self._timeout_s, self._retry_for_s = batch_max, timeout_s, retry_for_s
        self.counts: Mapping[str, int] = {}

    # -- Ray Data ------------------------------------------------------------------------------------------------------------
    def write(self, blocks: Iterable[Any], ctx: Any) -> RowsWritten:
        """Publish the rows of these blocks. Called by Ray Data in a write task. An error would end the other tasks, too."""
        counts: Counter[str] = Counter()
        errors: list[ItemError] = []

        async def publish() -> None:
            async for outcome in self._published(blocks):
                counts[outcome.status] += 1
                if outcome.status in (REFUSED, "conflict") and len(errors) < _ERRORS_MAX:
                    errors.append(ItemError(-1, outcome.id, f"user {outcome.user!r}: {outcome.reason}"))

        asyncio.run(publish())
        return RowsWritten(dict(counts), errors)

    def on_write_complete(self, write_result: Any) -> None:
        """Add up what the write tasks return. Called by Ray Data, in the process that writes."""
        written: list[RowsWritten] = write_result.write_returns
        counts = sum((Counter(one.counts) for one in written), Counter[str]())
        self.counts = dict(counts)
        if errors := [error for one in written for error in one.errors][:_ERRORS_MAX]:
            more = counts[REFUSED] + counts["conflict"] - len(errors)
            raise PublishError(errors, 422 if counts[REFUSED] else 409, more=more)

    def results(self, batch: Any) -> Any:
        """Publish the rows of an Arrow table; a table of a `RowOutcome` for each, in their order. For `Dataset.map_batches`."""
        import pyarrow as pa

        async def publish() -> list[RowOutcome]:
            return [outcome async for outcome in self._published([batch])]

        outcomes = asyncio.run(publish())
        kinds = {"id": pa.string(), "user": pa.string(), "status": pa.string(), "seq": pa.int64(), "reason": pa.string()}
        return pa.table({name: pa.array([getattr(one, name) for one in outcomes], kind) for name, kind in kinds.items()})

    # -- inside --------------------------------------------------------------------------------------------------------------
    async def _published(self, blocks: Iterable[Any]) -> AsyncIterator[RowOutcome]:
        """What becomes of the rows, in their order. The next body is encoded while the edge works on one."""
        carrier = EdgeCalls(self._namespace, self._tenant, inflight_max=1)
        requests = RetriedRequests(lambda: carrier, Credentials(""), timeout_s=self._timeout_s, retry_for_s=self._retry_for_s)
        under_way: asyncio.Task[list[RowOutcome]] | None = None
        try:
            for rows in self._bodies(blocks):
                if under_way is not None:
                    for outcome in await under_way:
                        yield outcome
                under_way = asyncio.create_task(outcomes_of(requests, rows))
                await asyncio.sleep(0)  # so that it is sent before the next one is encoded
            if under_way is not None:
                for outcome in await under_way:
                    yield outcome
        finally:
            if under_way is not None:
                under_way.cancel()

    def _bodies(self, blocks: Iterable[Any]) -> Iterator[list[_Row]]:
        """The rows of each request: up to `batch_max`, and up to what a body holds."""
        rows: list[_Row] = []
        size = 0
        for block in blocks:
            for row in self._rows(BlockAccessor.for_block(block).to_arrow()):
                size += 1 + len(row.body)
                if rows and (size > BODY_BYTES_MAX or len(rows) >= self._batch_max):
                    yield rows
                    rows, size = [], 1 + len(row.body)
                rows.append(row)
        if rows:
            yield rows

    def _rows(self, table: Any) -> Iterator[_Row]:
        for at in range(0, table.num_rows, self._batch_max):
            part = table.slice(at, self._batch_max)
            columns = _Columns(part)
            members = {name: columns.each(value) for name, value in self._members.items() if callable(value)}
            shared = sent_form({name: value for name, value in self._members.items() if not callable(value)})
            kinds = columns.each(self._type) if callable(self._type) else [self._type] * part.num_rows
            data = self._data_of(columns, part.num_rows)
            for index, (user, id_, kind, value) in enumerate(
                zip(columns.each(self._user), columns.each(self._id), kinds, data, strict=True)
            ):
                item = {**shared, "user": _text(user), "type": kind, "id": _text(id_)}
                if value is not None:
                    item["data"] = value
                if members:
                    item |= sent_form({name: values[index] for name, values in members.items()})
                yield _Row(item["id"] or "", item["user"] or "", _encode(item))

    def _data_of(self, columns: _Columns, count: int) -> Sequence[Any]:
        if self._data is None:
            return [None] * count
        if isinstance(self._data, str) or callable(self._data):
            return columns.each(self._data)
        names = list(self._data)
        return [dict(zip(names, values, strict=True)) for values in zip(*map(columns.each, names), strict=True)]


class _Columns:
    """The columns of a table as Python values, each converted once, when it is needed."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self._columns: dict[str, list[Any]] = {}

    def each(self, column: Column) -> list[Any]:
        """The values of a column, or of a function of the rows. Raises KeyError: there is no such column."""
        if callable(column):
            return [column(row) for row in self._table.to_pylist()]
        if column not in self._columns:
            if column not in self._table.column_names:
                raise KeyError(f"the dataset has no column {column!r}; it has {', '.join(self._table.column_names)}")
            self._columns[column] = self._table.column(column).to_pylist()
        return self._columns[column]


async def outcomes_of(requests: RetriedRequests, rows: Sequence[_Row]) -> list[RowOutcome]:
    """Publish rows in one request, or several where some are refused; the outcome of each, in their order.

    Raises:
        Unreachable: no engine took them in time. Unauthorized, Forbidden, Refused: it refused the request as a whole.
    """
    taken: dict[tuple[str, str | None], Result] = {}

    def keep_accepted(answer: Response) -> None:  # what an earlier attempt of this request stored is no duplicate
        taken.update(((one.id, one.user), one) for one in problem_of(answer).results if one.status in ("accepted", "scheduled"))

    body = b"[" + b",".join([row.body for row in rows]) + b"]"
    answer = await requests.send("POST", PATH, body, f"did not take {len(rows)} rows", keep_accepted)
    if answer.status == 202:
        results = results_of(answer)
        return [_outcome(taken.get((one.id, one.user), one), row) for one, row in zip(results, rows, strict=True)]
    if answer.status not in _REFUSALS:
        raise rejection_of(answer)
    problem = problem_of(answer)
    if len(problem.results) == len(rows):  # a conflict: the others were accepted
        return [_outcome(taken.get((one.id, one.user), one), row) for one, row in zip(problem.results, rows, strict=True)]
    faults = {fault.index: f"{fault.path}: {fault.detail}" for fault in problem.errors if fault.index is not None}
    if not faults and len(rows) == 1:
        faults = {0: problem.detail}
    if not faults:
        middle = math.ceil(len(rows) / 2)
        return await outcomes_of(requests, rows[:middle]) + await outcomes_of(requests, rows[middle:])
    left = [row for index, row in enumerate(rows) if index not in faults]
    others = iter(await outcomes_of(requests, left) if left else ())
    return [
        RowOutcome(row.id, row.user, REFUSED, reason=faults[index]) if index in faults else next(others) for index, row in enumerate(rows)
    ]


def _outcome(result: Result, row: _Row) -> RowOutcome:
    return RowOutcome(row.id, row.user, result.status, result.seq, result.reason)


def _text(value: Any) -> str | None:
    """Users and ids are texts; numbers of a column are written as such."""
    return value if value is None or isinstance(value, str) else str(value)


def _plain(value: Any) -> Any:
    """What functions of a row may return beside JSON: scalars and arrays of NumPy. Raises TypeError for anything else."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_encode: Final = msgspec.json.Encoder(enc_hook=_plain).encode
