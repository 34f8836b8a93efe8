"""Stands before the package of this name, which only Ray's dashboard needs: so Ray takes itself for installed without extras.

That is how requirements/engine.txt installs it on nodes. With the extras of the tests a node's agents import for seconds, on a busy machine
longer than the 15 s that Ray 2.60 waits for the port of one of them; then the node aborts, and `ray start` waits for it in vain.
"""

raise ModuleNotFoundError("as on a node, where Ray has no extras", name=__name__)
