"""Programs of CoAP's tests: the server, and libcoap's clients."""

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from tests.benchmarks.coap_server import CoapServer, serving
from tests.daemon import device_token
from tests.programs import require_dtls

DEVICES = 60
TIMEOUT_SECONDS = 60
STATE = '{"data":{"state":true}}'
#: The option `-k` takes bytes, so this device has a printable token.
KEY = "sixteen bytes ok"


class CoapServerThread:
    """The server of `tests.benchmarks.coap_server`, which serves only CoAP, beside the test's own thread."""

    def __init__(self, folder: Path, certificates: Sequence[Path]) -> None:
        """`certificates` is a chain and its key, or two of each."""
        require_dtls()
        self._begun: Future[tuple[CoapServer, trio.lowlevel.TrioToken]] = Future()
        self._over = trio.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._serve, folder, certificates))
        self._thread.start()
        self._server, self._token = self._begun.result(TIMEOUT_SECONDS)
        self.plain, self.dtls = self._server.plain, self._server.dtls

    async def _serve(self, folder: Path, certificates: Sequence[Path]) -> None:
        try:
            async with serving(folder, certificates, DEVICES, KEY.encode().hex()) as server:
                self._begun.set_result((server, trio.lowlevel.current_trio_token()))
                await self._over.wait()
        except BaseException as error:
            if not self._begun.done():
                self._begun.set_exception(error)
            raise

    def act(self, number: int) -> None:
        """Send an Action to a device."""
        trio.from_thread.run(self._server.act, number, trio_token=self._token)

    def is_online(self, number: int) -> bool:
        return trio.from_thread.run(self._server.is_online, number, trio_token=self._token)

    def statistics(self) -> dict[str, Any]:
        found: dict[str, Any] = trio.from_thread.run_sync(self._server.statistics, trio_token=self._token)
        return found

    def stop(self) -> None:
        trio.from_thread.run_sync(self._over.set, trio_token=self._token)
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()

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
