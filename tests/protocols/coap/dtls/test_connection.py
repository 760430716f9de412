"""DTLS connections by GnuTLS, in memory, with OpenSSL as the client, and garbage between them."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from OpenSSL import SSL

from protocols.coap.dtls import connection as connection_module
from protocols.coap.dtls import gnutls
from protocols.coap.dtls import self_test as self_test_module
from protocols.coap.dtls.connection import COOKIE_SECONDS, DtlsConnection, DtlsContext
from protocols.coap.dtls.errors import ConnectionOver, DtlsUnavailable
from protocols.coap.dtls.records import records
from protocols.coap.dtls.self_test import self_test
from tests.programs import require_dtls
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.dtls.client import client_context, psk_context
from tests.rows import each_row

ADDRESS = b"10.0.0.1:5684"
IDENTITY, KEY = "0" * 32, bytes(range(16))


@pytest.fixture(autouse=True)
def library() -> None:
    require_dtls()


class Client:
    """A client by OpenSSL."""

    def __init__(self, context: SSL.Context) -> None:
        self.session = SSL.Connection(context, None)
        self.session.set_ciphertext_mtu(1400)
        self.session.set_connect_state()

    def shake_hands(self, flight: list[bytes]) -> list[bytes]:
        """Take a flight of the server. Returns the records of the next flight."""
        for datagram in flight:
            self.session.bio_write(datagram)
        with suppress(SSL.WantReadError):
            self.session.do_handshake()
        return self.said()

    def said(self) -> list[bytes]:
        try:
            return records(self.session.bio_read(65_536))
        except SSL.WantReadError:
            return []

    def encrypt(self, message: bytes) -> bytes:
        self.session.send(message)
        return self.session.bio_read(4096)

    def decrypt(self, datagram: bytes) -> bytes:
        self.session.bio_write(datagram)
        return self.session.recv(4096)


def _client(cipher: bytes = b"PSK-AES128-CCM8", key: bytes = KEY) -> Client:
    return Client(psk_context(IDENTITY, key.hex(), cipher))


def _context(time: Time | None = None) -> DtlsContext:
    return DtlsContext((), now=time or Time())


def _begun(client: Client, context: DtlsContext, sent: list[bytes]) -> tuple[DtlsConnection, list[bytes]]:
    """A connection after the cookie exchange, and the ClientHello with the cookie."""
    client.shake_hands([])
    hello = client.shake_hands([context.challenge(ADDRESS)])
    prestate = context.prestate(hello[0], ADDRESS)
    assert prestate is not None
    return DtlsConnection(context, sent.append, prestate), hello


def _connected(client: Client, context: DtlsContext, sent: list[bytes]) -> DtlsConnection:
    connection, flight = _begun(client, context, sent)
    connection.key = IDENTITY.encode(), KEY
    is_done = False
    while not is_done:
        for record in flight:
            is_done = connection.shake_hands(record)
        flight = client.shake_hands(sent)
        sent.clear()
    return connection


class TestCookies:
    def test_are_required(self) -> None:
        hello = _client().shake_hands([])
        assert _context().prestate(hello[0], ADDRESS) is None

    def test_are_for_one_address(self) -> None:
        context, client = _context(), _client()
        client.shake_hands([])
        hello = client.shake_hands([context.challenge(ADDRESS)])
        assert context.prestate(hello[0], ADDRESS) is not None
        assert context.prestate(hello[0], b"10.0.0.2:5684") is None

    @each_row(
        ("steps", "is_good"),
        [([0.9], True), ([1.0], True), ([0.9, 0.9], True), ([1.0, 1.0], False), ([2.0], False), ([100.0], False)],
    )
    def test_expire(self, time: Time, steps: list[float], is_good: bool) -> None:
        context, client = _context(time), _client()
        client.shake_hands([])
        hello = client.shake_hands([context.challenge(ADDRESS)])
        for step in steps:
            time.now += step * COOKIE_SECONDS
            found = context.prestate(hello[0], ADDRESS)
        assert (found is not None) is is_good

    @given(st.binary(max_size=300))
    def test_are_not_found_in_garbage(self, garbage: bytes) -> None:
        assert _context().prestate(garbage, ADDRESS) is None

    def test_are_answered_with_fewer_bytes_than_asked_for(self) -> None:
        """This rules amplification out."""
        assert len(_context().challenge(ADDRESS)) < sum(map(len, _client().shake_hands([])))


class TestHandshakes:
    def test_with_the_right_key(self) -> None:
        sent: list[bytes] = []
        client = _client()
        connection = _connected(client, _context(), sent)
        assert connection.receive(client.encrypt(b"ping")) == b"ping"
        connection.send(b"pong")
        assert client.decrypt(sent.pop()) == b"pong"

    @pytest.mark.parametrize(
        "key", [pytest.param(None, id="no such device"), pytest.param((b"1" * 32, KEY), id="another device")]
    )
    def test_without_a_key(self, key: tuple[bytes, bytes] | None) -> None:
        sent: list[bytes] = []
        client = _client()
        connection, flight = _begun(client, _context(), sent)
        connection.key = key
        connection.shake_hands(flight[0])
        flight = client.shake_hands(sent)
        sent.clear()
        with pytest.raises(ConnectionOver):
            any(map(connection.shake_hands, flight))
        with pytest.raises(SSL.Error, match="unknown psk identity"):
            client.shake_hands(sent)

    def test_with_a_wrong_key_do_not_complete(self) -> None:
        sent: list[bytes] = []
        client = _client(key=bytes(16))
        connection, flight = _begun(client, _context(), sent)
        connection.key = IDENTITY.encode(), KEY
        connection.shake_hands(flight[0])
        flight = client.shake_hands(sent)
        assert not any(connection.shake_hands(record) for record in flight)

    def test_without_a_common_cipher(self) -> None:
        sent: list[bytes] = []
        client = Client(client_context(b"PSK-AES256-GCM-SHA384:ECDHE-ECDSA-AES256-GCM-SHA384"))
        connection, flight = _begun(client, _context(), sent)
        with pytest.raises(ConnectionOver):
            connection.shake_hands(flight[0])
        with pytest.raises(SSL.Error, match="alert"):
            client.shake_hands(sent)

    @given(st.lists(st.binary(max_size=100), max_size=5))
    def test_garbage_completes_none(self, garbage: list[bytes]) -> None:
        sent: list[bytes] = []
        connection, flight = _begun(_client(), _context(), sent)
        connection.shake_hands(flight[0])
        try:
            assert not any(connection.shake_hands(one) for one in garbage)
        except ConnectionOver:
            pass
        finally:
            connection.close()

    def test_the_last_flight_is_sent_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The clock is GnuTLS's own, so the time-out is short."""
        monkeypatch.setattr(connection_module, "RETRANSMISSION_SECONDS", 0.05)
        sent: list[bytes] = []
        connection, flight = _begun(_client(), _context(), sent)
        connection.shake_hands(flight[0])
        first = [one[13:] for one in records(sent.pop())]
        while connection.retransmits_in:
            pass
        assert not connection.shake_hands()
        assert [one[13:] for one in records(sent.pop())] == first

    def test_flights_are_few_datagrams(self) -> None:
        sent: list[bytes] = []
        connection, flight = _begun(_client(), _context(), sent)
        connection.shake_hands(flight[0])
        assert [len(records(datagram)) for datagram in sent] == [2]  # ServerHello and ServerHelloDone


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Client, DtlsConnection]]:
    require_dtls()
    client = _client()
    connection = _connected(client, _context(), [])
    yield client, connection
    connection.close()


class TestRecords:
    @given(data=st.data())
    def test_that_are_forged_change_nothing(self, pair: tuple[Client, DtlsConnection], data: st.DataObject) -> None:
        """The changes may affect type, epoch and length."""
        client, connection = pair
        record = client.encrypt(b"once")
        forged = bytearray(record)
        for _ in range(data.draw(st.integers(1, 5))):
            forged[data.draw(st.integers(0, len(record) - 1))] ^= data.draw(st.integers(1, 255))
        if forged != record:
            for one in records(bytes(forged)):
                assert connection.receive(one) == b""
        assert connection.receive(client.encrypt(b"again")) == b"again"

    @given(st.integers(0, 255), st.integers(0, 3), st.integers(0, 2**48 - 1), st.binary(max_size=100))
    def test_that_are_invented_change_nothing(
        self, pair: tuple[Client, DtlsConnection], kind: int, epoch: int, sequence: int, body: bytes
    ) -> None:
        client, connection = pair
        header = bytes((kind, 0xFE, 0xFD)) + epoch.to_bytes(2, "big") + sequence.to_bytes(6, "big")
        assert connection.receive(header + len(body).to_bytes(2, "big") + body) == b""
        assert connection.receive(client.encrypt(b"again")) == b"again"

    def test_that_are_replayed_are_taken_once(self, pair: tuple[Client, DtlsConnection]) -> None:
        client, connection = pair
        first, second = client.encrypt(b"first"), client.encrypt(b"second")
        assert [connection.receive(one) for one in (second, first, first, second)] == [b"second", b"first", b"", b""]


class TestEndings:
    def test_close_notify(self) -> None:
        client = _client()
        connection = _connected(client, _context(), [])
        client.session.shutdown()
        with pytest.raises(ConnectionOver, match="close_notify"):
            connection.receive(client.said()[0])

    def test_sending_close_notify(self) -> None:
        sent: list[bytes] = []
        client = _client()
        connection = _connected(client, _context(), sent)
        connection.send_close_notify()
        with pytest.raises(SSL.ZeroReturnError):
            client.decrypt(sent.pop())

    def test_a_closed_connection_raises(self) -> None:
        client = _client()
        connection = _connected(client, _context(), [])
        connection.close()
        connection.close()
        connection.send_close_notify()
        for act in (lambda: connection.send(b"x"), lambda: connection.receive(b"x"), connection.shake_hands):
            with pytest.raises(ConnectionOver):
                act()


class TestUnavailable:
    @pytest.fixture(autouse=True)
    def load_anew(self) -> Iterator[None]:
        gnutls.load.cache_clear()
        yield
        gnutls.load.cache_clear()

    def test_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gnutls, "_LIBRARY", "libnone.so.1")
        with pytest.raises(DtlsUnavailable, match=r"libnone\.so\.1 is needed \(Debian's package libgnutls30\)"):
            self_test()

    def test_too_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gnutls, "_OLDEST", b"99.0.0")
        with pytest.raises(DtlsUnavailable, match=r"GnuTLS 99\.0\.0 is needed, and \d.* is installed"):
            self_test()

    def test_another_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gnutls, "_LIBRARY", "libc.so.6")
        with pytest.raises(DtlsUnavailable, match="gnutls_check_version"):
            self_test()

    def test_vulnerable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Simulated: an empty record is accepted in place of the second fragment."""
        monkeypatch.setattr(self_test_module, "_fragment", lambda *_: bytes(14))
        with pytest.raises(DtlsUnavailable, match="CVE-2026-33845"):
            self_test()

    def test_without_its_ciphers(self) -> None:
        with pytest.raises(DtlsUnavailable, match="GnuTLS: "):
            DtlsContext((), now=Time(), priorities=b"NONE:+ROT13")


def test_a_certificate_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot use certificate"):
        DtlsContext([(tmp_path / "none.pem", tmp_path / "none.key")], now=Time())
