"""The sentence model, where its extra is installed, and what is said where it is not."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from engine.features.digest.text_groups import ModelMissing, TextGroups

installed = pytest.mark.skipif(importlib.util.find_spec("wordllama") is None, reason="needs the extra `digest`")


@pytest.fixture(scope="module")
def model() -> TextGroups:
    return TextGroups()


@installed
def test_texts_that_say_the_same_are_one_group_in_english_and_chinese(model: TextGroups) -> None:
    english = [
        "The lift is broken",
        "The parcel arrives today",
        "Our lift is still broken, use the stairs",
        "Your parcel arrives this afternoon",
    ]
    chinese = ["电梯坏了", "包裹今天送达", "电梯仍然坏着请走楼梯", "您的包裹今天下午送达"]
    assert model.group([english, chinese]) == [[0, 1, 0, 1], [0, 1, 0, 1]]


@installed
def test_each_window_is_grouped_by_itself(model: TextGroups) -> None:
    assert model.group([[], ["The lift is broken"], ["The lift is broken"] * 2]) == [[], [0], [0, 0]]
    assert model.group([]) == []


def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wordllama", None)
    with pytest.raises(ModelMissing, match=r"pip install 'ray-notification-engine\[digest\]'"):
        TextGroups()
