"""Names as labels: the first ones have their own, all others share one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.model.bounded_names import OTHER, BoundedNames
from engine.core.model.names import is_tenant


@given(st.lists(st.text(max_size=3)), st.integers(0, 5))
def test_the_first_names_stay_themselves_and_the_rest_are_one(names: list[str], names_max: int) -> None:
    bounded = BoundedNames(names_max)
    first = list(dict.fromkeys(names))[:names_max]
    assert [bounded.of(name) for name in names] == [name if name in first else OTHER for name in names]


def test_no_tenant_is_taken_for_the_others() -> None:
    assert not is_tenant(OTHER)
