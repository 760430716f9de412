"""The simulated device against the server, over DTLS."""

import http.server
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial

import pytest
import trio

from broker.device_management.sessions import ObservationSettings, latest
from broker.services import Services
from config.settings import Address
from protocols.cli.simulated import lwm2m as simulated
from protocols.cli.simulated.board import Board, Result, State
from protocols.cli.simulated.simulation import LinkLostError, Simulation
from protocols.coap.dtls.connection import LWM2M_PRIORITIES
from protocols.coap.dtls.listener import DtlsListener
from protocols.coap.lwm2m.datagrams import Lwm2mEndpoint
from protocols.coap.lwm2m.server import Lwm2mServer
from tests.factories import KITCHEN, KITCHEN_TOKEN
from tests.fakes import run_inline
from tests.programs import require_dtls
from tests.protocols.coap.lwm2m.conftest import Management
from tests.served import served

URI, UPDATE, STATE, RESULT, VERSION = (5, 0, 1), (5, 0, 2), (5, 0, 3), (5, 0, 5), (3, 0, 3)


@pytest.fixture
async def address(services: Services, world: object, management: Management) -> AsyncIterator[Address]:
    require_dtls()
    management.observation = ObservationSettings(is_enabled=True, pmin=0, pmax=60)
    server = Lwm2mServer(services, management, pause_seconds=0)
    listener = DtlsListener(services, endpoint=Lwm2mEndpoint(server), priorities=LWM2M_PRIORITIES, run=run_inline)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield await nursery.start(partial(listener.serve, Address("127.0.0.1", 0), None))
        nursery.cancel_scope.cancel()


def _plan(address: Address, count: int | None) -> Simulation:
    return Simulation(
        address.host, address.port, KITCHEN, KITCHEN_TOKEN, lambda _: {"temperature": 21.5}, 0.01, count, "Board"
    )


@pytest.fixture
def image() -> Iterator[str]:
    """The address of a firmware image."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"2.0.0\n" + bytes(1000) if self.path == "/image" else b"\0\0"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with served(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/image"


async def test_registers_and_notifies(address: Address, management: Management) -> None:
    """Its first notifications may be of other paths: the server observes one after the other."""
    plan = _plan(address, None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(simulated.serve_board, plan)
        await management.wait(lambda: {(3303, 0, 5700), VERSION} <= management.values.keys())
        plan.count = plan.sent + 3
    assert management.values[(3303, 0, 5700)] == 21.5
    assert management.values[VERSION] == "1.0.0"


async def test_installs_a_firmware_and_registers_anew(
    address: Address, management: Management, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "_REBOOT_SECONDS", 0.01)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(simulated.serve_board, _plan(address, None))
        session = await management.session()
        await session.write(URI, image)
        await management.wait(lambda: management.values[STATE] == State.DOWNLOADED)
        await session.execute(UPDATE)
        session = await management.session(2)
        assert latest(await session.read(VERSION)) == {VERSION: "2.0.0"}
        assert latest(await session.read((5, 0))) == {STATE: State.IDLE, RESULT: Result.SUCCESS}
        nursery.cancel_scope.cancel()


async def test_refuses_what_is_no_image(address: Address, management: Management, image: str) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(simulated.serve_board, _plan(address, None))
        session = await management.session()
        for uri, result in ((image + "/other", Result.UNSUPPORTED), ("file:///etc/passwd", Result.INVALID_URI)):
            await session.write(URI, uri)
            await management.wait(lambda result=result: management.values[RESULT] == result)  # type: ignore[misc]
        nursery.cancel_scope.cancel()


async def test_that_nobody_knows_loses_its_link(address: Address) -> None:
    plan = replace(_plan(address, 1), device="0" * 32)
    with pytest.raises(LinkLostError, match="alert"):
        await trio.to_thread.run_sync(simulated.run, plan)


def test_a_board_answers_what_it_does_not_have() -> None:
    board = Board(lambda: 20.0)
    assert board.answer(3, (3, 0, 15), b"Europe/Paris") == (0x44, b"")
    assert board.answer(1, (3, 0, 15), b"") == (0x45, b'[{"bn":"/3/0/","n":"15","vs":"Europe/Paris"}]')
    assert board.answer(1, (4, 0), b"") == (0x84, b"")
    assert board.answer(3, (3, 0, 0), b"x") == (0x85, b"")
    assert board.answer(2, (5, 0, 2), b"") == (0x85, b"")  # nothing is downloaded
