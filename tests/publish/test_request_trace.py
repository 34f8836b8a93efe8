"""The contexts of a request's items: given by the publisher, in the header or in an item."""

from __future__ import annotations

import pytest

from engine.errors import Invalid
from engine.publish.request_trace import RequestTrace, handed_on
from tests.support.listed_spans import SAMPLED, UNSAMPLED


def test_a_context_is_handed_on_as_it_came_and_the_items_own_goes_first() -> None:
    trace = RequestTrace(str(SAMPLED))
    assert trace.context("a", None) == SAMPLED
    assert trace.context("b", str(UNSAMPLED)) == UNSAMPLED
    assert RequestTrace("nonsense").context("a", None) is None, "as W3C Trace Context wants it"
    assert handed_on(str(SAMPLED)) == SAMPLED
    assert handed_on(None) is None
    with pytest.raises(Invalid, match=r"W3C") as refused:
        trace.context("c", "nonsense")
    assert refused.value.path == "$.traceparent"
