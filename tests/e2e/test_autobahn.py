"""RFC 6455, case by case: the Autobahn test suite's fuzzing client against our WebSocket connection.

The suite wants an echo server, so the connection of protocols/websocket carries an echo here instead of a channel.
It needs Python 2.7; `wstest` comes with the package `autobahntestsuite`.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

from broker.services import Services
from protocols.http.heads import split_head
from protocols.streams.hub import Hub
from protocols.websocket.connection import WebSocket
from protocols.websocket.frames import FrameForm
from protocols.websocket.handshake import Handshake
from protocols.websocket.wire import encode_frame
from tests.fakes import new_refusals
from tests.properties import in_ci
from tests.protocols.websocket.peers import whole_head

# 9 sends messages beyond the 64 KiB that reference 19.1 allows; 12 and 13 are about compression, which the
# handshake does not offer.
_CASES = ["1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "10.*"]
_PASSED = {"OK", "NON-STRICT", "INFORMATIONAL"}


class Echo(WebSocket):
    """Sends each message back."""

    form = FrameForm.JSON

    def take_messages(self, messages: Sequence[str | bytes]) -> None:
        for message in messages:
            self.say(encode_frame(message))


async def echo(services: Services, hub: Hub, stream: trio.SocketStream) -> None:
    head, early = split_head(await whole_head(stream))
    handshake = Handshake(head, stream, new_refusals())
    if await handshake.receive() is not None:
        await handshake.accept()
        await Echo(services, stream, hub).run(early)


@in_ci  # test_wire.py and test_frames.py have the frames
@pytest.mark.timeout(300)
async def test_the_connection_passes_the_autobahn_suite(services: Services, tmp_path: Path) -> None:
    wstest = shutil.which("wstest")
    if wstest is None:
        pytest.skip("wstest (autobahntestsuite, Python 2.7) is not installed")
    async with trio.open_nursery() as nursery:
        serve = partial(echo, services, Hub(nursery, services.core.life))
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        spec = tmp_path / "fuzzingclient.json"
        spec.write_text(
            json.dumps(
                {
                    "outdir": str(tmp_path / "report"),
                    "servers": [{"agent": "trunkline", "url": f"ws://127.0.0.1:{port}"}],
                    "cases": _CASES,
                    "exclude-cases": [],
                    "exclude-agent-cases": {},
                }
            )
        )
        await trio.run_process(
            [wstest, "--mode", "fuzzingclient", "--spec", str(spec)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
        )
        nursery.cancel_scope.cancel()
    cases = json.loads((tmp_path / "report" / "index.json").read_text())["trunkline"]
    failed = {
        name: (case["behavior"], case["behaviorClose"])
        for name, case in cases.items()
        if case["behavior"] not in _PASSED or case["behaviorClose"] not in _PASSED
    }
    assert len(cases) > 200
    assert failed == {}
