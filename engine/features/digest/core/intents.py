"""Stage 1: the intent of a message by rules, from what its publisher says. What no rule settles is left to a model, or stays by itself.

The rules, in this order; each gives a key, and messages of one key have one intent:

    failed      a type or state that says something failed, with a target or a branch     (failed, what)
    deed        a type that ends in a deed of people (`post.liked`), or what one leaves   (deed, target)
                behind (`issue_comment.created`)
    thing       a target                                                                  (what it is, target)
    sender      an actor, and a type that says that somebody wrote (`message.received`)   (message, actor)
    template    a text that differs from another of its type in numbers and quoted
                names only                                                                (type, template)

A type is words joined by dots, and a word may be words joined by underscores: `github.pull_request_review_comment.created`. The last
word is what happened when there are several, the one before it what it happened to. Words with the same meaning are one (`WORDS`).
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from engine.features.digest.core.missed import Missed

FAILED: Final = "failed"
DEEDS: Final = {
    "liked": "liked", "like": "liked", "upvoted": "liked", "reacted": "liked", "loved": "liked", "favorited": "liked",
    "bookmarked": "saved", "saved": "saved", "starred": "starred", "unstarred": "unstarred", "watched": "watched", "forked": "forked",
    "followed": "followed", "follow": "followed", "mentioned": "mentioned", "mention": "mentioned", "shared": "shared",
    "reposted": "shared", "commented": "commented", "replied": "commented", "reply": "commented", "answered": "commented",
    "reviewed": "reviewed", "review_requested": "asked", "review_request": "asked", "review_request_removed": "asked",
    "joined": "joined", "invited": "invited",
}  # fmt: skip
"""What people do to something, by the words for it."""

THINGS: Final = {
    "comment": "comment", "reply": "comment", "review": "review", "star": "star", "watch": "watch", "fork": "fork",
    "check": "build", "workflow": "build", "build": "build", "pipeline": "build", "job": "build", "suite": "build", "ci": "build",
    "deployment": "deployment", "deploy": "deployment", "project": "project", "projects": "project", "team": "team", "membership": "team",
    "installation": "installation", "release": "release", "vulnerability": "vulnerability", "dependabot": "vulnerability",
}  # fmt: skip
"""What something is, by the words of it that decide: of `pull_request_review_comment` it is `review`, the first of these in it."""

ALONE: Final = ("followed", "joined", "invited")
"""Deeds that need no target: it is the reader."""

FAILURES: Final = frozenset(("failed", "failure", "fail", "error", "errored", "timed_out", "startup_failure", "crashed"))
MESSAGES: Final = frozenset(("message", "chat", "dm", "mail", "email", "sms", "call"))
_DONE: Final = {"star": "starred", "watch": "watched", "fork": "forked", "comment": "commented", "review": "reviewed"}
_UNDONE: Final = {"starred": "unstarred", "watched": "unwatched", "forked": "unforked"}
_VARYING: Final = re.compile(r"[0-9]+|[\"'“”‘’«»「」『』][^\"'“”‘’«»「」『』]*[\"'“”‘’«»「」『』]|#\S+|@\S+")


class Intent(Struct, frozen=True, gc=False):
    """What a message is about.

    Args:
        verb: `failed`, a deed, `changed` for what happened to a thing, `wrote`, or `said` for a template.
        thing: the word for what it happened to, "" where the deed says it.
        subject: which one; the same key means the same intent.
    """

    verb: str
    thing: str
    subject: str


def intent_of(missed: Missed) -> Intent | None:
    """The intent of a message by the rules; None when they do not settle it."""
    words = missed.type.split(".")
    happened = words[-1]
    deed = DEEDS.get(happened)
    names_thing = len(words) == 1 or (len(words) == 2 and deed is None and happened not in FAILURES and not happened.endswith("ed"))
    noun = happened if names_thing else words[-2]
    thing = "build" if noun == "status" and missed.scope else _thing(noun)
    subject = _subject(missed, thing)
    if subject and (happened in FAILURES or missed.state in FAILURES):
        return Intent(FAILED, thing, subject)
    if deed is None or names_thing:
        deed = _done(thing, happened)
    if deed is not None and (missed.target or deed in ALONE):
        return Intent(deed, "", subject)
    if subject:
        return Intent("changed", thing, subject)
    if missed.actors and not MESSAGES.isdisjoint(noun.split("_")):
        return Intent("wrote", noun, missed.actors[0])
    return None


def template_of(missed: Missed) -> str:
    """The text without what varies between messages made from one template; "" without a text, or where nothing is left of it."""
    constant = _VARYING.sub("#", missed.text)
    return constant if constant != missed.text and sum(map(str.isalpha, constant)) > 3 else ""


def _thing(noun: str) -> str:
    words = noun.split("_")
    for word in ("review", "comment"):
        if word in words:
            return word
    return next((THINGS[word] for word in words if word in THINGS), noun)


def _done(thing: str, happened: str) -> str | None:
    deed = _DONE.get(thing)
    return _UNDONE.get(deed, deed) if deed is not None and happened in ("deleted", "removed") else deed


def _subject(missed: Missed, thing: str) -> str:
    """Which one. A branch or thread of a place says more than the place."""
    if missed.scope and (thing == "build" or missed.target in ("", missed.place)):
        return f"{missed.place}@{missed.scope}"
    return missed.target
