"""Subscriptions on their way into the journal: what is answered at once, what waits, and what it costs."""

from __future__ import annotations

from engine.core.commit.subscription_step import SubscriptionStep
from engine.core.mailbox.mailbox import Mailbox
from engine.core.wire.records import OK, OVERLOADED, UNAVAILABLE, Subscribe, Subscribed
from tests.support.operations import calls_of

EDGE = "edge-0/1"


def request(ref: int, *topics: str, key: str = "t:u", remove: tuple[str, ...] = ()) -> Subscribe:
    return Subscribe(ref, key, list(topics), list(remove))


def test_what_changes_nothing_is_answered_at_once() -> None:
    step, mailbox = SubscriptionStep(4), Mailbox("t:u", 0)
    mailbox.topics = {"news": 7}
    assert step.ask(mailbox, EDGE, request(1, "news", remove=("sport",))) == Subscribed(1, OK, ["news"])
    assert (len(step.waiting), step.busy()) == (0, set())


def test_behind_a_waiting_request_of_the_same_user_the_next_one_waits_too() -> None:
    step, mailbox, other = SubscriptionStep(4), Mailbox("t:u", 0), Mailbox("t:v", 0)
    mailbox.topics = {"news": 7}
    assert step.ask(mailbox, EDGE, request(1, remove=("news",))) is None
    assert step.ask(mailbox, EDGE, request(2, "news")) is None, "by then the first one has removed it"
    assert step.ask(other, EDGE, request(3, key="t:v")) == Subscribed(3, OK, [])
    assert step.busy() == {"t:u"}
    (change,), at_once = step.take(9)
    assert (change.topics, at_once) == ({"news": 9}, [])
    assert [answer for _, answer in change.answers] == [Subscribed(1, OK, []), Subscribed(2, OK, ["news"])]
    assert (len(step.waiting), step.busy()) == (0, set())
    step.committed()
    assert step.ask(mailbox, EDGE, request(4, "news")) == Subscribed(4, OK, ["news"]), "nothing waits any more"


def test_more_topics_than_allowed_are_refused_and_the_others_of_the_group_stand() -> None:
    step, mailbox = SubscriptionStep(2), Mailbox("t:u", 0)
    for ref, topics in enumerate([("a",), ("b", "c"), ("b",)], 1):
        assert step.ask(mailbox, EDGE, request(ref, *topics)) is None
    (change,), at_once = step.take(5)
    assert change.topics == {"a": 5, "b": 5}
    assert at_once == [(EDGE, Subscribed(2, OVERLOADED, ["a"]))]


def test_a_refused_group_answers_unavailable_only_after_its_rollback() -> None:
    step, mailbox = SubscriptionStep(4), Mailbox("t:u", 0)
    step.ask(mailbox, EDGE, request(1, "a"))
    changes, _ = step.take(5)
    step.ask(mailbox, EDGE, request(2, "b"))
    assert step.refused(changes) == [(EDGE, Subscribed(2, UNAVAILABLE, []))]
    assert step.busy() == set()
    assert step.rolled_back() == [(EDGE, Subscribed(1, UNAVAILABLE, []))]


def test_the_cost_of_a_request_does_not_grow_with_those_that_wait() -> None:
    def ask_and_take(count: int) -> int:
        step, mailboxes = SubscriptionStep(4), [Mailbox(f"t:{n}", 0) for n in range(count)]

        def work() -> None:
            for n, mailbox in enumerate(mailboxes):
                step.ask(mailbox, EDGE, request(n, "news", key=mailbox.key))
            step.take(1)

        return calls_of(work)

    assert ask_and_take(2000) < 3 * ask_and_take(1000)
