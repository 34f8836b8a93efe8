"""Questions on an edge: asked with a message, answered once, told to all devices of the user and to whoever waits.

    asked     the question is stored, then its message is published
    answered  by a user, by its asker who withdraws it, or at the deadline with the default: one script stores the first answer
              (`engine.features.questions.store`)
    told      any edge publishes the outcome, takes the message of the question out of the inbox, and begins what the question names: an
              action, an event for the rules
    over      both are deleted `question_keep_s` after the answer

    killed ...                           what is left                       who goes on
    before the question is stored        nothing                            the publisher, who has no 202, repeats it
    after that, before its message is    a question that nobody sees        the same; else the default is its answer at the deadline,
                                                                            and a repeat after that asks nobody
    after a member's answer is counted,  an open question whose answers  an edge that looks at it: an answer, an asker, or the deadline
    before the answer is stored          agree
    before the answer is stored          an open question                   the client, which has no 200, repeats it
    after that, before the 200           the answer                         the client repeats it, and gets 200: it is the same answer
    before the outcome is published      a question that is due             an edge takes it, at the latest when the lease is over
    after that, before it is told        the same; publishing it again is   likewise
                                         no second message
    before a withdrawal is stored        an open question                   the asker, who has no 200, repeats it

A question that its asker withdraws is answered by that: the reason is `withdrawn`, and the devices are told. One that nobody was shown,
since its message is still to come, is taken from the scheduler, and there is nothing to tell. So is one whose message was put off beyond
its deadline, which is told. A user may be asked elsewhere, and answer before the message comes: it is taken from the scheduler, too.

Every edge looks each second for questions that are due, and at once when it has stored an answer. It takes them with a lease, so usually
one edge does the work; when two do, the ids of what they publish are the same. An answer that comes after the deadline meets the default:
an edge that reads an open question after its deadline stores the default first. An answer of a member that is stored before the default
counts: the default is stored with the number of answers that were counted, and counted again where that is another.

The deadline is by the clock of the edge that looks. Clocks that differ move it by their difference; there is one answer anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.auth.tokens import Principal
from engine.auth.topic_permissions import memberships
from engine.config import Config
from engine.core.model.period import until_next
from engine.core.model.question import QUESTIONS_FULL, Question
from engine.core.model.routing import audience_key, mailbox_key, split_key, topic_of
from engine.core.wire.records import DUPLICATE, NOT_FOUND, OK, SCHEDULED
from engine.errors import EngineError, Invalid, StorageUnavailable, Unavailable
from engine.features.inbox.inboxes import mark
from engine.features.questions.core import DEADLINE, WITHDRAWN, GivenAnswer, agreed, answer_at_deadline, answer_of, withdrawal
from engine.features.questions.outcome import action_of, event_of, outcome_of
from engine.features.questions.store import Asked, MoreVotes, QuestionStore, StoredQuestion, TooMany
from engine.gateway.gateway import Gateway
from engine.gateway.shard_client import OpenedQuestions
from engine.gateway.waiters import Waiters
from engine.http.problems import Problem, conflict, not_found, too_many_requests
from engine.publish import media_types
from engine.publish.drafts import Draft

log = logging.getLogger(__name__)

ANSWERED: Final = "urn:engine:problem:answered"
"""The type of the problem that a later answer gets."""

_LOOK_S: Final = 1.0
"""Between two looks at what is due: some 20 us of Redis. It is also the delay of a default that nobody asks for."""

_LEASE_MS: Final = 10_000
"""An edge tells an answer within a second, or has a fault."""

_ATTENDED_MAX: Final = 500
"""Questions that an edge brings on at once: what a shard that is away may hold up."""

_FULL_RETRY_S: Final = 3600
"""`Retry-After` for a user with too many questions: they end with time."""

_WITHOUT_PEOPLE: Final = frozenset((DEADLINE, WITHDRAWN))
"""Reasons of answers to questions that perhaps nobody was shown."""

_ENGINE: Final = "engine"
"""Who hands events of answers to the rules."""


_New = dict[tuple[str, str], tuple[StoredQuestion, set[int]]]
"""Questions that a request has stored, by mailbox key and id, and the places of their messages."""


class Given(Struct, gc=False):
    """What a user answers."""

    answer: str | None = None
    text: str = ""
    topic: str = ""


class Questions:
    """The questions of users, on one edge."""

    def __init__(self, config: Config, gateway: Gateway, store: QuestionStore) -> None:
        self._config = config
        self._gateway = gateway
        self._store = store
        self._stirred = asyncio.Event()  # something is due at once
        self._attended: set[tuple[str, str]] = set()  # questions that are being brought on
        self._waiters = Waiters(gateway, config.question_waits_max, "as many requests wait for answers as may")

    # -- Asking. -------------------------------------------------------------------------------------------------------
    async def open(self, drafts: Sequence[Draft]) -> OpenedQuestions:
        """Store the questions of these drafts. Those that are over would ask what nobody can answer.

        Raises Problem or StorageUnavailable, and leaves none: 409, an id asks something else; 429.
        """
        over, new = set[int](), _New()
        try:
            await self._open(drafts, over, new)
        except (Problem, StorageUnavailable):
            await self._forget(new, range(len(drafts)))
            raise
        return OpenedQuestions(over, lambda refused: self._forget(new, refused))

    async def _forget(self, new: _New, refused: Collection[int]) -> None:
        """Forget questions that nobody was asked. One that stays is over at its deadline."""
        for (key, id), (stored, places) in new.items():
            if not places.issubset(refused):
                continue
            try:
                await self._store.forget_refused(key, id, stored)
            except StorageUnavailable as error:
                log.warning("question %s of %s stays: %s", id, key, error)

    async def _open(self, drafts: Sequence[Draft], over: set[int], new: _New) -> None:
        now_ms = self._gateway.wall_ms()
        for place, draft in enumerate(drafts):
            if draft.question is None:
                continue
            envelope = draft.envelope
            try:
                question = await self._with_members(draft.question, split_key(draft.key)[0])
                stored = StoredQuestion(envelope.digest, now_ms, question, envelope.priority, envelope.body)
                known = new.get((draft.key, envelope.id))  # one item may be twice in a request
                first = Asked(known[0], None) if known else await self._store.open(draft.key, envelope.id, stored)
            except TooMany:
                limits = f"{self._config.questions_per_user_max} questions (`questions_per_user_max`)"
                detail = f"at most {limits} of a user or a topic, to {self._config.question_members_max} members (`question_members_max`)"
                refused = too_many_requests(detail, _FULL_RETRY_S)
                refused.members["errors"] = [{"index": draft.item, "user": draft.user, "detail": QUESTIONS_FULL}]
                raise refused from None
            if first.stored is stored:
                new[draft.key, envelope.id] = stored, {place}
            elif known:
                known[1].add(place)
            if first.stored.digest != envelope.digest:
                detail = "the same id was used with a different payload"
                raise conflict(detail, errors=[{"index": draft.item, "user": draft.user, "detail": detail}])
            if first.stored is not stored:  # a repeat shows the deadline that counts
                draft.envelope = msgspec.structs.replace(envelope, body=first.stored.body)
            if first.answer is not None or (first.stored is not stored and first.stored.question.deadline <= now_ms):
                over.add(place)

    async def _with_members(self, question: Question, tenant: str) -> Question:
        """The question; one to everyone knows how many are subscribed now. Raises StorageUnavailable, TooMany."""
        if not question.everyone:
            return question
        members = await self._store.subscribers(tenant, question.topic)
        if members > self._config.question_members_max:
            raise TooMany
        return msgspec.structs.replace(question, needed=max(members, 1))

    # -- Answering. ----------------------------------------------------------------------------------------------------
    async def answer(self, principal: Principal, key: str, id: str, device: str, given: Given) -> GivenAnswer:
        """The answer of the user with this mailbox key; durable on return. Of a topic whose answers are counted it is one of them.

        Raises:
            Problem: 404, the user was not asked this; 409, it has another answer, which the problem tells; 422.
            StorageUnavailable: it may be stored.
        """
        user = split_key(key)[1]
        if given.topic:
            await self._check_member(principal, key, given.topic)
            key = audience_key(principal.tenant, given.topic)
        asked = await self._look(key, id)
        question, now_ms = asked.stored.question, self._gateway.wall_ms()
        try:
            own = answer_of(question, given.answer, given.text, user, device, now_ms, self._config.question_text_chars_max)
        except Invalid as error:
            raise media_types.unacceptable(error) from None
        if question.counts:
            return await self._vote(key, id, asked, own)
        winner = asked.answer or await self._decide(key, id, own)
        return _same(own, winner)

    async def _check_member(self, principal: Principal, key: str, topic: str) -> None:
        """Raise Problem 404 unless the user is a member of the topic, by its token or by a subscription."""
        own = mailbox_key(principal.tenant, principal.user) == key
        if own and topic in memberships(principal):
            return
        if topic not in (await self._gateway.shard_client.subscribe(key, [], [])).topics:
            raise not_found("no question with this id is known")

    async def _vote(self, key: str, id: str, asked: Asked, own: GivenAnswer) -> GivenAnswer:
        """Count the answer of a member, once. Raises Problem."""
        user = own.by or ""
        try:
            if asked.answer is not None:
                return _same(own, (await self._store.votes(key, id)).get(user, asked.answer))
            votes = await self._store.vote(key, id, own, self._config.question_members_max)
        except TooMany:
            raise too_many_requests("this question has as many answers as it may (`question_members_max`)", _FULL_RETRY_S) from None
        if votes is None:
            raise not_found("no question with this id is known")
        if user not in votes:  # its end was stored since it was looked at
            return _same(own, (await self._look(key, id)).answer or own)
        if (answer := agreed(asked.stored.question, votes.values())) is not None:
            await self._decide(key, id, answer)
        return _same(own, votes[user])

    async def withdraw(self, key: str, id: str) -> dict[str, Any]:
        """End a question without an answer; durable on return. Raises Problem: 404; 409, it has an answer; 503."""
        asked = await self._look(key, id)
        own = withdrawal(self._gateway.wall_ms())
        winner = asked.answer or await self._decide(key, id, own)
        return _report(id, Asked(asked.stored, _same(own, winner)))

    async def look(self, key: str, id: str, wait_s: float) -> dict[str, Any]:
        """The question, and its answer as soon as there is one, or without one after `wait_s`. Raises Problem: 404 or 429."""
        deadline_ms = self._gateway.clock() + wait_s * 1000
        while True:
            asked = await self._look(key, id)
            left_ms = deadline_ms - self._gateway.clock()
            if asked.answer is not None or left_ms <= 0 or self._gateway.draining:
                return _report(id, asked)
            until_deadline_ms = asked.stored.question.deadline - self._gateway.wall_ms()
            await self._waiters.wait((key, id), True, min(left_ms, max(until_deadline_ms, 1)) / 1000)

    async def _look(self, key: str, id: str) -> Asked:
        """The question; one whose deadline is over is answered. Raises Problem."""
        asked = await self._store.read(key, id)
        if asked is None:
            raise not_found("no question with this id is known")
        return asked if asked.answer is not None else Asked(asked.stored, await self._end(key, id, asked.stored.question))

    async def _end(self, key: str, id: str, question: Question) -> GivenAnswer | None:
        """End an open question that is to have its answer now: what members agreed on before an edge died, or the default.

        Returns the answer that is stored, None for a question that stays open. Raises Problem.
        """
        while True:
            votes = await self._store.votes(key, id) if question.counts else {}
            answer = agreed(question, votes.values()) if question.counts else None
            if answer is None and question.deadline <= self._gateway.wall_ms():
                answer = answer_at_deadline(question)
            try:
                return None if answer is None else await self._decide(key, id, answer, len(votes))
            except MoreVotes:
                continue

    async def _decide(self, key: str, id: str, answer: GivenAnswer, votes: int | None = None) -> GivenAnswer:
        """Store this answer, unless there is one; returns the one that is stored. Raises Problem; MoreVotes as the storage does."""
        winner = await self._store.decide(key, id, answer, self._gateway.wall_ms(), votes)
        if winner is None:
            raise not_found("no question with this id is known")
        self._stirred.set()
        self._waiters.wake((key, id))
        return winner

    # -- Telling. ------------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Do what is due, and watch for those who wait. Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._waiters.watch(self._store.are_open, self._config.question_poll_ms))
            tasks.create_task(self._sweep(tasks))

    async def _sweep(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._stirred.clear()
            more = False
            for store in range(self._store.stores):
                try:
                    more = await self._take(store, tasks) or more
                except StorageUnavailable as error:
                    log.warning("questions wait for storage: %s", error)
            if not more:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(until_next(time.monotonic(), _LOOK_S)):
                        await self._stirred.wait()

    async def _take(self, store: int, tasks: asyncio.TaskGroup) -> bool:
        """Begin what is due in a store, each by itself: one whose shard is away holds up no other. Returns whether more may be due."""
        if len(self._attended) >= _ATTENDED_MAX:
            return False
        taken = await self._store.take(store, self._gateway.wall_ms(), _LEASE_MS)
        for name in taken:
            if name not in self._attended:
                self._attended.add(name)
                tasks.create_task(self._try_to_attend(name))
        return bool(taken)

    async def _try_to_attend(self, name: tuple[str, str]) -> None:
        key, id = name
        try:
            await self._attend(key, id)
        except (EngineError, ValueError) as error:  # likewise when it is due again
            log.warning("question %s of %s is tried again: %s", id, key, error)
        finally:
            self._attended.discard(name)

    async def _attend(self, key: str, id: str) -> None:
        """Bring a question that is due one step on. Raises EngineError: it is tried again after the lease."""
        asked = await self._store.read(key, id)
        if asked is None:
            await self._store.forget(key, id)
            return
        now_ms, question, answer = self._gateway.wall_ms(), asked.stored.question, asked.answer
        if answer is None:
            answer = await self._end(key, id, question)
        if answer is None:
            await self._store.look_again(key, id, question.deadline)
            return
        over_ms = answer.at + self._config.question_keep_s * 1000
        if now_ms >= over_ms:
            await self._store.forget(key, id)
            return
        await self._tell(key, id, asked.stored, answer)
        await self._store.look_again(key, id, over_ms)

    async def _tell(self, key: str, id: str, stored: StoredQuestion, answer: GivenAnswer) -> None:
        """Publish the outcome, and take the message of the question away from all devices. Raises EngineError."""
        outcome = outcome_of(key, id, stored, answer, self._gateway.wall_ms(), self._config.ttl_s_default * 1000)
        is_withdrawn = answer.reason == WITHDRAWN
        if is_withdrawn:  # first: a repeat of what fails finds no timer, and would tell what nobody has seen
            await self._end_for_user(key, id, stored.question, outcome, answer)
        unseen = answer.reason in _WITHOUT_PEOPLE and await self._cancelled(key, id)  # quiet hours may outlast the deadline
        if not (is_withdrawn and unseen):
            await self._publish(key, id, outcome)
        if not is_withdrawn:
            await self._end_for_user(key, id, stored.question, outcome, answer)
        if answer.reason not in _WITHOUT_PEOPLE:
            await self._cancelled(key, id)  # last: nothing above waits for a scheduler that is away

    async def _end_for_user(self, key: str, id: str, question: Question, outcome: Draft, answer: GivenAnswer) -> None:
        """Take the message of a question away from its user, and begin what the question names. Raises EngineError."""
        if question.topic:
            return  # each member's client takes the question away: the outcome replaces it
        shard_client, config = self._gateway.shard_client, self._config
        await shard_client.settle(key, -1, [id])
        if config.inbox_max:
            await mark(shard_client, key, "archive", msgspec.json.encode({"ids": [id]}), config)
        if target := question.do:
            scheduled = await shard_client.schedule(action_of(key, id, target, outcome, self._gateway.wall_ms()))
            if scheduled.status not in (SCHEDULED, DUPLICATE):
                raise Unavailable(scheduled.detail or "durable storage did not answer")
        if event := question.event:
            await self._hand_to_rules(split_key(key)[0], event_of(key, id, event, answer))

    async def _publish(self, key: str, id: str, outcome: Draft) -> None:
        try:
            await self._gateway.shard_client.post([outcome])
        except Problem as problem:
            if problem.status != 409:
                raise
            log.warning("the answer to %s of %s is not told: its id is taken", id, key)

    async def _cancelled(self, key: str, id: str) -> bool:
        """Cancel the message of a question that is still to come. Returns whether there was one, so that nobody has seen it.

        Raises EngineError: it may still come, or is coming. Told now, the outcome would be before the question that it replaces.
        """
        async for timer in self._gateway.shard_client.every_timer(key):
            if timer.envelope.id == id and timer.action is None:
                cancelled = await self._gateway.shard_client.cancel(split_key(key)[0], timer.sid)
                if cancelled.status not in (OK, NOT_FOUND):
                    raise Unavailable(cancelled.detail or "the message of the question may still come")
                return cancelled.status == OK
        return False

    async def _hand_to_rules(self, tenant: str, event: bytes) -> None:
        """Hand an event to the rules. Raises EngineError: they did not take it."""
        try:
            await self._gateway.take_event(Principal(tenant, _ENGINE, frozenset({"publish"}), 0), event)
        except Problem as problem:
            if problem.status not in (409, 422):
                raise
            log.warning("the rules refuse the event of an answer: %s", problem)

    # -- Of a user. ----------------------------------------------------------------------------------------------------
    async def kept_rows(self, key: str) -> AsyncIterator[bytes]:
        """Every question of a user, and every answer of the user to a topic, in JSON. Raises StorageUnavailable."""
        for id, asked in (await self._store.all_of(key)).items():
            if asked is None:
                yield msgspec.json.encode({"id": id, "damaged": True})
            else:
                yield msgspec.json.encode({**_report(id, asked), "message": msgspec.Raw(b"{%b}" % asked.stored.body)})
        async for audience, id, given in self._store.given_to_topics(key):
            yield msgspec.json.encode({"id": id, "topic": topic_of(audience), **shown(given)})


def _same(own: GivenAnswer, first: GivenAnswer) -> GivenAnswer:
    """The first answer, which is the same. Raises Problem 409: it is another one."""
    if not own.repeats(first):
        raise conflict(_described(first), type=ANSWERED, **shown(first))
    return first


def _described(answer: GivenAnswer) -> str:
    if answer.reason == WITHDRAWN:
        return "it was withdrawn"
    who = answer.by or ("nobody by its deadline" if answer.reason else "somebody")
    return f"it was answered by {who}: {answer.label or answer.text or 'no answer'}"


def shown(answer: GivenAnswer) -> dict[str, Any]:
    """An answer as endpoints tell it: `answer`, `by` and `at`, and what else it has."""
    members: dict[str, Any] = msgspec.to_builtins(answer)
    return members


def _report(id: str, asked: Asked) -> dict[str, Any]:
    state = "open" if asked.answer is None else asked.answer.reason or "answered"
    answer = {"answer": None, "by": None, "at": None} if asked.answer is None else shown(asked.answer)
    return {"id": id, "state": state, "asked": asked.stored.asked_ms, "deadline": asked.stored.question.deadline, **answer}
