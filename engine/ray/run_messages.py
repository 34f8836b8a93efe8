"""The message of one run, such as a training or a long request: it grows by the run's progress, and ends as the run does, even if killed.

    quiet   --`after_s` passed-->      told    each user has a message of type `<kind>.progress`, which grows (docs/GROWING.md)
    told    --progress-->              told    the newest progress, at most every `every_s`
    quiet   --`done`-->                ended   nothing is published: it was too short to be news
    told    --`done`-->                ended   the message ends as `<kind>.done`
    any     --`failed`-->              ended   likewise, as `<kind>.failed`
    told    --the process is killed--> lost    the engine ends the message as `<kind>.lost`, `growing_idle_s` after the last sign of life
    killed  --the same `id` again-->   told    it goes on with the message
    lost, failed  --likewise-->        told    it has another message, `<id>-2`
    done    --likewise-->              ended   nothing more is published

A thread publishes, so that the run never waits for the engine. It keeps the newest progress only. Where the engine refuses the message of
a user, the run goes on without it, and the log says why. Where no engine answers, the thread begins the message again until one does.
`done` and `failed` wait for at most `END_WAIT_S`. An id that failed longer than `growing_keep_s` ago is refused at the end only;
the next id tells the end then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from engine.client.publish_results import PublishError
from engine.errors import EngineError, Refused, Unreachable
from engine.ray.task_ids import new_id
from engine.ray.task_publisher import Publisher

log = logging.getLogger(__name__)

END_WAIT_S: Final = 30.0
_ERROR_CHARS: Final = 800
"""Of an exception: with it the data of the end stays below the 4 KB that the engine takes."""

_TEXT_CHARS: Final = 200
"""Of a line for people: what the engine takes of a progress, unless its `growing_progress_chars_max` is lower."""

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


def told_users(users: Sequence[str] | None) -> tuple[str, ...]:
    """These users; None: `users_to_notify`. Raises TypeError: it is one text, whose letters would be taken for names."""
    if isinstance(users, str):
        raise TypeError(f"users: a list of names, [{users!r}]")
    return users_to_notify() if users is None else tuple(users)


class RunMessages:
    """Tells users of one run.

        with RunMessages("render", "film-7", ["ann"]) as run:      # or `async with`
            run.progress(0.5, text="frame 50 of 100")

    Leaving the block tells the end: `done`, or `failed` with the exception.

    Args:
        kind: begins the types of its messages: `<kind>.progress`, `.done`, `.failed` and `.lost`.
        name: of the run, for people.
        users: to notify; None: `users_to_notify`; nobody: nothing is published.
        id: of the message, and of the run that writes it: a run that is executed again under the same one goes on. None: a new one, which
            a Ray task makes again when Ray runs it again.
        after_s: a run that took less is no news, unless it fails.
        every_s: between two changes of the progress.
        publisher: makes the one that its thread uses.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        users: Sequence[str] | None = None,
        *,
        id: str | None = None,
        after_s: float = 10.0,
        every_s: float = 1.0,
        publisher: Callable[[], Any] = Publisher,
    ) -> None:
        self.kind, self.name = kind, name
        self.users = told_users(users)
        self.id = f"{kind}-{new_id()}" if id is None else id
        self._after_s, self._every_s = after_s, every_s
        self.publisher = publisher
        self._began_s = time.monotonic()
        self._changed = threading.Condition()
        self._progress: tuple[float | None, str, str] | None = None
        self._end: tuple[str, dict[str, Any]] | None = None
        self._messages: dict[str, Any] = {}  # that grow, by user
        self._told: tuple[float | None, str, str] | None = None  # the newest progress that was published
        self._pause_s = 0.0  # until the next look at the progress
        self._used: set[tuple[str, str]] = set()  # users and ids of messages that were published before, of which these grew again
        self._thread: threading.Thread | None = None
        if self.users:
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

    def begin(self) -> None:
        """Begin the message now, however short the run will be: another process tells of the progress."""
        with self._changed:
            self._after_s = 0
            self._changed.notify()

    def progress(self, value: float | None = None, *, text: str = "", step: str = "") -> None:
        """Say how far the run is. It replaces what was not published yet.

        Args:
            value: 0 to 1; beyond, the nearer of both; None: not known.
            text: a line for people, "12 of 30 files".
            step: what it is at, "download".
        """
        self._progress = None if value is None else min(max(float(value), 0.0), 1.0), _sendable(text), _sendable(step)

    def done(self, **data: Any) -> None:
        """The run has succeeded.

        Args:
            data: members of the message's data, in 4 KB; `text`, `items`, `progress` and `ended` are the engine's own. What is no JSON
                is told as its text. Without all of them where the engine refuses them.
        """
        self._finish("done", {"body": f"done after {self._age_s():.0f} s", **data})

    def failed(self, error: BaseException | str, **data: Any) -> None:
        """The run has failed. `data`: as that of `done`, with the error beside it."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._finish("failed", {"body": f"failed: {text[:_TEXT_CHARS]}", "error": text[:_ERROR_CHARS], **data})

    def _finish(self, word: str, data: dict[str, Any]) -> None:
        with self._changed:
            if self._end is not None:
                return
            self._end = word, json.loads(_valid(json.dumps(data, default=_plain, skipkeys=True, ensure_ascii=False)))
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(END_WAIT_S)

    # -- The thread. -------------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            with self.publisher() as publisher:
                self._publish_until_the_end(publisher)
        except (PublishError, EngineError, OSError, RuntimeError) as error:  # the last: not connected to Ray
            log.warning("%s goes on without messages: %s", self.name, error)

    def _publish_until_the_end(self, publisher: Any) -> None:
        while (end := self._wait()) is None:
            if self._age_s() >= self._after_s:
                self._tell_progress(publisher)
            if not self.users:
                return
        word, data = end
        if self._age_s() >= self._after_s or word == "failed":
            self._tell_progress(publisher)
            for user in self.users:
                with self._without(user):
                    self._tell_end(publisher, user, word, {"took_s": round(self._age_s()), **data})

    def _wait(self) -> tuple[str, dict[str, Any]] | None:
        """Wait for the end, or until there is something to do."""
        with self._changed:
            if self._end is None:
                self._changed.wait(max(self._after_s - self._age_s(), self._pause_s))
            return self._end

    def _tell_progress(self, publisher: Any) -> None:
        newest = self._progress
        for user in self.users:
            with self._without(user):
                self._tell_newest(publisher, user, newest)
        self._told, self._pause_s = newest, self._every_s

    def _tell_newest(self, publisher: Any, user: str, newest: tuple[float | None, str, str] | None) -> None:
        told, message = self._told, self._messages.get(user)
        if message is None or message.idle:  # the engine was away, or has taken the run for lost
            told, message = None, self._begun(publisher, user)
        if newest is not None and newest != told:
            value, text, step = newest
            message.progress(value, text=text, step=step)
        else:
            message.append("")  # raises the error that has stopped it

    def _tell_end(self, publisher: Any, user: str, word: str, data: Mapping[str, Any]) -> None:
        type = f"{self.kind}.{word}"
        if user not in self._messages:  # the engine was away
            self._tell_newest(publisher, user, self._progress)
        self._ended(user, type, data)
        if self._messages[user].seq:
            return
        self._begun(publisher, user)  # the engine has taken the run for lost
        sent: Mapping[str, Any] | None = data
        while (error := self._ended(user, type, sent)) is not None:
            if (user, self._messages[user].id) in self._used:
                self._begun(publisher, user)
            elif sent is None:
                raise error
            else:
                log.warning("the end of %s is told without its data: %s", self.name, error)
                sent = None

    def _ended(self, user: str, type: str, data: Mapping[str, Any] | None) -> Refused | None:
        """End the message of a user; why the engine refuses that. Raises Unreachable."""
        message = self._messages[user]
        try:
            message.end(type=type, data=data)
        except Refused as error:
            if error.status == 409 and not message.idle:  # its id belongs to a message that was published
                self._used.add((user, message.id))
            return error
        return None

    @contextlib.contextmanager
    def _without(self, user: str) -> Iterator[None]:
        """Go on for the others where the engine does not take the message of this user, and begin it again where it was away."""
        try:
            yield
        except (Refused, Unreachable) as error:
            if isinstance(error, Refused) or error.status == 429:  # a limit; others would wait for each try
                log.warning("%s goes on without messages for %s: %s", self.name, user, error)
                self.users = tuple(name for name in self.users if name != user)
            else:
                log.warning("%s goes on without messages for %s until the engine answers: %s", self.name, user, error)
                self._messages.pop(user, None)

    def _begun(self, publisher: Any, user: str) -> Any:
        """The message of a user, which grows, or has ended as the run did."""
        id, attempt = self.id, 1
        type, data = f"{self.kind}.progress", {"run": self.name, "title": self.name}
        lost = {"type": f"{self.kind}.lost", "data": {"body": "lost: it gave no sign of life"}}
        while True:
            if (user, id) not in self._used:
                message = publisher.stream(user=user, type=type, id=id, data=data, writer=id, idle=lost).__enter__()
                if not message.ended or message.end_type == f"{self.kind}.done":
                    self._messages[user] = message
                    return message
            attempt += 1
            id = f"{self.id}-{attempt}"

    def _age_s(self) -> float:
        return time.monotonic() - self._began_s


def _valid(text: str) -> str:
    """Without halves of characters, which names of files may have, and JSON may not."""
    return text.encode(errors="replace").decode()


def _sendable(text: str) -> str:
    return _valid(text[:_TEXT_CHARS])


def _plain(value: Any) -> Any:
    """Of NumPy and the like a number, or a list."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
