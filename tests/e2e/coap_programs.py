"""Programs of CoAP's tests: the server in another process, and libcoap's clients."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.daemon import device_token
from tests.programs import require_dtls

DEVICES = 60
TIMEOUT_SECONDS = 60
STATE = '{"data":{"state":true}}'
#: The option `-k` takes bytes, so this device has a printable token.
KEY = "sixteen bytes ok"


class CoapServerProcess:
    """A process of `tests.benchmarks.coap_server`, which serves only CoAP."""

    def __init__(self, folder: Path, certificate: Sequence[Path], prefix: Sequence[str] = ()) -> None:
        """`certificate` is a chain and its key, or two of each."""
        require_dtls()
        self.prefix = tuple(prefix)
        module = "tests.benchmarks.coap_server"
        arguments = [
            *prefix,
            sys.executable,
            "-m",
            module,
            *map(str, (folder, *certificate[:2], DEVICES, *certificate[2:])),
        ]
        environment = {**os.environ, "COAP_SERVER_TOKEN_0": KEY.encode().hex()}
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        ports = self._line()
        self.plain, self.dtls = ports["coap"], ports["coaps"]

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the server ended with {self._process.wait()}"
        found: dict[str, Any] = json.loads(line)
        return found

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def statistics(self) -> dict[str, Any]:
        self.tell("statistics")
        return self._line()

    def stop(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        assert self._process.wait(timeout=TIMEOUT_SECONDS) == 0

    def url(self, path: str, number: int | None = None, *, port: int | None = None, host: str = "127.0.0.1") -> str:
        scheme = "coaps" if port == self.dtls else "coap"
        token = "" if number is None else "/" + (KEY.encode().hex() if number == 0 else device_token(number))
        return f"{scheme}://{host}:{port or self.plain}/{path}{token}"


def run_program(
    *arguments: str | Path, timeout: float = TIMEOUT_SECONDS, variables: Mapping[str, str] | None = None
) -> str:
    """Run a program. Returns its standard output and standard error."""
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout, check=False, env=environment)
    return done.stdout + done.stderr


def message_id(output: str) -> str:
    found = re.search(r'\{"data":\{"mid":"([0-9a-f]{32})"\}\}', output)
    assert found is not None, output
    return found[1]


@contextmanager
def observing_client(*arguments: str | Path) -> Iterator[Callable[[str], None]]:
    """A client that observes. Gives a function that waits until the client has printed a pattern."""
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
    printed = b""

    def wait_for(pattern: str) -> None:
        nonlocal printed
        assert process.stdout is not None
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not re.search(pattern.encode(), printed):
            assert time.monotonic() < deadline, printed
            more = process.stdout.read(1000)
            assert more, printed
            printed += more

    try:
        yield wait_for
    finally:
        process.terminate()
        process.wait(timeout=TIMEOUT_SECONDS)
        assert process.stdout is not None
        process.stdout.close()
