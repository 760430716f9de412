"""A DTLS client: pyOpenSSL over a datagram socket, one datagram at a time."""

import datetime as dt
import ipaddress
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import trio
from cryptography import x509
from cryptography.hazmat.bindings._rust import _openssl
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from trio.testing import wait_all_tasks_blocked

from config.settings import Address
from protocols.coap.dtls.records import CHANGE_CIPHER_SPEC
from protocols.coap.messages import CON, CoapMessage, Code, Option, decode_message
from tests.factories import KITCHEN_TOKEN
from tests.protocols.coap.peers import encode_message

_ffi, _lib = _openssl.ffi, _openssl.lib
_MTU = 1400
_HANDSHAKE = 22  # a kind of record (RFC 5246, 6.2.1)


def make_certificate(folder: Path, kind: str, *, padding: int = 0) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, `ecdsa` or `rsa`, and its key, in PEM; `padding` in bytes."""
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
    if kind == "ecdsa":
        key = ec.generate_private_key(ec.SECP256R1())
    else:
        key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    filler = x509.UnrecognizedExtension(x509.ObjectIdentifier("2.25.1"), bytes(padding))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(filler, critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / f"{kind}.pem", folder / f"{kind}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


def psk_context(identity: str, token: str, ciphers: bytes) -> SSL.Context:
    """The context of a client that authenticates with a device id and a device token."""
    name, key = identity.encode(), bytes.fromhex(token)

    def offer(_ssl: object, _hint: object, names: object, name_bytes: int, out: object, out_bytes: int) -> int:
        _ffi.buffer(names, name_bytes)[: len(name) + 1] = name + b"\0"
        _ffi.buffer(out, out_bytes)[: len(key)] = key
        return len(key)

    callback = _ffi.callback(
        "unsigned int(SSL *, const char *, char *, unsigned int, unsigned char *, unsigned int)", offer
    )
    context = client_context(ciphers)
    _lib.SSL_CTX_set_psk_client_callback(context._context, callback)
    context.set_app_data(callback)  # keeps the callback alive as long as the context
    return context


def client_context(ciphers: bytes) -> SSL.Context:
    context = SSL.Context(SSL.DTLS_CLIENT_METHOD)
    context.set_cipher_list(ciphers + b":@SECLEVEL=0")
    context.set_options(SSL.OP_NO_QUERY_MTU)
    return context


class DtlsClient:
    def __init__(self, sock: socket.socket, context: SSL.Context) -> None:
        self._socket = sock
        self.socket = trio.socket.from_stdlib_socket(sock)
        self.connect(context)

    def connect(self, context: SSL.Context) -> None:
        """Begin a connection. A later one is from the same port, as after a restart of the client."""
        self.session = SSL.Connection(context, None)
        self.session.set_ciphertext_mtu(_MTU)
        self.session.set_connect_state()

    async def handshake(self, *, answers: int = 100, seconds: float = 5) -> None:
        """Shake hands until it is done or the server has answered `answers` times.

        Raises TooSlowError when the server does not answer within `seconds`.
        """
        for _ in range(answers):
            if await self.begin():
                return
            with trio.fail_after(seconds):
                self.session.bio_write(await self.socket.recv(4096))

    async def is_left_without_answer(self) -> bool:
        """Shake hands. Whether the server answers the last flight with neither its own nor an alert before it waits."""
        records: list[bytes] = []
        while CHANGE_CIPHER_SPEC not in {record[0] for record in records}:
            with suppress(SSL.WantReadError):
                self.session.do_handshake()
            records = self._take()
            for record in records:
                await self.socket.send(record)
            if not records:  # a part of the server's flight is missing
                with trio.fail_after(5):
                    self.session.bio_write(await self.socket.recv(4096))
        await wait_all_tasks_blocked()
        kinds = {record[0] for record in self._unread()}
        return kinds <= {_HANDSHAKE}  # its former flight may come again

    def _unread(self) -> Iterator[bytes]:
        """The records of the datagrams that are there."""
        with suppress(BlockingIOError):
            while True:
                yield from _records_in(self._socket.recv(4096))

    async def begin(self) -> bool:
        """Send what can be sent now. Returns whether the handshake is done."""
        try:
            self.session.do_handshake()
        except SSL.WantReadError:
            return False
        finally:
            await self._flush()
        return True

    async def begin_with(self) -> bytes:
        """Send the ClientHello with a cookie, and return it."""
        with suppress(SSL.WantReadError):
            self.session.do_handshake()
        hello, *_ = self._take()
        await self.socket.send(hello)
        return hello

    async def _flush(self) -> None:
        for datagram in self._take():
            await self.socket.send(datagram)

    async def send_again(self) -> None:
        """Send the last flight of the handshake again, when its time-out has passed."""
        await trio.sleep(self.session.DTLSv1_get_timeout() or 0)
        self.session.DTLSv1_handle_timeout()
        await self._flush()

    def _take(self) -> list[bytes]:
        """The records that OpenSSL wants to send."""
        try:
            flight = self.session.bio_read(65_536)
        except SSL.WantReadError:
            return []
        return list(_records_in(flight))

    def encrypt(self, message: CoapMessage) -> bytes:
        self.session.write(encode_message(message))
        return self.session.bio_read(4096)

    async def send(self, message: CoapMessage) -> None:
        await self.socket.send(self.encrypt(message))

    def send_at_once(self, messages: Sequence[CoapMessage]) -> None:
        """Send without a checkpoint, so the listener finds all of them when it wakes up."""
        with socket.socket(fileno=os.dup(self.socket.fileno())) as sock:
            for message in messages:
                sock.send(self.encrypt(message))

    async def receive(self) -> CoapMessage:
        while True:
            with trio.fail_after(5):
                self.session.bio_write(await self.socket.recv(4096))
            try:
                return decode_message(self.session.read(4096))
            except SSL.WantReadError:  # a retransmission of the handshake
                continue

    async def ask(self, message: CoapMessage) -> CoapMessage:
        await self.send(message)
        return await self.receive()

    def close_notify(self) -> bytes:
        self.session.shutdown()
        return self.session.bio_read(4096)

    async def send_close_notify(self) -> None:
        await self.socket.send(self.close_notify())

    @property
    def cipher(self) -> str | None:
        return self.session.get_cipher_name()


def _records_in(data: bytes) -> Iterator[bytes]:
    while data:
        end = 13 + int.from_bytes(data[11:13], "big")
        yield data[:end]
        data = data[end:]


@contextmanager
def dtls_client(address: Address, context: SSL.Context) -> Iterator[DtlsClient]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((address.host, address.port))
        yield DtlsClient(sock, context)


def is_resumed(client: DtlsClient) -> bool:
    return bool(_lib.SSL_session_reused(client.session._ssl))


async def left(client: DtlsClient) -> SSL.Session:
    """The session of a client that says good-bye: OpenSSL resumes no other one."""
    session = client.session.get_session()
    assert session is not None
    await client.send_close_notify()
    return session


STATE = b'{"data":{"state":true}}'
ECDSA, PSK = b"ECDHE-ECDSA-AES128-CCM8", b"PSK-AES128-CCM8"
HALF_OPEN = 4


def post(message_id: int, token: str = KITCHEN_TOKEN) -> CoapMessage:
    path = tuple((int(Option.URI_PATH), one) for one in (b"v1.1", b"messages", token.encode()))
    return CoapMessage(CON, Code.POST, message_id, b"t", path, STATE)


def observe(message_id: int, token: str = KITCHEN_TOKEN) -> CoapMessage:
    path = tuple((int(Option.URI_PATH), one) for one in (b"v1.1", b"actions", token.encode()))
    return CoapMessage(CON, Code.GET, message_id, b"o", ((Option.OBSERVE, b""), *path))


async def still_serves(address: Address) -> None:
    """Assert that a new client is served."""
    with dtls_client(address, client_context(ECDSA)) as client:
        await client.handshake()
        assert (await client.ask(post(1))).code == Code.CREATED
