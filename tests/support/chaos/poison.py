"""A defect put into the shards of a real engine: one message ends whichever takes it, every time.

The code is run by Python's `sitecustomize` in the processes of a test's engine; the engine has no part in it.
"""

from __future__ import annotations

from typing import Final

POISON_ID: Final = "poison"

POISONED_SHARDS: Final = f"""
import importlib.abc, importlib.machinery, sys

class Poisoned(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "engine.core.shard.shard":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            enqueue = module.ShardCore._enqueue

            def failing(core, pending, now_ms):
                if pending.post.envelope.id == "{POISON_ID}":
                    raise ZeroDivisionError
                enqueue(core, pending, now_ms)

            module.ShardCore._enqueue = failing

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Poisoned())
"""
"""Python source. Every process that imports the shard has it; others are as they were."""
