"""The line of a cluster, in English and Chinese.

What rules know is told by a template; a group of texts by the one that has most in common with the others, with how
many more there are. Of equals the earliest is taken: clusters are in time order.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Final

from engine.features.digest.core.clusters import SAID, Cluster
from engine.features.digest.core.missed import Missed

LINE_CHARS_MAX: Final = 160
NAME_CHARS_MAX: Final = 40
"""Of a target's id beside its title: a longer one is for machines."""

_DEEDS: Final = {
    "en": {
        "liked": "{who} liked {what}", "saved": "{who} saved {what}", "starred": "{who} starred {what}",
        "unstarred": "{who} unstarred {what}", "watched": "{who} watch {what}", "unwatched": "{who} stopped watching {what}",
        "forked": "{who} forked {what}", "unforked": "{who} deleted a fork of {what}", "followed": "{who} followed you",
        "mentioned": "{who} mentioned you in {what}", "shared": "{who} shared {what}", "commented": "{n} {comments} on {what}",
        "reviewed": "{n} {reviews} of {what}", "asked": "{n} {requests} for {what}", "joined": "{who} joined {what}",
        "invited": "{who} invited you to {what}", "wrote": "{n} {messages} from {whom}", "failed": "{thing} failed {times} on {what}",
        "changed": "{n} {changes} of {thing} {what}", "other": "{n} other {messages}",
    },
    "zh": {
        "liked": "{who}赞了{what}", "saved": "{who}收藏了{what}", "starred": "{who}标星了{what}", "unstarred": "{who}取消标星{what}",
        "watched": "{who}关注了{what}", "unwatched": "{who}取消关注{what}", "forked": "{who}派生了{what}",
        "unforked": "{who}删除了{what}的派生", "followed": "{who}关注了你", "mentioned": "{who}在{what}中提到了你",
        "shared": "{who}分享了{what}", "commented": "{what}有 {n} 条回复", "reviewed": "{what}有 {n} 条评审",
        "asked": "{what}有 {n} 个评审请求", "joined": "{who}加入了{what}", "invited": "{who}邀请你加入{what}",
        "wrote": "{whom}发来 {n} 条消息", "failed": "{what}的{thing}失败 {n} 次", "changed": "{what}的{thing}有 {n} 次更新",
        "other": "另有 {n} 条消息",
    },
}  # fmt: skip

_THINGS: Final = {
    "zh": {
        "build": "构建", "deployment": "部署", "release": "发布", "backup": "备份", "issue": "问题", "issues": "问题",
        "pull_request": "拉取请求", "discussion": "讨论", "project": "项目", "team": "团队", "order": "订单", "payment": "付款",
        "post": "帖子",
    },
    "en": {"issues": "issue", "build": "builds"},
}  # fmt: skip


def line_of(cluster: Cluster, language: str) -> str:
    """The line of a cluster, at most `LINE_CHARS_MAX` characters."""
    chinese = language == "zh"
    verb = cluster.intent.verb
    if len(cluster.messages) == 1 and verb in (SAID, "changed") and cluster.messages[0].text:
        line = cluster.messages[0].text
    elif verb == SAID:
        line = _text_line(cluster, chinese=chinese)
    else:
        line = _deed_line(cluster, verb, language)
    return line if len(line) <= LINE_CHARS_MAX else line[: LINE_CHARS_MAX - 1].rstrip() + "…"


def _deed_line(cluster: Cluster, verb: str, language: str) -> str:
    chinese = language == "zh"
    n = cluster.count
    people = max(len(cluster.people), n if any(missed.count > 1 for missed in cluster.messages) else 0, 1)
    known = cluster.people[0] if people == 1 and cluster.people else ""
    who = known or (f"{people} 人" if chinese else f"{people} people" if people > 1 else "somebody")
    thing = cluster.intent.thing
    words = {
        "who": who,
        "whom": cluster.intent.subject,
        "what": _what(cluster.messages[-1], thing, chinese=chinese),
        "n": n,
        "thing": _THINGS[language].get(thing) or thing.replace("_", " "),
        "times": "once" if n == 1 else f"{n} times",
        **{f"{word}s": word if n == 1 else f"{word}s" for word in ("comment", "review", "request", "message", "change")},
    }
    return " ".join(_DEEDS[language][verb].format(**words).split())


def _what(missed: Missed, thing: str, *, chinese: bool) -> str:
    """What people call the target: its title; its name where it is more than a number, with its kind where the line has no word for it."""
    if missed.scope and (missed.target in ("", missed.place) or thing == "build"):
        return f"{missed.place} {missed.scope}".strip() if chinese else " of ".join(filter(None, (missed.scope, missed.place)))
    title = f"“{missed.title}”" if missed.title else ""
    if title and (missed.name.isdigit() or len(missed.name) > NAME_CHARS_MAX):
        return title
    kind = missed.kind.replace("_", " ") if not chinese and not thing and missed.kind != "repository" else ""
    what = " ".join(filter(None, (kind, missed.name or missed.target or missed.scope, title)))
    return what or ("这里" if chinese else "it")


def _text_line(cluster: Cluster, *, chinese: bool) -> str:
    text = _central(cluster.messages) or cluster.messages[-1].type
    more = cluster.count - 1
    if not more:
        return text
    return f"{text}（另有 {more} 条）" if chinese else f"{text} (+{more})"


def _central(messages: list[Missed]) -> str:
    """The text that has most in common with the others: by words and, in scripts without spaces, by pairs of characters."""
    texts = list(dict.fromkeys(missed.text for missed in messages if missed.text))
    if len(texts) < 3:
        return texts[0] if texts else ""
    parts = [_parts(text) for text in texts]
    uses = Counter(part for found in parts for part in found)
    scores = [sum(uses[part] - 1 for part in found) / (len(found) + 3) for found in parts]
    return texts[scores.index(max(scores))]


def _parts(text: str) -> set[str]:
    words = text.lower().split()
    pairs = {a + b for a, b in pairwise(text) if a > "\u2e7f" and b > "\u2e7f"}
    return pairs | {word for word in words if word[0] <= "\u2e7f"}
