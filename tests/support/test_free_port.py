from __future__ import annotations

import pytest

from tests.support import free_port as module
from tests.support.free_port import free_port


def test_a_port_that_was_given_out_is_given_to_nobody_else_although_nobody_listens_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(module, "_PORTS", range(port, port + 1))
    with pytest.raises(RuntimeError, match="is free"):
        free_port()
