"""A program that starts a worker of a raylet: forked by a server (`engine.cli.fork_server`), else by its own command.

    worker_start.py SOCKET COMMAND...

A worker with a runtime environment starts by its command, and so does one that keeps objects on disk. The program imports what takes no
time: users may wait for the worker, and with `socket`, `json` and `contextlib` it took 30 ms of CPU instead of 11. `array` alone takes 2.6.
"""

import _socket
import os
import sys

_SETUP = "setup_worker.py"
_WORKER = "default_worker.py"
_OF_SETUP = "--language=PYTHON"
"""What the first of Ray's programs takes out of the command of the second."""

_FILES = b"".join(file.to_bytes(4, sys.byteorder) for file in (0, 1, 2))
"""The standard ones, as a C array of integers."""

_ANSWER_S = 30.0
"""For the server, which may still be loading. Ray waits for a worker for 60 s, and for each one after it as long."""

_BY_COMMAND = ("--serialized-runtime-env-context", "--worker-type")


def forked(path: str, command: list[str]) -> bool:
    """Whether the server has forked this worker."""
    programs = [os.path.basename(word) for word in command[1:3]]
    if programs != [_SETUP, _WORKER] or any(word.startswith(_BY_COMMAND) for word in command):
        return False
    words = [word for word in command[2:] if word != _OF_SETUP]
    request = ascii((words, dict(os.environ), os.getcwd())).encode()
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    server.settimeout(_ANSWER_S)  # one that stands still accepts and answers nothing
    try:
        server.connect(path)
        server.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _FILES)])
        return bool(server.recv(16))
    except OSError:
        return False
    finally:
        server.close()


if __name__ == "__main__":
    _, socket_path, *own = sys.argv
    if not forked(socket_path, own):
        os.execv(own[0], own)
