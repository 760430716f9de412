"""DTLS handshakes: certificates, pre-shared keys, floods."""

import socket
from functools import partial
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.bindings._rust import _openssl
from OpenSSL import SSL
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.secrets import Vault, token_hash
from broker.services import Services
from config.settings import Address
from protocols.coap.dtls import client, gnutls
from protocols.coap.dtls.connection import DtlsContext
from protocols.coap.dtls.errors import DtlsUnavailable
from protocols.coap.dtls.listener import _HANDSHAKE_SECONDS, DtlsListener, serve_coap_dtls
from protocols.coap.messages import Code
from protocols.coap.strangers import SOURCE_AT_ONCE
from protocols.streams.tls import CHAIN_BYTES
from storage.records import DeviceTokenRecord
from storage.transaction import Transaction
from tests.factories import HALL_TOKEN, KITCHEN, KITCHEN_TOKEN, World
from tests.programs import require_dtls
from tests.protocols.coap.dtls.client import (
    ECDSA,
    HALF_OPEN,
    PSK,
    DtlsClient,
    client_context,
    dtls_client,
    is_resumed,
    left,
    make_certificate,
    post,
    psk_context,
    still_serves,
)
from tests.rows import each_row


@pytest.fixture(autouse=True)
def library() -> None:
    require_dtls()


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
            assert (await client.ask(post(1))).code == Code.CREATED

    async def test_two_of_the_server_must_be_of_different_kinds(
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
            assert (await client.ask(post(1))).code == Code.CREATED

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


class TestSessionsWithCertificates:
    """A server's certificate, and a device's or none."""

    @pytest.fixture(params=[False, True], ids=["its token", "its certificate, too"])
    def context(
        self, request: pytest.FixtureRequest, certificates: dict[str, tuple[Path, Path]], context: SSL.Context
    ) -> SSL.Context:
        if request.param:
            context.use_certificate_file(str(certificates["ecdsa"][0]))
            context.use_privatekey_file(str(certificates["ecdsa"][1]))
        return context

    async def test_are_resumed_by_the_device(
        self, address: Address, listener: DtlsListener, context: SSL.Context
    ) -> None:
        session = None
        for number in (1, 2, 3):
            with dtls_client(address, context) as client:
                if session is not None:
                    client.session.set_session(session)
                await client.handshake()
                assert is_resumed(client) is (number > 1)
                assert (await client.ask(post(number))).code == Code.CREATED
                session = await left(client)
        assert (listener.statistics().handshakes, listener.statistics().handshakes_resumed) == (3, 2)

    async def test_give_no_access_of_their_own(
        self, address: Address, services: Services, context: SSL.Context
    ) -> None:
        """The token is asked for again, as in a session that begins."""
        with dtls_client(address, context) as client:
            await client.handshake()
            assert (await client.ask(post(1))).code == Code.CREATED
            session = await left(client)
        await services.devices.inventory.delete(await services.devices.registry.find(KITCHEN))
        with dtls_client(address, context) as client:
            client.session.set_session(session)
            await client.handshake()
            assert is_resumed(client)
            assert (await client.ask(post(2))).code == Code.UNAUTHORIZED

    @each_row("token", ["ff" * 16, None])
    async def test_of_strangers_are_not_kept(self, address: Address, context: SSL.Context, token: str | None) -> None:
        session = None
        for number in (1, 2):
            with dtls_client(address, context) as client:
                if session is not None:
                    client.session.set_session(session)
                await client.handshake()
                assert not is_resumed(client)
                if token is not None:
                    assert (await client.ask(post(number, token))).code == Code.UNAUTHORIZED
                session = await left(client)

    async def test_end_with_another_certificate_of_the_server(
        self,
        address: Address,
        listener: DtlsListener,
        context: SSL.Context,
        certificates: dict[str, tuple[Path, Path]],
    ) -> None:
        with dtls_client(address, context) as client:
            await client.handshake()
            assert (await client.ask(post(1))).code == Code.CREATED
            session = await left(client)
        listener.prepare(certificates["ecdsa"], None)()
        with dtls_client(address, context) as client:
            client.session.set_session(session)
            await client.handshake()
            assert not is_resumed(client)


@each_row("order", [("ecdsa", "rsa"), ("rsa", "ecdsa")])
@each_row("cipher", ["ECDHE-ECDSA-AES128-CCM8", "ECDHE-RSA-AES128-GCM-SHA256"])
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
            assert (await client.ask(post(1))).code == Code.CREATED
        nursery.cancel_scope.cancel()


class TestPreSharedKeys:
    @each_row(
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
            assert (await client.ask(post(1))).code == Code.CREATED

    @pytest.mark.parametrize(
        "identity",
        [
            pytest.param("f" * 32, id="no such device"),
            pytest.param("root", id="no device id"),
            pytest.param("\N{SNOWMAN}", id="no ASCII"),
        ],
    )
    async def test_of_an_unknown_device_get_an_alert(
        self, address: Address, listener: DtlsListener, identity: str
    ) -> None:
        with dtls_client(address, psk_context(identity, KITCHEN_TOKEN, PSK)) as client:
            with pytest.raises(SSL.Error, match="unknown psk identity"):
                await client.handshake()
            assert (listener.statistics().sessions, listener.statistics().handshakes_failed) == (0, 1)
            await still_serves(address)

    async def test_of_another_device_get_no_answer(self, address: Address, listener: DtlsListener) -> None:
        """Records that are encrypted with a wrong key look forged, and forged ones are dropped (RFC 6347, 4.1.2.7)."""
        with dtls_client(address, psk_context(KITCHEN, HALL_TOKEN, PSK)) as client:
            assert await client.is_left_without_answer()
            assert (listener.statistics().sessions, listener.statistics().half_open) == (0, 1)
            await still_serves(address)

    @pytest.mark.parametrize("cipher", [PSK, b"ECDHE-PSK-AES128-CBC-SHA256"])
    async def test_a_session_is_resumed_and_is_of_the_same_device(
        self, address: Address, listener: DtlsListener, cipher: bytes
    ) -> None:
        context, session = psk_context(KITCHEN, KITCHEN_TOKEN, cipher), None
        for number in (1, 2, 3):
            with dtls_client(address, context) as client:
                if session is not None:
                    client.session.set_session(session)
                await client.handshake()
                assert (await client.ask(post(number))).code == Code.CREATED
                assert is_resumed(client) is (number > 1)
                session = await left(client)
        assert listener.statistics().handshakes == 3

    async def test_a_session_is_not_resumed_after_the_key_has_changed(
        self, address: Address, services: Services, world: World
    ) -> None:
        old = psk_context(KITCHEN, KITCHEN_TOKEN, PSK)
        with dtls_client(address, old) as client:
            await client.handshake()
            session = await left(client)
        await services.core.database.write(partial(_put_sealed, world, services.core.vault.seal("77" * 16)))
        new, resumed = psk_context(KITCHEN, "77" * 16, PSK), None
        for number in (1, 2):
            with dtls_client(address, old) as client:  # whoever has the former key alone
                client.session.set_session(session)
                assert await client.is_left_without_answer()
            with dtls_client(address, new) as client:
                if resumed is not None:
                    client.session.set_session(resumed)
                await client.handshake()
                assert is_resumed(client) is (number == 2)
                resumed = await left(client)

    async def test_whoever_has_a_session_shakes_hands_in_full_with_its_new_key(
        self, address: Address, services: Services, world: World
    ) -> None:
        """There is no alert, and no second attempt."""
        with dtls_client(address, psk_context(KITCHEN, KITCHEN_TOKEN, PSK)) as client:
            await client.handshake()
            session = await left(client)
        await services.core.database.write(partial(_put_sealed, world, services.core.vault.seal("77" * 16)))
        with dtls_client(address, psk_context(KITCHEN, "77" * 16, PSK)) as client:
            assert _openssl.lib.SSL_set_session(client.session._ssl, session._session)  # it is of another context
            await client.handshake()
            assert not is_resumed(client)

    async def test_a_session_of_a_deleted_device_is_not_resumed(self, address: Address, services: Services) -> None:
        context = psk_context(KITCHEN, KITCHEN_TOKEN, PSK)
        with dtls_client(address, context) as client:
            await client.handshake()
            session = await left(client)
        await services.devices.inventory.delete(await services.devices.registry.find(KITCHEN))
        with dtls_client(address, context) as client:
            client.session.set_session(session)
            with pytest.raises(SSL.Error, match="unknown psk identity"):
                await client.handshake()

    async def test_who_knows_the_id_of_a_session_alone_cannot_resume_it_nor_end_it(self, address: Address) -> None:
        """Session ids are sent in clear."""
        context = psk_context(KITCHEN, KITCHEN_TOKEN, PSK)
        with dtls_client(address, context) as client:
            await client.handshake()
            session = await left(client)
        secret = _secret(session, bytes(48))
        with dtls_client(address, context) as client:
            client.session.set_session(session)
            await client.handshake(answers=2)
            with pytest.raises(SSL.WantReadError):
                client.session.do_handshake()
        assert _secret(session, secret) == bytes(48)
        with dtls_client(address, context) as client:
            client.session.set_session(session)
            await client.handshake()
            assert is_resumed(client)
            assert (await client.ask(post(1))).code == Code.CREATED

    async def test_a_session_that_a_fatal_alert_has_ended_is_not_resumed(
        self, address: Address, listener: DtlsListener
    ) -> None:
        """RFC 5246, 7.2.2. After close_notify it is."""
        assert listener._peers is not None
        kept = listener._peers._kept
        for alert, count in ((None, 1), (gnutls.FATAL, 1), (None, 2)):
            async with client.DtlsClient(address, KITCHEN.encode(), bytes.fromhex(KITCHEN_TOKEN)) as one:
                if alert is not None:
                    library, handle = one._connection._begin(None)
                    assert library.gnutls_alert_send(handle, alert, gnutls.UNKNOWN_PSK_IDENTITY) == 0
                    one._connection._flush()
            await wait_all_tasks_blocked()
            assert len(kept) == count

    async def test_are_read_anew_for_each_handshake(self, address: Address, services: Services, world: World) -> None:
        for token in (KITCHEN_TOKEN, "77" * 16):
            sealed = services.core.vault.seal(token)
            await services.core.database.write(partial(_put_sealed, world, sealed))
            with dtls_client(address, psk_context(KITCHEN, token, PSK)) as client:
                await client.handshake()

    async def test_that_cannot_be_read_get_no_alert(
        self, address: Address, services: Services, listener: DtlsListener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An alert would tell the device that it was deleted."""

        async def fail(*_: object) -> None:
            raise RuntimeError("a disk error")

        with monkeypatch.context() as patched, capture_logs() as logs:
            patched.setattr(services.devices.registry, "pre_shared_key", fail)
            context = psk_context(KITCHEN, KITCHEN_TOKEN, PSK)
            with dtls_client(address, context) as client:
                assert await client.is_left_without_answer()
                with trio.fail_after(10):
                    while not listener.statistics().handshakes_failed:
                        await trio.lowlevel.checkpoint()
        assert [entry["event"] for entry in logs] == ["coap_key_not_read", "dtls_refused"]
        assert listener.statistics().handshakes_failed == 1
        await still_serves(address)


def _secret(session: SSL.Session, other: bytes | None = None) -> bytes:
    """The master secret of a session, which another one replaces."""
    secret = _openssl.ffi.new("unsigned char[48]")
    assert _openssl.lib.SSL_SESSION_get_master_key(session._session, secret, 48) == 48
    if other is not None:
        assert _openssl.lib.SSL_SESSION_set1_master_key(session._session, other, 48)
    return bytes(secret)


def _put_sealed(world: World, sealed: bytes, tx: Transaction) -> None:
    tx.devices.put_token(DeviceTokenRecord(world.kitchen, token_hash(KITCHEN_TOKEN), sealed, world.application, 1))


class TestFloods:
    async def test_half_open_handshakes_are_bounded(
        self, address: Address, listener: DtlsListener, context: SSL.Context
    ) -> None:
        """The clients have sent a valid cookie and nothing after it."""
        for _ in range(HALF_OPEN * 3):
            with dtls_client(address, context) as client:
                await client.handshake(answers=2)
        await wait_all_tasks_blocked(0.01)
        statistics = listener.statistics()
        assert (statistics.half_open, statistics.half_open_evicted) == (HALF_OPEN, 2 * HALF_OPEN)
        await still_serves(address)

    async def test_hellos_without_a_cookie_leave_no_state(
        self, client: DtlsClient, address: Address, listener: DtlsListener, context: SSL.Context
    ) -> None:
        await client.handshake()
        with dtls_client(address, context) as attacker:
            for _ in range(SOURCE_AT_ONCE * 2):
                attacker.connect(context)
                await attacker.begin()
            assert (await client.ask(post(1))).code == Code.CREATED
        statistics = listener.statistics()
        assert (statistics.half_open, statistics.sessions) == (0, 1)

    async def test_a_source_gets_a_bounded_number_of_hellos_answered(
        self, address: Address, listener: DtlsListener
    ) -> None:
        hello = b"\x16\xfe\xfd" + bytes(8) + b"\0\x36" + b"\x01" + bytes(53)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
            for _ in range(SOURCE_AT_ONCE + 10):
                attacker.sendto(hello, (address.host, address.port))
            with trio.fail_after(5):
                while listener.statistics().hellos_dropped < 10:
                    await trio.lowlevel.checkpoint()
        await still_serves(address)
        assert listener.statistics().hellos_dropped == 10

    async def test_a_handshake_with_too_many_records_is_ended(
        self, client: DtlsClient, address: Address, listener: DtlsListener
    ) -> None:
        """GnuTLS keeps every early ChangeCipherSpec."""
        await client.handshake(answers=2)
        for number in range(1, 100):
            await client.socket.send(b"\x14\xfe\xfd\0\0" + number.to_bytes(6, "big") + b"\0\x01\x01")
        with trio.fail_after(5):
            while not listener.statistics().handshakes_failed:
                await trio.lowlevel.checkpoint()
        assert listener.statistics().half_open == 0
        await still_serves(address)

    async def test_a_handshake_looks_up_a_bounded_number_of_keys(
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


async def test_without_a_working_library_nothing_is_opened(
    services: Services, certificates: dict[str, tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DtlsContext, "_find_key", lambda *_: -1)
    with pytest.raises(DtlsUnavailable, match="the self-test failed"):
        await serve_coap_dtls(services, Address("127.0.0.1", 0), *certificates["ecdsa"])


async def test_failed_handshakes_have_a_line_with_the_device_if_there_is_one(
    address: Address, services: Services, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    find_key, found = services.devices.registry.pre_shared_key, trio.Event()

    async def pre_shared_key(device: str, vault: Vault) -> bytes | None:
        try:
            return await find_key(device, vault)
        finally:
            if device == KITCHEN:
                found.set()

    monkeypatch.setattr(services.devices.registry, "pre_shared_key", pre_shared_key)
    with capture_logs() as logs:
        in_wrong_fields = psk_context(KITCHEN_TOKEN, KITCHEN, PSK)
        with dtls_client(address, in_wrong_fields) as client, pytest.raises(SSL.Error):
            await client.handshake()
        with dtls_client(address, psk_context(KITCHEN, HALL_TOKEN, PSK)) as client:
            assert await client.is_left_without_answer()
            await found.wait()
            await wait_all_tasks_blocked()
            mock_clock.jump(_HANDSHAKE_SECONDS + 1)
            await wait_all_tasks_blocked()
    assert [(line["event"], line["peer"], line.get("account")) for line in logs] == [
        ("dtls_refused", "127.0.0.1", None),
        ("dtls_refused", "127.0.0.1", KITCHEN),
    ]
    assert logs[1]["reason"] == "took too long"
    mock_clock.jump(1)
    await wait_all_tasks_blocked()
    kitchen = await services.devices.registry.find(KITCHEN)
    assert [(one.status, one.text, one.address) for one in services.messages.ingest.refused.of(kitchen)] == [
        (401, "DTLS: wrong credentials for this device, or its records were lost", "127.0.0.1")
    ]
    assert KITCHEN_TOKEN not in str(logs)


async def test_another_certificate_is_for_new_sessions_and_the_old_ones_go_on(
    listener: DtlsListener, address: Address, client: DtlsClient, certificates: dict[str, tuple[Path, Path]]
) -> None:
    def kind_of(one: DtlsClient) -> int:
        shown = one.session.get_peer_certificate()
        assert shown is not None
        return shown.get_pubkey().type()

    await client.handshake()
    put_into_use = listener.prepare(certificates["rsa"], None)
    with dtls_client(address, client_context(ECDSA)) as before:  # read, and not yet in use
        await before.handshake()
        assert kind_of(before) == kind_of(client)
    put_into_use()
    with dtls_client(address, client_context(b"ECDHE-RSA-AES128-GCM-SHA256")) as after:
        await after.handshake()
        assert kind_of(after) != kind_of(client)
    assert (await client.ask(post(1))).code == Code.CREATED
    with pytest.raises(OSError, match="cannot use certificate"):
        listener.prepare((certificates["rsa"][0], certificates["ecdsa"][1]), None)
