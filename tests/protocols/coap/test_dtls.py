"""The DTLS listener: certificates, pre-shared keys, and peers that behave badly."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trio
from OpenSSL import SSL
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from broker.secrets import token_hash
from broker.services import Services
from config.limits import COAP_IDLE_SECONDS
from config.settings import Address
from protocols.coap.dtls import HELLOS_PER_WAKE_UP, DtlsListener, serve_coap_dtls
from protocols.coap.dtls_connection import DtlsConnection, DtlsContext
from protocols.coap.endpoint import SWEEP_SECONDS, Endpoint
from protocols.coap.gnutls import DtlsUnavailable
from protocols.coap.messages import CON, Code, Message, Option
from protocols.coap.session import SessionLimits
from protocols.tls import CHAIN_BYTES
from storage.database import Transaction
from storage.records import DeviceTokenRecord
from tests.factories import HALL_TOKEN, KITCHEN, KITCHEN_TOKEN, World
from tests.programs import require_dtls
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.dtls_client import DtlsClient, client_context, dtls_client, make_certificate, psk_context

STATE = b'{"data":{"state":true}}'
ECDSA, PSK = b"ECDHE-ECDSA-AES128-CCM8", b"PSK-AES128-CCM8"
HALF_OPEN = 4


@pytest.fixture(autouse=True)
def library() -> None:
    require_dtls()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("certificates")
    return {kind: make_certificate(folder, kind) for kind in ("ecdsa", "rsa")}


@pytest.fixture
def kind() -> str:
    return "ecdsa"


@pytest.fixture
async def listener(services: Services, time: Time) -> DtlsListener:
    begin = time.now
    endpoint = Endpoint(services, now=lambda: trio.current_time() + time.now - begin)  # as fast as it is, or faster
    return DtlsListener(services, endpoint=endpoint, limits=SessionLimits(half_open_handshakes=HALF_OPEN))


@pytest.fixture
async def address(
    services: Services,
    world: World,
    listener: DtlsListener,
    certificates: dict[str, tuple[Path, Path]],
    kind: str,
) -> AsyncIterator[Address]:
    serve = partial(serve_coap_dtls, services, Address("127.0.0.1", 0), *certificates[kind], listener=listener)
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve)
        nursery.cancel_scope.cancel()


@pytest.fixture
def context() -> SSL.Context:
    return client_context(ECDSA)


@pytest.fixture
def client(address: Address, context: SSL.Context) -> Iterator[DtlsClient]:
    with dtls_client(address, context) as client:
        yield client


def _post(message_id: int, token: str = KITCHEN_TOKEN) -> Message:
    path = tuple((int(Option.URI_PATH), one) for one in (b"v1.1", b"messages", token.encode()))
    return Message(CON, Code.POST, message_id, b"t", path, STATE)


def _observe(message_id: int, token: str = KITCHEN_TOKEN) -> Message:
    path = tuple((int(Option.URI_PATH), one) for one in (b"v1.1", b"actions", token.encode()))
    return Message(CON, Code.GET, message_id, b"o", ((Option.OBSERVE, b""), *path))


class TestCertificates:
    @pytest.mark.parametrize(
        ("kind", "cipher"),
        [
            ("ecdsa", "ECDHE-ECDSA-AES128-CCM8"),
            ("ecdsa", "ECDHE-ECDSA-AES128-GCM-SHA256"),
            ("ecdsa", "ECDHE-ECDSA-AES128-SHA256"),
            ("rsa", "ECDHE-RSA-AES128-GCM-SHA256"),
            ("rsa", "ECDHE-RSA-AES128-SHA256"),
        ],
    )
    async def test_of_the_server(self, address: Address, cipher: str) -> None:
        with dtls_client(address, client_context(cipher.encode())) as client:
            await client.handshake()
            assert client.cipher == cipher
            assert (await client.ask(_post(1))).code == Code.CREATED

    async def test_of_one_kind_are_no_two(
        self, services: Services, certificates: dict[str, tuple[Path, Path]], tmp_path: Path
    ) -> None:
        other = make_certificate(tmp_path, "rsa")
        with pytest.raises(OSError, match="same kind of key"):
            await serve_coap_dtls(services, Address("127.0.0.1", 0), *certificates["rsa"], second=other)

    async def test_of_a_client_are_neither_required_nor_verified(
        self, address: Address, certificates: dict[str, tuple[Path, Path]], context: SSL.Context
    ) -> None:
        context.use_certificate_file(str(certificates["rsa"][0]))
        context.use_privatekey_file(str(certificates["rsa"][1]))
        with dtls_client(address, context) as client:
            await client.handshake()
            assert (await client.ask(_post(1))).code == Code.CREATED

    async def test_of_a_client_are_refused_when_they_are_too_long(
        self, address: Address, listener: DtlsListener, context: SSL.Context, tmp_path: Path
    ) -> None:
        certificate, key = make_certificate(tmp_path, "ecdsa", padding=CHAIN_BYTES)
        context.use_certificate_file(str(certificate))
        context.use_privatekey_file(str(key))
        with dtls_client(address, context) as client, pytest.raises(SSL.Error, match="alert"):
            await client.handshake()
        assert listener.statistics().handshakes_failed == 1

    async def test_that_cannot_be_read(self, services: Services, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="cannot use certificate"):
            await serve_coap_dtls(services, Address("127.0.0.1", 0), tmp_path / "none.pem", tmp_path / "none.key")


@pytest.mark.parametrize("order", [("ecdsa", "rsa"), ("rsa", "ecdsa")])
@pytest.mark.parametrize("cipher", ["ECDHE-ECDSA-AES128-CCM8", "ECDHE-RSA-AES128-GCM-SHA256"])
async def test_two_certificates_serve_clients_of_either_kind(
    services: Services,
    world: World,
    certificates: dict[str, tuple[Path, Path]],
    order: tuple[str, str],
    cipher: str,
) -> None:
    first, second = (certificates[kind] for kind in order)
    serve = partial(serve_coap_dtls, services, Address("127.0.0.1", 0), *first, second=second)
    async with trio.open_nursery() as nursery:
        address = await nursery.start(serve)
        with dtls_client(address, client_context(cipher.encode())) as client:
            await client.handshake()
            assert client.cipher == cipher
            assert (await client.ask(_post(1))).code == Code.CREATED
        nursery.cancel_scope.cancel()


class TestPreSharedKeys:
    @pytest.mark.parametrize(
        "cipher",
        [
            "PSK-AES128-CCM8",
            "PSK-AES128-CCM",
            "PSK-AES128-GCM-SHA256",
            "PSK-AES128-CBC-SHA256",
            "ECDHE-PSK-AES128-CBC-SHA256",
        ],
    )
    async def test_device_id_and_token(self, address: Address, cipher: str) -> None:
        with dtls_client(address, psk_context(KITCHEN, KITCHEN_TOKEN, cipher.encode())) as client:
            await client.handshake()
            assert client.cipher == cipher
            assert (await client.ask(_post(1))).code == Code.CREATED

    @pytest.mark.parametrize(
        ("identity", "key"),
        [
            pytest.param(KITCHEN, HALL_TOKEN, id="another device's key"),
            pytest.param("f" * 32, KITCHEN_TOKEN, id="no such device"),
            pytest.param("root", KITCHEN_TOKEN, id="no device id"),
            pytest.param("\N{SNOWMAN}", KITCHEN_TOKEN, id="no ASCII"),
        ],
    )
    async def test_wrong(self, address: Address, listener: DtlsListener, identity: str, key: str) -> None:
        with dtls_client(address, psk_context(identity, key, PSK)) as client:
            # An unknown identity is told so; a wrong key decrypts nothing, and nothing answers.
            with pytest.raises((SSL.Error, trio.TooSlowError)):
                await client.handshake(seconds=0.2)
            assert listener.statistics().sessions == 0
            await _still_serves(address)

    async def test_are_read_anew_for_each_handshake(self, address: Address, services: Services, world: World) -> None:
        for token in (KITCHEN_TOKEN, "77" * 16):
            sealed = services.core.vault.seal(token)
            await services.core.database.write(partial(_put_sealed, world, sealed))
            with dtls_client(address, psk_context(KITCHEN, token, PSK)) as client:
                await client.handshake()

    async def test_that_cannot_be_read_are_not_told_to_be_unknown(
        self, address: Address, services: Services, listener: DtlsListener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A device would take itself for one that was deleted."""

        async def fail(*_: object) -> None:
            raise RuntimeError("a disk")

        with monkeypatch.context() as patched, capture_logs() as logs:
            patched.setattr(services.devices.registry, "pre_shared_key", fail)
            context = psk_context(KITCHEN, KITCHEN_TOKEN, PSK)
            with dtls_client(address, context) as client, pytest.raises(trio.TooSlowError):
                await client.handshake(seconds=0.2)
        assert [entry["event"] for entry in logs] == ["coap_key_not_read"]
        assert listener.statistics().handshakes_failed == 1
        await _still_serves(address)


def _put_sealed(world: World, sealed: bytes, tx: Transaction) -> None:
    tx.devices.put_token(DeviceTokenRecord(world.kitchen, token_hash(KITCHEN_TOKEN), sealed, world.application, 1))


async def _still_serves(address: Address) -> None:
    with dtls_client(address, client_context(ECDSA)) as client:
        await client.handshake()
        assert (await client.ask(_post(1))).code == Code.CREATED


class TestSessions:
    async def test_begin_although_our_last_flight_was_lost(self, client: DtlsClient, listener: DtlsListener) -> None:
        """The peer sends its own again and gets ours again (RFC 6347 section 4.2.4)."""
        await client.handshake(answers=2)  # our cookie and our first flight
        await client.begin()
        with trio.fail_after(5):
            await client.socket.recv(4096)
        await client.send_again()
        await client.handshake()
        assert (await client.ask(_post(1))).code == Code.CREATED
        assert listener.statistics().handshakes == 1

    async def test_end_with_close_notify_and_disturb_nobody(
        self, client: DtlsClient, address: Address, listener: DtlsListener, context: SSL.Context
    ) -> None:
        await client.handshake()
        await client.ask(_post(1))
        with dtls_client(address, context) as other:
            await other.handshake()
            await other.ask(_post(1))
            await client.say_goodbye()
            assert (await other.ask(_post(2))).code == Code.CREATED
            assert listener.statistics().sessions == 1

    async def test_of_an_address_are_replaced(
        self, client: DtlsClient, listener: DtlsListener, context: SSL.Context
    ) -> None:
        await client.handshake()
        await client.ask(_post(1))
        client.connect(context)
        await client.handshake()
        assert (await client.ask(_post(1))).code == Code.CREATED
        assert listener.statistics().sessions == 1

    async def test_are_left_alone_by_a_handshake_that_does_not_end(
        self, client: DtlsClient, listener: DtlsListener, context: SSL.Context
    ) -> None:
        """Whoever has seen a hello of theirs can say it again."""
        await client.handshake()
        await client.ask(_post(1))
        session = client.session
        client.connect(context)
        await client.handshake(answers=1)
        await client.begin()
        client.session = session
        assert (await client.ask(_post(2))).code == Code.CREATED
        assert (listener.statistics().sessions, listener.statistics().half_open) == (1, 1)

    async def test_are_left_alone_by_a_late_copy_of_their_hello(
        self, client: DtlsClient, listener: DtlsListener
    ) -> None:
        await client.handshake(answers=1)
        hello = await client.begin_with()
        await client.handshake()
        await client.ask(_post(1))
        await client.socket.send(hello)
        await client.ask(_post(2))
        assert listener.statistics().half_open == 0
        await client.say_goodbye()
        with trio.fail_after(5):
            while listener.statistics().sessions:
                await trio.lowlevel.checkpoint()

    async def test_that_are_being_replaced_can_say_goodbye(
        self, client: DtlsClient, listener: DtlsListener, context: SSL.Context
    ) -> None:
        await client.handshake()
        await client.ask(_post(1))
        goodbye = client.close_notify()
        client.connect(context)
        await client.handshake(answers=1)
        await client.begin()
        await client.socket.send(goodbye)
        with trio.fail_after(5):
            while listener.statistics().sessions:
                await trio.lowlevel.checkpoint()

    async def test_that_meet_a_bug_while_they_end_disturb_nobody(
        self, client: DtlsClient, address: Address, listener: DtlsListener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("a bug")

        await client.handshake()
        await client.ask(_post(1))
        with capture_logs() as logs, monkeypatch.context() as patched:
            patched.setattr(listener.endpoint, "close", fail)
            await client.say_goodbye()
            with trio.fail_after(5):
                while listener.statistics().sessions:
                    await trio.lowlevel.checkpoint()
        assert [entry["event"] for entry in logs] == ["coap_session_failed"]
        await _still_serves(address)

    async def test_account_for_the_certificate_of_their_peer(
        self, address: Address, listener: DtlsListener, context: SSL.Context, tmp_path: Path
    ) -> None:
        """GnuTLS has it, too."""
        certificate, key = make_certificate(tmp_path, "ecdsa", padding=8_000)
        context.use_certificate_file(str(certificate))
        context.use_privatekey_file(str(key))
        with dtls_client(address, context) as client:
            await client.handshake()
            assert listener.endpoint.statistics().bytes_held > 16_000

    async def test_do_not_negotiate_anew(self, client: DtlsClient, listener: DtlsListener) -> None:
        await client.handshake()
        await client.ask(_post(1))
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
        await client.ask(_post(1))
        time.now += COAP_IDLE_SECONDS - SWEEP_SECONDS
        listener.endpoint.tick(listener.endpoint.now())
        await wait_all_tasks_blocked()
        assert listener.statistics().sessions == 1
        time.now += 2 * SWEEP_SECONDS
        listener.endpoint.tick(listener.endpoint.now())
        assert listener.statistics().sessions == 0
        with pytest.raises(SSL.ZeroReturnError):  # so that it begins anew when it has something to say
            await client.receive()

    async def test_that_observe_end_offline(self, client: DtlsClient, services: Services, world: World) -> None:
        await client.handshake()
        await client.ask(_observe(1))
        assert services.routing.connections.is_online(world.kitchen)
        await client.say_goodbye()
        with trio.fail_after(5):
            while services.routing.connections.is_online(world.kitchen):
                await trio.lowlevel.checkpoint()

    async def test_that_meet_a_bug_end_and_disturb_nobody(
        self, client: DtlsClient, address: Address, listener: DtlsListener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("a bug")

        await client.handshake()
        await client.ask(_post(1))
        with capture_logs() as logs, monkeypatch.context() as patched:
            patched.setattr(listener.endpoint, "receive", fail)
            await client.send(_post(2))
            with trio.fail_after(5):
                while listener.statistics().sessions:
                    await trio.lowlevel.checkpoint()
        assert [entry["event"] for entry in logs] == ["coap_session_failed"]
        await _still_serves(address)

    async def test_a_bug_in_a_handshake_disturbs_nobody(
        self, client: DtlsClient, address: Address, listener: DtlsListener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("a bug")

        with capture_logs() as logs, monkeypatch.context() as patched:
            patched.setattr(DtlsConnection, "shake_hands", fail)
            await client.handshake(answers=1)
            await client.begin()
            with trio.fail_after(5):
                while not listener.statistics().handshakes_failed:
                    await trio.lowlevel.checkpoint()
        assert [entry["event"] for entry in logs] == ["coap_handshake_failed"]
        assert listener.statistics().half_open == 0
        await _still_serves(address)

    async def test_garbage_is_dropped(self, client: DtlsClient) -> None:
        await client.handshake()
        record = client.encrypt(_post(1))
        for garbage in (b"", b"\x17", record[:-1], record[:-1] + b"x", b"\xff" * 100, b"\x16" * 40, record[:13]):
            await client.socket.send(garbage)
        assert (await client.ask(_post(2))).message_id == 2

    async def test_a_replayed_record_is_dropped(self, client: DtlsClient, services: Services) -> None:
        await client.handshake()
        record = client.encrypt(_post(1))
        for _ in range(3):
            await client.socket.send(record)
        await client.receive()
        assert (await client.ask(_post(2))).message_id == 2
        assert services.messages.ingest.statistics().messages == 2

    async def test_share_a_commit_for_what_has_come(self, client: DtlsClient, services: Services) -> None:
        await client.handshake()
        await client.ask(_post(1))
        commits = services.core.database.statistics().commits
        for message_id in range(2, 40):
            await client.send(_post(message_id))
        answers = [await client.receive() for _ in range(2, 40)]
        assert {answer.message_id for answer in answers} == set(range(2, 40))
        assert services.core.database.statistics().commits - commits < 38

    async def test_records_in_one_datagram_are_separate_messages(self, client: DtlsClient) -> None:
        await client.handshake()
        await client.socket.send(client.encrypt(_post(1)) + client.encrypt(_post(2)))
        assert {(await client.receive()).message_id, (await client.receive()).message_id} == {1, 2}

    async def test_end_with_close_notify_in_a_datagram_with_a_message(
        self, client: DtlsClient, address: Address, listener: DtlsListener
    ) -> None:
        """The record of the message takes the straight way, and so does what comes after it in the datagram."""
        await client.handshake()
        await client.ask(_post(1))
        await client.socket.send(client.encrypt(_post(2)) + client.close_notify())
        with trio.fail_after(5):
            while listener.statistics().sessions:
                await trio.lowlevel.checkpoint()
        assert not listener.endpoint.statistics().sessions
        await _still_serves(address)

    async def test_a_path_may_name_another_device_than_the_key(self, address: Address) -> None:
        """The token in the path decides; a gateway speaks for its devices."""
        with dtls_client(address, psk_context(KITCHEN, KITCHEN_TOKEN, PSK)) as client:
            await client.handshake()
            assert (await client.ask(_post(1, HALL_TOKEN))).code == Code.CREATED


class TestFloods:
    async def test_half_open_handshakes_are_few(
        self, address: Address, listener: DtlsListener, context: SSL.Context
    ) -> None:
        """They have shown a cookie, and say no more."""
        for _ in range(HALF_OPEN * 3):
            with dtls_client(address, context) as client:
                await client.handshake(answers=2)
        await wait_all_tasks_blocked(0.01)
        statistics = listener.statistics()
        assert statistics.half_open <= HALF_OPEN
        assert statistics.half_open_evicted >= HALF_OPEN
        await _still_serves(address)

    async def test_first_hellos_cost_little_and_leave_nothing(
        self, client: DtlsClient, address: Address, listener: DtlsListener, context: SSL.Context
    ) -> None:
        await client.handshake()
        with dtls_client(address, context) as attacker:
            for _ in range(HELLOS_PER_WAKE_UP * 2):
                attacker.connect(context)
                await attacker.begin()
            assert (await client.ask(_post(1))).code == Code.CREATED
        statistics = listener.statistics()
        assert (statistics.half_open, statistics.sessions) == (0, 1)

    async def test_only_so_many_first_hellos_are_looked_at_for_each_wake_up(
        self, address: Address, listener: DtlsListener
    ) -> None:
        """Nothing is awaited while they are sent, so all of them are there when the listener wakes up."""
        hello = b"\x16\xfe\xfd" + bytes(8) + b"\0\x36" + b"\x01" + bytes(53)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
            for _ in range(HELLOS_PER_WAKE_UP + 10):
                attacker.sendto(hello, (address.host, address.port))
            with trio.fail_after(5):
                while not listener.statistics().hellos_dropped:
                    await trio.lowlevel.checkpoint()
        assert listener.statistics().hellos_dropped == 10

    async def test_a_handshake_that_says_too_much_is_ended(
        self, client: DtlsClient, address: Address, listener: DtlsListener
    ) -> None:
        """GnuTLS keeps every ChangeCipherSpec until it is its turn."""
        await client.handshake(answers=2)
        for number in range(1, 100):
            await client.socket.send(b"\x14\xfe\xfd\0\0" + number.to_bytes(6, "big") + b"\0\x01\x01")
        with trio.fail_after(5):
            while not listener.statistics().handshakes_failed:
                await trio.lowlevel.checkpoint()
        assert listener.statistics().half_open == 0
        await _still_serves(address)

    async def test_a_handshake_has_few_keys_looked_up(
        self, client: DtlsClient, services: Services, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []

        async def find(identity: str, _vault: object) -> None:
            asked.append(identity)

        monkeypatch.setattr(services.devices.registry, "pre_shared_key", find)
        await client.handshake(answers=2)
        for number in range(40):
            identity = f"{number // 2:032x}".encode()
            body = len(identity).to_bytes(2, "big") + identity
            length = len(body).to_bytes(3, "big")
            message = b"\x10" + length + b"\0\x09" + b"\0\0\0" + length + body
            header = b"\x16\xfe\xfd\0\0" + (100 + number).to_bytes(6, "big") + len(message).to_bytes(2, "big")
            await client.socket.send(header + message)
            await wait_all_tasks_blocked(0.001)
        assert asked == [f"{number:032x}" for number in range(4)]


async def test_the_oldest_idle_session_goes_and_is_told(
    services: Services, world: World, certificates: dict[str, tuple[Path, Path]], context: SSL.Context
) -> None:
    listener = DtlsListener(services, limits=SessionLimits(sessions=2))
    serve = partial(serve_coap_dtls, services, Address("127.0.0.1", 0), *certificates["ecdsa"], listener=listener)
    async with trio.open_nursery() as nursery:
        address = await nursery.start(serve)
        with ExitStack() as stack:
            clients = [stack.enter_context(dtls_client(address, context)) for _ in range(3)]
            for number, one in enumerate(clients):
                await one.handshake()
                assert (await one.ask(_post(number))).code == Code.CREATED
            with pytest.raises(SSL.ZeroReturnError):
                await clients[0].receive()
            assert (await clients[1].ask(_post(9))).code == Code.CREATED
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
            await client.ask(_observe(1))
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                assert (await client.receive()).code == Code.SERVICE_UNAVAILABLE
    assert not services.routing.connections.is_online(world.kitchen)


async def test_without_a_library_that_works_nothing_is_opened(
    services: Services, certificates: dict[str, tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DtlsContext, "_find_key", lambda *_: -1)
    with pytest.raises(DtlsUnavailable, match="the self-test failed"):
        await serve_coap_dtls(services, Address("127.0.0.1", 0), *certificates["ecdsa"])
