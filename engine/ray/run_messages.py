"""Messages of one run, such as a training or a long request: its progress, and one about its end, also when it is killed.

    quiet   --`after_s` passed-->      told    a first progress is published; a message "lost" is scheduled in `lost_after_s`
    told    --progress-->              told    the newest progress, at most every `every_s`; the scheduled message moves ahead
    quiet   --`done`-->                ended   nothing is published: it was too short to be news
    told    --`done`-->                ended   the scheduled message is cancelled, then the end is published
    any     --`failed`-->              ended   likewise
    told    --the process is killed--> lost    nobody moves the scheduled message: the engine delivers it

A thread publishes, so that the run never waits for the engine. It keeps the newest progress only. Where the engine refuses a message, the
run goes on without messages, and the log says why. `done` and `failed` wait for at most `END_WAIT_S`.

Progress is for users who are connected then (`retain`), and of one `collapse` key, so a slow client gets the newest. The end is kept as
every message is. Ids follow from the run's id, so a request that is repeated notifies nobody twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

from engine.client.publish_results import PublishError
from engine.errors import EngineError
from engine.ray.task_publisher import Publisher

log = logging.getLogger(__name__)

END_WAIT_S: Final = 30.0
_JOB_CONFIG: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""By which Ray's Jobs API gives a driver its metadata; not a public interface."""


def users_to_notify(env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The users in the variable `RAY_NOTIFY`, else in the submitted job's metadata `notify`, separated by commas."""
    env = os.environ if env is None else env
    text = env.get("RAY_NOTIFY", "")
    if not text:
        try:
            text = str((json.loads(env.get(_JOB_CONFIG, "{}")).get("metadata") or {}).get("notify", ""))
        except (ValueError, AttributeError):
            text = ""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


class RunMessages:
    """Tells users of one run.

        with RunMessages("render", "film-7", ["ann"]) as run:      # or `async with`
            run.progress(pct=50)

    Leaving the block tells the end: `done`, or `failed` with the exception.

    Args:
        kind: begins the types of its messages: `<kind>.progress`, `.done`, `.failed` and `.lost`.
        name: of the run, for people.
        users: to notify; None: `users_to_notify`; nobody: nothing is published.
        after_s: a run that took less is no news, unless it fails.
        every_s: between two messages of progress.
        lost_after_s: without a sign of life, the run is told as lost; 0: never.
        key: `context` of its messages and their `collapse` key; None: its own id.
        publisher: makes the one that its thread uses.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        users: Sequence[str] | None = None,
        *,
        after_s: float = 10.0,
        every_s: float = 5.0,
        lost_after_s: float = 120.0,
        key: str | None = None,
        publisher: Callable[[], Any] = Publisher,
    ) -> None:
        self.id = f"{kind}-{uuid4().hex}"
        self.key = self.id if key is None else key
        self._kind, self._name = kind, name
        self._users = users_to_notify() if users is None else tuple(users)
        self._after_s, self._every_s, self._lost_after_s = after_s, every_s, lost_after_s
        self._publisher = publisher
        self._began_s = time.monotonic()
        self._changed = threading.Condition()
        self._progress: dict[str, Any] = {}
        self._end: tuple[str, dict[str, Any]] | None = None
        self._scheduled: dict[str, str] = {}  # by user, the message "lost"
        self._told: dict[str, Any] | None = None  # the newest progress that was published
        self._count = 0
        self._thread: threading.Thread | None = None
        if self._users:
            self._thread = threading.Thread(target=self._run, name="run messages", daemon=True)
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.done()
        else:
            self.failed(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def progress(self, **data: Any) -> None:
        """The newest progress; it replaces what was not published yet."""
        self._progress = data

    def done(self, **data: Any) -> None:
        """The run has succeeded."""
        self._finish("done", data)

    def failed(self, error: BaseException | str, **data: Any) -> None:
        """The run has failed."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._finish("failed", {"error": text[:2000], **data})

    def _finish(self, word: str, data: dict[str, Any]) -> None:
        with self._changed:
            if self._end is not None:
                return
            self._end = word, data
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(END_WAIT_S)

    # -- The thread. -------------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            with self._publisher() as publisher:
                self._publish_until_the_end(publisher)
        except (PublishError, EngineError, OSError) as error:
            log.warning("%s goes on without messages: %s", self._name, error)

    def _publish_until_the_end(self, publisher: Any) -> None:
        while (end := self._wait()) is None:
            if self._age_s() >= self._after_s:
                self._put_off_the_loss(publisher)
                self._publish_progress(publisher)
        word, data = end
        for id in self._scheduled.values():
            publisher.cancel(id)
        if self._told is not None or word == "failed":
            for user in self._users:
                self._publish(publisher, user, word, "", data)

    def _wait(self) -> tuple[str, dict[str, Any]] | None:
        """Wait for the end, or until there is something to do."""
        with self._changed:
            if self._end is None:
                pause_s = min(self._every_s, self._lost_after_s / 3) if self._lost_after_s else self._every_s
                self._changed.wait(max(self._after_s - self._age_s(), 0) if self._told is None else pause_s)
            return self._end

    def _put_off_the_loss(self, publisher: Any) -> None:
        if not self._lost_after_s:
            return
        for user in self._users:
            if user in self._scheduled:
                publisher.reschedule(self._scheduled[user], delay=self._lost_after_s)
            else:
                self._scheduled[user] = self._publish(publisher, user, "lost", delay=self._lost_after_s).scheduled_id

    def _publish_progress(self, publisher: Any) -> None:
        newest = self._progress
        if self._told != newest:
            self._told, self._count = newest, self._count + 1
            for user in self._users:
                self._publish(publisher, user, "progress", f"-{self._count}", newest, collapse={"key": self.key}, retain=False)

    def _publish(self, publisher: Any, user: str, word: str, count: str = "", data: Mapping[str, Any] | None = None, **members: Any) -> Any:
        shown = {"run": self._name, "took_s": round(self._age_s()), **(data or {})}
        return publisher.publish(
            user=user, type=f"{self._kind}.{word}", id=f"{self.id}-{word}{count}", context=self.key, data=shown, **members
        )

    def _age_s(self) -> float:
        return time.monotonic() - self._began_s
