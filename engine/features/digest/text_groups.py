"""Texts to groups of one intent, by static embeddings on a CPU: the model behind stage 2 of the digest unless another one is configured.

The vectors are those of wordllama, whose wheel brings its weights, so nothing is downloaded. Two texts are alike by the cosine of their
vectors, and by the words, or pairs of characters, that both have and few others. Vectors are taken from a centre, which removes what all
texts of a language have in common: that of the texts of the call and of some ordinary ones, as a call may have two texts only. A text
joins the group whose latest `CONTEXT_MAX` texts it is most alike, on average, when that is at least `ALIKE_MIN`; otherwise it begins one
(leader clustering, with a bounded context).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

CONTEXT_MAX: Final = 5
"""Texts of a group that a new one is compared with: a discussion moves on."""

ALIKE_MIN: Final = 0.16
LEXICAL_SHARE: Final = 0.5
"""Both tuned on the labelled messages that are not held out (`python -m bench digest`), where 0.13 to 0.2 are about as good. Lower,
two unrelated texts in Chinese are too often taken for one."""

_ORDINARY: Final = (
    "You have a new message", "Your order was shipped this morning", "Please confirm your email address",
    "The meeting starts in ten minutes", "Your subscription ends next week", "Somebody answered your question",
    "The report is ready for download", "We have updated our terms of service", "Your password was changed",
    "New photos were added to the album",
    "您有一条新消息", "您的订单今早已发货", "请确认您的邮箱地址", "会议十分钟后开始", "您的订阅下周到期", "有人回答了您的问题",
    "报告可以下载了", "我们更新了服务条款", "您的密码已修改", "相册里添加了新照片",
)  # fmt: skip

MISSING: Final = (
    "the sentence model needs wordllama, which is not installed here: pip install 'ray-notification-engine[digest]'; "
    "until then digests are made by rules alone"
)


class ModelMissing(Exception):
    """The packages of the extra `digest` are not installed."""


class TextGroups:
    """The model. Loading takes a second and some 100 MB.

    Raises:
        ModelMissing: wordllama is not installed.
    """

    def __init__(self) -> None:
        try:
            import wordllama
        except ImportError as error:
            raise ModelMissing(MISSING) from error
        # Its loader looks for the tokenizer in `cache_dir/tokenizers`, and the wheel brings it in the package's own folder of that name.
        self._model: Any = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
        self._ordinary = self._model.embed(list(_ORDINARY))

    def group(self, windows: Sequence[Sequence[str]]) -> list[list[int]]:
        """For each window, the number of the group of each of its texts: 0 for the first one, and so on."""
        texts = list(dict.fromkeys(text for window in windows for text in window))
        if not texts:
            return [[] for _ in windows]
        features = self._features(texts)
        places = {text: place for place, text in enumerate(texts)}
        return [_groups(features[[places[text] for text in window]]) if window else [] for window in windows]

    def _features(self, texts: Sequence[str]) -> Any:
        """A row for each text; how alike two are is the product of their rows, 1 for the same."""
        import numpy as np

        vectors = self._model.embed(list(texts))
        dense, dense_ordinary = np.array([*map(_is_dense, texts)]), np.array([*map(_is_dense, _ORDINARY)])
        for script in (False, True):
            if (dense == script).any():
                centre = np.concatenate((vectors[dense == script], self._ordinary[dense_ordinary == script])).mean(axis=0)
                vectors[dense == script] -= centre
        vectors *= math.sqrt(1 - LEXICAL_SHARE) / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        words = _weighted([_parts(text) for text in texts])
        columns = {part: column for column, part in enumerate(sorted({part for found in words for part in found}))}
        lexical = np.zeros((len(texts), len(columns)), dtype=np.float32)
        for row, found in zip(lexical, words, strict=True):
            row[[columns[part] for part in found]] = list(found.values())
        return np.concatenate((vectors, lexical * math.sqrt(LEXICAL_SHARE)), axis=1)


def _groups(features: Any) -> list[int]:
    import numpy as np

    members: list[list[int]] = []
    centres = np.empty_like(features)  # of the latest texts of each group: the mean of products is the product with the mean
    numbers = []
    for text, row in enumerate(features):
        alike = centres[: len(members)] @ row
        number = int(alike.argmax()) if members else 0
        if not members or alike[number] < ALIKE_MIN:
            number = len(members)
            members.append([])
        members[number].append(text)
        centres[number] = features[members[number][-CONTEXT_MAX:]].mean(axis=0)
        numbers.append(number)
    return numbers


def _is_dense(text: str) -> bool:
    """Whether most of the letters are of a script without spaces."""
    return sum(char > "\u2e7f" for char in text) * 2 > sum(map(str.isalpha, text))


def _parts(text: str) -> set[str]:
    """Words, and pairs of characters in scripts without spaces. Long words by their beginning: `invoice`, `invoices`."""
    low = text.lower()
    words = "".join(char if char.isalnum() and char <= "\u2e7f" else " " for char in low).split()
    pairs = {a + b for a, b in pairwise(low) if a > "\u2e7f" and b > "\u2e7f" and a.isalnum() and b.isalnum()}
    return pairs | {word[:6] for word in words}


def _weighted(texts: Sequence[set[str]]) -> list[dict[str, float]]:
    """TF-IDF of length 1."""
    uses = Counter(part for found in texts for part in found)
    rare = {part: math.log((1 + len(texts)) / (1 + count)) + 0.1 for part, count in uses.items()}
    weighted = []
    for found in texts:
        length = math.sqrt(sum(rare[part] ** 2 for part in found)) or 1.0
        weighted.append({part: rare[part] / length for part in found})
    return weighted
