"""A program `trunkline` for the shells of tests: each command is a fork, as tests/fork_server.py makes it.

Saves 12 of 25 s of processor time in tests/e2e/test_readme.py.
"""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Final

from tests.fork_server import ForkServer, running

# Signals wait until there is a command to which they can go.
_PROGRAM: Final = """#!{python} -IS
import json, os, signal, socket, sys
PASSED_ON = signal.SIGINT, signal.SIGTERM
signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
request = json.dumps([sys.argv, dict(os.environ), os.getcwd()]).encode()
report, theirs = socket.socketpair()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as tests, theirs:
    tests.connect({address!r})
    socket.send_fds(tests, [request], [0, 1, 2, theirs.fileno()])
command = int(report.recv({number_bytes}))
for number in PASSED_ON:
    signal.signal(number, lambda number, _frame: os.kill(command, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
status = int(report.recv({number_bytes}))
sys.exit(status if status >= 0 else 128 - status)
"""


@contextmanager
def forked_program(folder: Path) -> Iterator[None]:
    """Until the block ends, there is a program `trunkline` in the folder. It passes SIGINT and SIGTERM on."""
    server = running({})
    assert server is not None
    program = folder / "trunkline"
    with (
        TemporaryDirectory(prefix="trunkline-") as short,  # an address has at most 107 bytes
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening,
    ):
        address = f"{short}/forks"
        text = _PROGRAM.format(python=sys.executable, address=address, number_bytes=ForkServer.NUMBER_BYTES)
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
        listening.bind(address)
        listening.listen()
        thread = Thread(target=_hand_over, args=(listening, server))
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)  # ends `accept`
            thread.join()
            program.unlink()


def _hand_over(listening: socket.socket, server: ForkServer) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection:
            server.hand_over(connection)
