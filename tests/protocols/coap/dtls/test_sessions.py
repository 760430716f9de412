"""DTLS sessions: how they begin and end, and datagrams that must not affect them."""

import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trio
from OpenSSL import SSL
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from broker.services import Services
from broker.threads import finish_in_thread
from config.limits import COAP_IDLE_SECONDS
from config.settings import Address
from protocols.coap.dtls.connection import DtlsConnection
from protocols.coap.dtls.listener import DtlsListener, serve_coap_dtls
from protocols.coap.messages import Code
from protocols.coap.observers import Observers
from protocols.coap.session import SessionLimits
from protocols.coap.session_endpoint import SESSION_SWEEP_SECONDS
from tests.factories import HALL_TOKEN, KITCHEN, KITCHEN_TOKEN, World
from tests.fakes import run_inline
from tests.programs import require_dtls
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.dtls.client import (
    PSK,
    DtlsClient,
    dtls_client,
    make_certificate,
    observe,
    post,
    psk_context,
    still_serves,
)


@pytest.fixture(autouse=True)
def library() -> None:
    require_dtls()


class TestSessions:
    async def test_begin_although_the_last_flight_was_lost(self, client: DtlsClient, listener: DtlsListener) -> None:
        """The client sends its flight again and gets the last flight again (RFC 6347, 4.2.4)."""
        await client.handshake(answers=2)  # the cookie and the first flight of the server
        await client.begin()
        with trio.fail_after(5):
            await client.socket.recv(4096)
        await client.send_again()
        with trio.fail_after(60):
            while not await client.begin():
                # A client repeats its flight until the server answers (RFC 6347, 4.2.4).
                with trio.move_on_after(2) as silence:
                    client.session.bio_write(await client.socket.recv(4096))
                if silence.cancelled_caught:
                    await client.send_again()
        assert (await client.ask(post(1))).code == Code.CREATED
        assert listener.statistics().handshakes == 1

    async def test_end_with_close_notify_and_leave_others_alone(
        self, client: DtlsClient, address: Address, listener: DtlsListener, context: SSL.Context
    ) -> None:
        await client.handshake()
        await client.ask(post(1))
        with dtls_client(address, context) as other:
            await other.handshake()
            await other.ask(post(1))
            await client.send_close_notify()
            assert (await other.ask(post(2))).code == Code.CREATED
            assert listener.statistics().sessions == 1

    async def test_of_an_address_are_replaced(
        self, client: DtlsClient, listener: DtlsListener, context: SSL.Context
    ) -> None:
        await client.handshake()
        await client.ask(post(1))
        client.connect(context)
        await client.handshake()
        assert (await client.ask(post(1))).code == Code.CREATED
        assert listener.statistics().sessions == 1

    async def test_are_left_alone_by_a_handshake_that_does_not_end(
        self, client: DtlsClient, listener: DtlsListener, context: SSL.Context
    ) -> None:
        """An attacker who has seen a ClientHello of the client can send it again."""
        await client.handshake()
        await client.ask(post(1))
        session = client.session
        client.connect(context)
        await client.handshake(answers=1)
        await client.begin()
        client.session = session
        assert (await client.ask(post(2))).code == Code.CREATED
        assert (listener.statistics().sessions, listener.statistics().half_open) == (1, 1)

    async def test_are_left_alone_by_a_late_copy_of_their_hello(
        self, client: DtlsClient, listener: DtlsListener
    ) -> None:
        await client.handshake(answers=1)
        hello = await client.begin_with()
        await client.handshake()
        await client.ask(post(1))
        await client.socket.send(hello)
        await client.ask(post(2))
        assert listener.statistics().half_open == 0
        await client.send_close_notify()
        with trio.fail_after(5):
            while listener.statistics().sessions:
                await trio.lowlevel.checkpoint()

    async def test_that_are_being_replaced_end_with_close_notify(
        self, client: DtlsClient, listener: DtlsListener, context: SSL.Context
    ) -> None:
        await client.handshake()
        await client.ask(post(1))
        goodbye = client.close_notify()
        client.connect(context)
        await client.handshake(answers=1)
        await client.begin()
        await client.socket.send(goodbye)
        with trio.fail_after(5):
            while listener.statistics().sessions:
                await trio.lowlevel.checkpoint()

    async def test_end_although_their_end_raises(
        self, client: DtlsClient, address: Address, listener: DtlsListener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("an unexpected exception")

        await client.handshake()
        await client.ask(post(1))
        with capture_logs() as logs, monkeypatch.context() as patched:
            patched.setattr(Observers, "shut_down", fail)
            await client.send_close_notify()
            with trio.fail_after(5):
                while listener.statistics().sessions:
                    await trio.lowlevel.checkpoint()
        assert [entry["event"] for entry in logs] == ["coap_session_failed"]
        await still_serves(address)

    async def test_account_for_the_certificate_of_their_peer(
        self, address: Address, listener: DtlsListener, context: SSL.Context, tmp_path: Path
    ) -> None:
        """GnuTLS keeps a copy."""
        certificate, key = make_certificate(tmp_path, "ecdsa", padding=8_000)
        context.use_certificate_file(str(certificate))
        context.use_privatekey_file(str(key))
        with dtls_client(address, context) as client:
            await client.handshake()
            assert listener.endpoint.statistics().bytes_held > 16_000

    async def test_refuse_renegotiation(self, client: DtlsClient, listener: DtlsListener) -> None:
        await client.handshake()
        await client.ask(post(1))
        session = client.session
        assert session.renegotiate()
        await client.begin()
        with trio.fail_after(5):
            session.bio_write(await client.socket.recv(4096))
        with pytest.raises(SSL.Error, match="no renegotiation"):
            session.do_handshake()
        assert listener.statistics().handshakes == 1

    async def test_without_observation_end_after_ten_minutes(
        self, client: DtlsClient, listener: DtlsListener, time: Time
    ) -> None:
        await client.handshake()
        await client.ask(post(1))
        time.now += COAP_IDLE_SECONDS - SESSION_SWEEP_SECONDS
        listener.endpoint.tick(listener.endpoint.now())
        await wait_all_tasks_blocked()
        assert listener.statistics().sessions == 1
        time.now += 2 * SESSION_SWEEP_SECONDS
        listener.endpoint.tick(listener.endpoint.now())
        assert listener.statistics().sessions == 0
        with pytest.raises(SSL.ZeroReturnError):  # so it begins a new connection when it has something to send
            await client.receive()

    async def test_that_observe_end_offline(self, client: DtlsClient, services: Services, world: World) -> None:
        await client.handshake()
        await client.ask(observe(1))
        assert services.routing.connections.is_online(world.kitchen)
        await client.send_close_notify()
        with trio.fail_after(5):
            while services.routing.connections.is_online(world.kitchen):
                await trio.lowlevel.checkpoint()

    async def test_that_raise_end_and_leave_others_alone(
        self, client: DtlsClient, address: Address, listener: DtlsListener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("an unexpected exception")

        await client.handshake()
        await client.ask(post(1))
        with capture_logs() as logs, monkeypatch.context() as patched:
            patched.setattr(listener.endpoint, "receive", fail)
            await client.send(post(2))
            with trio.fail_after(5):
                while listener.statistics().sessions:
                    await trio.lowlevel.checkpoint()
        assert [entry["event"] for entry in logs] == ["coap_session_failed"]
        await still_serves(address)

    async def test_a_handshake_that_raises_leaves_others_alone(
        self, client: DtlsClient, address: Address, listener: DtlsListener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("an unexpected exception")

        with capture_logs() as logs, monkeypatch.context() as patched:
            patched.setattr(DtlsConnection, "go_on", fail)
            await client.handshake(answers=1)
            await client.begin()
            with trio.fail_after(5):
                while not listener.statistics().handshakes_failed:
                    await trio.lowlevel.checkpoint()
        assert [entry["event"] for entry in logs] == ["coap_handshake_failed"]
        assert listener.statistics().half_open == 0
        await still_serves(address)

    @pytest.mark.parametrize("run", [finish_in_thread])
    async def test_get_answers_during_a_step_of_another_handshake(
        self, client: DtlsClient, address: Address, context: SSL.Context, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        go_on, begun, may_go_on = DtlsConnection.go_on, trio.Event(), threading.Event()

        def wait_and_go_on(connection: DtlsConnection, record: bytes | None) -> bool:
            trio.from_thread.run_sync(begun.set)
            assert may_go_on.wait(10)
            return go_on(connection, record)

        await client.handshake()
        with dtls_client(address, context) as other:
            monkeypatch.setattr(DtlsConnection, "go_on", wait_and_go_on)
            try:
                await other.handshake(answers=1)
                await other.begin()
                await begun.wait()
                assert (await client.ask(post(1))).code == Code.CREATED
            finally:
                may_go_on.set()
            await other.handshake()
            assert (await other.ask(post(1))).code == Code.CREATED

    async def test_garbage_is_dropped(self, client: DtlsClient) -> None:
        await client.handshake()
        record = client.encrypt(post(1))
        for garbage in (b"", b"\x17", record[:-1], record[:-1] + b"x", b"\xff" * 100, b"\x16" * 40, record[:13]):
            await client.socket.send(garbage)
        assert (await client.ask(post(2))).message_id == 2

    async def test_a_replayed_record_is_dropped(self, client: DtlsClient, services: Services) -> None:
        await client.handshake()
        record = client.encrypt(post(1))
        for _ in range(3):
            await client.socket.send(record)
        await client.receive()
        assert (await client.ask(post(2))).message_id == 2
        assert services.messages.ingest.statistics().messages == 2

    async def test_share_a_commit_for_all_records_of_one_wake_up(self, client: DtlsClient, services: Services) -> None:
        await client.handshake()
        await client.ask(post(1))
        commits = services.core.database.statistics().commits
        client.send_at_once([post(message_id) for message_id in range(2, 40)])
        answers = [await client.receive() for _ in range(2, 40)]
        assert {answer.message_id for answer in answers} == set(range(2, 40))
        assert services.core.database.statistics().commits == commits + 1

    async def test_records_in_one_datagram_are_separate_messages(self, client: DtlsClient) -> None:
        await client.handshake()
        await client.socket.send(client.encrypt(post(1)) + client.encrypt(post(2)))
        assert {(await client.receive()).message_id, (await client.receive()).message_id} == {1, 2}

    async def test_end_with_close_notify_in_a_datagram_with_a_message(
        self, client: DtlsClient, address: Address, listener: DtlsListener
    ) -> None:
        """All records of the datagram go to the session, because the first is a message."""
        await client.handshake()
        await client.ask(post(1))
        await client.socket.send(client.encrypt(post(2)) + client.close_notify())
        with trio.fail_after(5):
            while listener.statistics().sessions:
                await trio.lowlevel.checkpoint()
        assert not listener.endpoint.statistics().sessions
        await still_serves(address)

    async def test_a_path_may_name_another_device_than_the_key(self, address: Address) -> None:
        """The token in the path decides: a gateway sends for its devices."""
        with dtls_client(address, psk_context(KITCHEN, KITCHEN_TOKEN, PSK)) as client:
            await client.handshake()
            assert (await client.ask(post(1, HALL_TOKEN))).code == Code.CREATED


async def test_the_evicted_session_gets_close_notify(
    services: Services, world: World, certificates: dict[str, tuple[Path, Path]], context: SSL.Context
) -> None:
    listener = DtlsListener(services, limits=SessionLimits(sessions=2), run=run_inline)
    serve = partial(serve_coap_dtls, services, Address("127.0.0.1", 0), *certificates["ecdsa"], listener=listener)
    async with trio.open_nursery() as nursery:
        address = await nursery.start(serve)
        with ExitStack() as stack:
            clients = [stack.enter_context(dtls_client(address, context)) for _ in range(3)]
            for number, one in enumerate(clients):
                await one.handshake()
                assert (await one.ask(post(number))).code == Code.CREATED
            with pytest.raises(SSL.ZeroReturnError):
                await clients[0].receive()
            assert (await clients[1].ask(post(9))).code == Code.CREATED
        assert listener.endpoint.statistics().evicted == 1
        nursery.cancel_scope.cancel()


async def test_stop_tells_observers(
    services: Services, world: World, certificates: dict[str, tuple[Path, Path]], context: SSL.Context
) -> None:
    serve = partial(serve_coap_dtls, services, Address("127.0.0.1", 0), *certificates["ecdsa"])
    async with trio.open_nursery() as nursery:
        address = await nursery.start(serve)
        with dtls_client(address, context) as client:
            await client.handshake()
            await client.ask(observe(1))
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                assert (await client.receive()).code == Code.SERVICE_UNAVAILABLE
    assert not services.routing.connections.is_online(world.kitchen)
