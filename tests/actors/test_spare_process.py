"""What a process that has nothing to do has done when it announces itself, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

PROCESS = """
import gc, json, sys, threading, weakref
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

BROKEN = sys.argv[1:]

class Cycle:
    pass

def announce(pid):
    print(json.dumps({"loaded": sorted(sys.modules), "collected": garbage() is None, "frozen": gc.get_freeze_count()}))

class Replaced(MetaPathFinder, Loader):
    # What tells Ray's other processes of this one, which is none of Ray; and modules that are broken.
    def find_spec(self, name, path, target=None):
        return ModuleSpec(name, self) if name in (WARM, *BROKEN) else None

    def exec_module(self, module):
        if module.__name__ in BROKEN:
            raise RuntimeError("made for another version")
        module.is_idle, module.announce = lambda: True, announce

WARM = "engine.actors.warm_processes"
sys.meta_path.insert(0, Replaced())
gc.disable()  # what is collected is collected by the warm-up
cycle = Cycle()
cycle.itself = cycle
garbage = weakref.ref(cycle)
del cycle
import engine.actors.spare_process
for thread in threading.enumerate():
    if thread.name == "engine-spare":
        thread.join()
"""


def announced(*broken: str) -> Any:
    """What was so when the process announced itself; these modules raise an error when they are imported."""
    done = subprocess.run([sys.executable, "-c", PROCESS, *broken], capture_output=True, text=True, check=True)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_it_has_loaded_what_shards_and_edges_and_ray_s_first_value_need_and_collected_garbage_before_it_announces_itself() -> None:
    found = announced()
    assert {"engine.actors.shard", "engine.actors.edge", "ray._common.pydantic_compat", "pyarrow"} <= set(found["loaded"])
    assert found["collected"]
    assert found["frozen"] > 0


@pytest.mark.parametrize("library", ["pyarrow", "ray._common.pydantic_compat"])
def test_a_library_of_ray_s_that_is_broken_does_not_keep_the_node_without_a_spare_process(library: str) -> None:
    found = announced(library)
    assert "engine.actors.edge" in found["loaded"]
    assert library not in found["loaded"]
