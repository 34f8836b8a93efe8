"""What publishers, clients and pages see of an engine that is being broken, told to the checker of histories.

Listeners, publishes, marks and answers of one run share a recorder. Each try of a request is a call of its own: a try that is not answered
has an unknown effect, and the checker takes it as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import httpx

from engine.check import Checker, Recorder
from tests.support.chaos.breakable_engine import LATE_S
from tests.support.chaos.listeners import Listener
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until_done

_WEAKENING: Final = ("ttl", "retain", "collapse", "category")
"""Members of a message that change what it is owed."""

_FINAL: Final = (200, 202, 409)


class JudgedRun:
    """A context manager: its end finishes the history. `complete` it before, when everything had time to come.

    Args:
        now_ms: the engine's wall clock; without it nothing is checked that depends on times.
    """

    def __init__(self, engine: RunningEngine, now_ms: Callable[[], float] | None = None) -> None:
        self._checker = Checker()
        self.recorder = Recorder(self._checker.take_next, now_ms)
        self.recorder.disturbed()  # parts are killed, at any time
        self._engine = engine
        headers = {"Authorization": f"Bearer {engine.token('app', 'publish')}"}
        self._http = httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=20, trust_env=False, verify=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._http.aclose()
        if kind is None:
            self._checker.finish()
            assert not self._checker.violations, "\n".join(map(str, self._checker.violations))

    def complete(self) -> None:
        """Everybody who was published to was connected for long enough: what did not come is lost."""
        self.recorder.complete()

    def listeners(self, users: Iterable[str], **options: Any) -> list[Listener]:
        return [Listener(self._engine, user, recorder=self.recorder, **options) for user in users]

    async def publish(self, *items: dict[str, Any], suppressible: bool = False) -> list[dict[str, Any]]:
        """The results, in the order of the items and their users. `suppressible`: as for `Recorder.published`."""

        def begin() -> list[int]:
            return [
                self.recorder.published(
                    user,
                    item["id"],
                    item.get("data"),
                    **{name: item[name] for name in _WEAKENING if name in item},
                    **({"suppressible": True} if suppressible else {}),
                )
                for item in items
                for user in item.get("users") or [item["user"]]
            ]

        return (await self._answered(begin, "/v1/notifications", list(items)))["results"]  # type: ignore[no-any-return]

    async def mark(self, user: str, mark: str, ids: Sequence[str], chosen: dict[str, Any] | None = None) -> Any:
        """Mark messages of an inbox. `chosen`: says otherwise than by their ids which ones."""
        return await self._answered(
            lambda: [self.recorder.marked(user, mark, ids)], f"/v1/inbox/{mark}?user={user}", chosen or {"ids": ids}
        )

    async def inbox(self, user: str, view: str = "") -> Any:
        """The newest hundred messages of an inbox. `view`: further members of the query."""

        async def once() -> Any:
            return (await self._http.get(f"/v1/inbox?user={user}&limit=100{view}")).raise_for_status().json()

        page = await until_done(once, httpx.HTTPError, within_s=LATE_S, look_s=0.1)
        self.recorder.listed(user, page["messages"])
        return page

    async def reply(self, user: str, question: str, answer: str) -> Any:
        """Answer a question: the answer that it has, this one or the one before."""
        return await self._answered(
            lambda: [self.recorder.replied(user, question, answer)], f"/v1/answers/{question}?user={user}", {"answer": answer}
        )

    async def _answered(self, begin: Callable[[], list[int]], path: str, body: Any) -> Any:
        async def once() -> Any:
            calls = begin()
            answer = await self._http.post(path, json=body)
            told = answer.json()
            results = told.get("results") or [told] * len(calls)
            for call, result in zip(calls, results, strict=True):
                self.recorder.answered(call, answer.status_code, result)
            if answer.status_code not in _FINAL:
                answer.raise_for_status()
            return told

        return await until_done(once, httpx.HTTPError, ValueError, within_s=LATE_S, look_s=0.1)
