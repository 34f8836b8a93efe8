"""Questions and their answers in Redis: two hashes for each user or topic, and a sorted set on each store of what is to be done, and when.

    open        the question is stored; its due time is the deadline
    answered    the answer is stored too, and never changes; its due time is now: the answer is to be told
    told        the due time is the end of `question_keep_s`; then both are deleted

The first answer is the answer: one script stores it, unless there is one. It is as durable as an accepted message: fsynced, and on as many
replicas, before the caller goes on. All keys are on the store of the user, so no shard takes part.

The due times are not timers of the scheduler. A timer fires into the shard of the user, so a default would wait while the shard restarts.
A timer would also be a second record: a crash could part it from the question, and an answer would have to cancel it. Here one script
stores the question, or the answer, and its due time. The same set has the repeats after a crash, and the deletion.

Whoever takes a due question moves its due time to the end of a lease. So a question whose edge has died is due again, and every step of its
work may be repeated (`engine.features.questions.questions`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
import redis.asyncio as redis
from msgspec import Struct

from engine.core.model.question import Question
from engine.core.model.routing import audience_key, slot_of, split_key, store_of
from engine.features.questions.core import GivenAnswer
from engine.features.questions.keys import QUESTIONS_DUE_KEY, answers_key, questions_key, votes_key
from engine.store.keys import SUBSCRIBERS_PREFIX
from engine.store.lua import NO_REPLICAS, Replicas, Script
from engine.store.storage_calls import StorageCalls

log = logging.getLogger(__name__)

T = TypeVar("T")

_OPEN: Final = Script.beside(__file__, "question_open")
_SHARE: Final = Script.beside(__file__, "question_share")
_FORGET: Final = Script.beside(__file__, "question_forget")
_DECIDE: Final = Script.beside(__file__, "question_decide")
_VOTE: Final = Script.beside(__file__, "question_vote")
_TAKE: Final = Script("due_take")
_FORGET_MEMBER: Final = Script.beside(__file__, "question_forget_member")

_TAKEN_MAX: Final = 50
"""Questions taken at once: some milliseconds of work for each."""

_SCANNED: Final = 1000
"""Questions that Redis looks at in one command, for those of topics: under a millisecond."""


class StoredQuestion(Struct, frozen=True, array_like=True):
    """A question as it was asked.

    Attributes:
        digest: of the message, which tells a repeat from another message with the same id.
        asked_ms: when, ms since the epoch.
        question: with its deadline.
        priority: of the message.
        body: of the message, its members in JSON without braces.
        shared: whether two requests have asked it, of which one may be refused.
    """

    digest: bytes
    asked_ms: int
    question: Question
    priority: int
    body: bytes
    shared: bool = False


class Asked(Struct, frozen=True):
    """A question in storage, and its answer if it has one."""

    stored: StoredQuestion
    answer: GivenAnswer | None


class TooMany(Exception):
    """The user has as many questions as one may have, or the question as many answers of members."""


_question: Final = msgspec.msgpack.Decoder(StoredQuestion)
_answer: Final = msgspec.msgpack.Decoder(GivenAnswer)
_encode: Final = msgspec.msgpack.Encoder().encode


class MoreVotes(Exception):
    """Members have answered since their answers were counted."""


class QuestionStore:
    """The questions of all users.

    Args:
        clients: of the stores, the first one first.
        per_user_max: questions of a user.
        replicas: that must have a write before it is confirmed.
    """

    def __init__(self, clients: Sequence[redis.Redis], per_user_max: int, replicas: Replicas = NO_REPLICAS) -> None:
        self._clients = clients
        self._per_user_max = per_user_max
        self._replicas = replicas

    @property
    def stores(self) -> int:
        return len(self._clients)

    async def open(self, key: str, id: str, stored: StoredQuestion) -> Asked:
        """Store a question, unless there is one with its id. Returns the one that is stored. Raises StorageUnavailable, TooMany."""
        keys = [questions_key(key), QUESTIONS_DUE_KEY, answers_key(key)]
        arguments = [id, _encode(stored), _member(key, id), stored.question.deadline, self._per_user_max]
        while True:
            reply = await _OPEN.run(self._of(key), keys, arguments, self._replicas)
            if reply[0] == b"FULL":
                raise TooMany
            if reply[0] == b"OK":
                return Asked(stored, None)
            known = _asked(reply[1], reply[2] or None)
            if known.answer is not None or known.stored.shared or known.stored.digest != stored.digest:
                return known
            shared = msgspec.structs.replace(known.stored, shared=True)
            if (await _SHARE.run(self._of(key), keys[:1], [id, reply[1], _encode(shared)], self._replicas))[0] == b"OK":
                return Asked(shared, None)

    async def forget_refused(self, key: str, id: str, stored: StoredQuestion) -> None:
        """Forget a question that `open` has stored, unless another request has asked it since. Raises StorageUnavailable."""
        keys = [questions_key(key), answers_key(key), votes_key(key, id), QUESTIONS_DUE_KEY]
        await _FORGET.run(self._of(key), keys, [id, _encode(stored), _member(key, id)])

    async def decide(self, key: str, id: str, answer: GivenAnswer, now_ms: int, votes: int | None = None) -> GivenAnswer | None:
        """Store the answer, unless there is one. Returns the one that is stored; None without the question.

        Args:
            votes: how many the answer follows from; None: from none.

        Raises StorageUnavailable; MoreVotes: there are others by now, and nothing is stored.
        """
        keys = [questions_key(key), answers_key(key), QUESTIONS_DUE_KEY, votes_key(key, id)]
        arguments = [id, _encode(answer), _member(key, id), now_ms, "" if votes is None else votes]
        reply = await _DECIDE.run(self._of(key), keys, arguments, self._replicas)
        if reply[0] == b"MORE":
            raise MoreVotes
        if reply[0] == b"NONE":
            return None
        return answer if reply[0] == b"OK" else _answer.decode(reply[1])

    async def vote(self, key: str, id: str, vote: GivenAnswer, members_max: int) -> dict[str, GivenAnswer] | None:
        """Store what a member of a topic answers, unless it has answered, or the question has its answer.

        Returns the votes by user, without this one when it came too late; None without the question.

        Raises StorageUnavailable, TooMany.
        """
        keys, arguments = [questions_key(key), votes_key(key, id), answers_key(key)], [id, vote.by, _encode(vote), members_max]
        status, *votes = await _VOTE.run(self._of(key), keys, arguments, self._replicas)
        if status == b"FULL":
            raise TooMany
        return _votes(votes[0]) if votes else None

    async def votes(self, key: str, id: str) -> dict[str, GivenAnswer]:
        """The votes by user. Raises StorageUnavailable."""
        pipeline = self._of(key).pipeline(transaction=False)
        pipeline.hgetall(votes_key(key, id))
        (found,) = await _execute(pipeline)
        return {user.decode(): _answer.decode(vote) for user, vote in found.items()}

    async def subscribers(self, tenant: str, topic: str) -> int:
        """How many users of the tenant are subscribed to a topic. Raises StorageUnavailable."""
        total = 0
        for client in self._clients:
            pipeline = client.pipeline(transaction=False)
            pipeline.hget(SUBSCRIBERS_PREFIX + tenant, topic)
            (count,) = await _execute(pipeline)
            total += int(count or 0)
        return total

    async def read(self, key: str, id: str) -> Asked | None:
        """The question with this id of this user. Raises StorageUnavailable."""
        ((question, answer),) = await self._of_both([(key, id)], lambda pipeline, key, id: pipeline.hget(key, id))
        return None if question is None else _asked(question, answer)

    async def are_open(self, names: Sequence[tuple[str, str]]) -> list[bool]:
        """Whether each of these questions is there, and has no answer. It reads none of them. Raises StorageUnavailable."""
        found = await self._of_both(names, lambda pipeline, key, id: pipeline.hexists(key, id))
        return [bool(question and not answer) for question, answer in found]

    async def _of_both(self, names: Sequence[tuple[str, str]], command: Callable[[Any, str, str], object]) -> list[tuple[Any, Any]]:
        """The replies to a command about each of these questions, and about its answer."""
        found: list[tuple[Any, Any]] = [(None, None)] * len(names)
        for store, client in enumerate(self._clients):
            places = [place for place, (key, _) in enumerate(names) if store_of(slot_of(key), len(self._clients)) == store]
            if not places:
                continue
            pipeline = client.pipeline(transaction=True)  # an answer without its question has been deleted meanwhile
            for key, id in [names[place] for place in places]:
                command(pipeline, questions_key(key), id)
                command(pipeline, answers_key(key), id)
            replies = await _execute(pipeline)
            for place, question, answer in zip(places, replies[::2], replies[1::2], strict=True):
                found[place] = question, answer
        return found

    async def all_of(self, key: str) -> dict[str, Asked | None]:
        """All questions of a user, by id; None for one that cannot be read. Raises StorageUnavailable."""
        pipeline = self._of(key).pipeline(transaction=True)
        pipeline.hgetall(questions_key(key))
        pipeline.hgetall(answers_key(key))
        questions, answers = await _execute(pipeline)
        every = ((id.decode(), question, answers.get(id)) for id, question in questions.items())
        return {id: _unless_damaged("question", key, id, _asked, question, answer) for id, question, answer in every}

    async def take(self, store: int, now_ms: int, lease_ms: int) -> list[tuple[str, str]]:
        """Take questions of a store that are due, and hold them for `lease_ms`. Returns users and ids. Raises StorageUnavailable."""
        arguments = [now_ms, now_ms + lease_ms, _TAKEN_MAX]
        _, *members = await _TAKE.run(self._clients[store], [QUESTIONS_DUE_KEY], arguments)
        parted = (member.decode().rpartition("\n") for member in members)
        return [(key, id) for key, _, id in parted]

    async def look_again(self, key: str, id: str, at_ms: int) -> None:
        """Set the time at which the question is due. Raises StorageUnavailable."""
        with StorageCalls("questions"):
            await self._of(key).zadd(QUESTIONS_DUE_KEY, {_member(key, id): at_ms}, xx=True)

    async def forget(self, key: str, *ids: str) -> None:
        """Delete questions of a user and their answers. Raises StorageUnavailable."""
        if not ids:
            return
        pipeline = self._of(key).pipeline(transaction=True)
        pipeline.hdel(questions_key(key), *ids)
        pipeline.hdel(answers_key(key), *ids)
        pipeline.delete(*(votes_key(key, id) for id in ids))
        pipeline.zrem(QUESTIONS_DUE_KEY, *(_member(key, id) for id in ids))
        await _execute(pipeline)

    async def given_to_topics(self, key: str) -> AsyncIterator[tuple[str, str, GivenAnswer]]:
        """What a user has answered to questions of topics: audience keys, ids and answers. Raises StorageUnavailable.

        There is no index by member: it would cost each vote a second write, on another store. This looks at all questions, for an export
        or an erasure.
        """
        user = split_key(key)[1]
        async for audience, id, vote, answer in self._answers_of_topics(key):
            given = _readable(audience, id, answer if vote is None else vote)
            if given is not None and given.by == user:
                yield audience, id, given

    async def erase(self, key: str) -> None:
        """Delete all questions of a user, and the user's name from answers to topics. Raises StorageUnavailable."""
        pipeline = self._of(key).pipeline(transaction=True)
        pipeline.hkeys(questions_key(key))
        pipeline.hkeys(answers_key(key))
        await self.forget(key, *{id.decode() for ids in await _execute(pipeline) for id in ids})
        user = split_key(key)[1]
        async for audience, id, vote, answer in self._answers_of_topics(key):
            given = _readable(audience, id, answer)
            texts: list[Any] = ["", ""]
            if given is not None and given.by == user:
                texts = [answer, _encode(given.without_user())]
            elif vote is None:
                continue
            keys = [answers_key(audience), votes_key(audience, id)]
            await _FORGET_MEMBER.run(self._of(audience), keys, [id, user, *texts], self._replicas)

    async def _answers_of_topics(self, key: str) -> AsyncIterator[tuple[str, str, bytes | None, bytes | None]]:
        """Of each question to a topic of the user's tenant: audience key, id, what the user answered, and the answer; as stored."""
        tenant, user = split_key(key)
        async for audience, id in self._of_topics(tenant):
            pipeline = self._of(audience).pipeline(transaction=True)
            pipeline.hget(votes_key(audience, id), user)
            pipeline.hget(answers_key(audience), id)
            vote, answer = await _execute(pipeline)
            yield audience, id, vote, answer

    async def _of_topics(self, tenant: str) -> AsyncIterator[tuple[str, str]]:
        """Audience keys and ids of the questions to topics of a tenant, each once. Raises StorageUnavailable."""
        for client in self._clients:
            seen: set[bytes] = set()
            cursor = 0
            while True:
                pipeline = client.pipeline(transaction=False)
                pipeline.zscan(QUESTIONS_DUE_KEY, cursor, match=f"{audience_key(tenant, '')}*", count=_SCANNED)
                ((cursor, found),) = await _execute(pipeline)
                for member in [member for member, _ in found if member not in seen]:
                    seen.add(member)
                    audience, _, id = member.decode().rpartition("\n")
                    yield audience, id
                if not cursor:
                    break

    def _of(self, key: str) -> redis.Redis:
        return self._clients[store_of(slot_of(key), len(self._clients))]


def _member(key: str, id: str) -> str:
    return f"{key}\n{id}"  # an id has no line feed


def _readable(key: str, id: str, stored: bytes | None) -> GivenAnswer | None:
    """An answer among those that others gave: one that cannot be read holds up no user."""
    return None if stored is None else _unless_damaged("an answer to", key, id, _answer.decode, stored)


def _votes(flat: Sequence[bytes]) -> dict[str, GivenAnswer]:
    return {user.decode(): _answer.decode(vote) for user, vote in zip(flat[::2], flat[1::2], strict=True)}


def _asked(question: bytes, answer: bytes | None) -> Asked:
    return Asked(_question.decode(question), None if answer is None else _answer.decode(answer))


def _unless_damaged(what: str, key: str, id: str, read: Callable[..., T], *stored: bytes | None) -> T | None:
    """What is read of a question of this user; None where it cannot be read, which is logged."""
    try:
        return read(*stored)
    except ValueError as error:
        log.error("%s %s of %s cannot be read: %s", what, id, key, error)
        return None


async def _execute(pipeline: Any) -> list[Any]:
    with StorageCalls("questions"):
        replies: list[Any] = await pipeline.execute()
    return replies
