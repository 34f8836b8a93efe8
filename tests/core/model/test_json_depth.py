"""How deeply JSON is nested."""

from __future__ import annotations

import time

import pytest

from engine.core.model.json_depth import within_depth


def nested(depth: int, size: int = 0) -> bytes:
    """An array of at least one array of this depth, about so many bytes."""
    one = b'[{"]":' * (depth // 2) + b"[" * (depth % 2) + b'"[{"' + b"]" * (depth % 2) + b"}]" * (depth // 2)
    return b"[" + b",".join([one] * max(size // len(one), 1)) + b"]"


@pytest.mark.parametrize("limit", [1, 15, 16, 17, 200])
def test_a_text_is_measured_exactly_at_the_limit(limit: int) -> None:
    assert [within_depth(nested(depth, 1000), limit) for depth in (limit - 2, limit - 1, limit) if depth >= 0][-2:] == [True, False]


def test_deep_nesting_costs_little_more_than_shallow() -> None:
    def took_s(text: bytes) -> float:
        begun_s = time.process_time()
        assert within_depth(text, 200)
        return time.process_time() - begun_s

    shallow, deep = nested(8, 64_000), nested(190, 64_000)
    assert min(took_s(deep) for _ in range(7)) < 6 * min(took_s(shallow) for _ in range(7))
