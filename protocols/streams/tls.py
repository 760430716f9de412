"""TLS that asks for a client certificate, and leaves the decision about its trust to the application (reference 7.1).

Which authorities are trusted depends on the device, which is known only after the handshake: each device type has
certificate authorities of its own, they change while the daemon runs, and an ordinary device may show any certificate.
Python's `ssl` cannot do that: it has no verify callback, and with CERT_OPTIONAL or CERT_REQUIRED it refuses every chain
that it does not know (cpython issues 75425 and 90935). OpenSSL can, through pyOpenSSL. So the handshake proves that the
peer holds the key of its certificate, and nothing else; `broker/registration` decides whether to trust the certificate.

`PeerContext` has the one method of `ssl.SSLContext` that `trio.SSLStream` calls, and `_Connection` those of
`ssl.SSLObject`.

Sessions are resumed with tickets (RFC 5077; RFC 8446, 2.2). A ticket has the peer's certificate, without the
intermediate ones: `_Shown` remembers these. Whether they are trusted is decided for each connection.
"""

import hashlib
import math
import os
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import trio
from OpenSSL import SSL, crypto

from broker.registration.certificates import ClientCertificate
from config.settings import Tls

T = TypeVar("T")
#: Two PEM files: a certificate with its intermediate certificates, and its key.
Chain = tuple[Path, Path]

_MQTT: Final = b"mqtt"
_BIO_BYTES: Final = 64 * 1024
#: The longest certificate chain that is accepted of a peer. It stays in memory while the connection lasts.
CHAIN_BYTES: Final = 16 * 1024
#: How long a session can be resumed: a modem that connects once an hour shakes hands in full once a day.
SESSION_SECONDS: Final = 86_400
#: Peers whose intermediate certificates are remembered, and how large these are together.
_REMEMBERED: Final = 16_384
_REMEMBERED_BYTES: Final = 8 * 1024 * 1024
#: How often strangers who show many certificates can have the sessions of all peers forgotten.
_FORGETS_SECONDS: Final = 60.0
#: The ciphers of `ssl.create_default_context`, for TLS 1.2.
_CIPHERS: Final = b"@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"


class PeerContext:
    """Replaces `ssl.SSLContext` at a TLS listener that asks for client certificates."""

    def __init__(self, certificate: Path, key: Path, *, required: bool, second: Chain | None = None) -> None:
        """`second` as for `use_certificates`. Raises OSError when a certificate and its key cannot be used."""
        self._chains = (certificate, key), second
        self._mode = SSL.VERIFY_PEER | (SSL.VERIFY_FAIL_IF_NO_PEER_CERT if required else 0)
        self._context = self._made()
        self._shown = _Shown(self._forget_sessions)
        self._forgets_again = -math.inf

    def _made(self) -> SSL.Context:
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.set_min_proto_version(SSL.TLS1_2_VERSION)
        context.set_cipher_list(_CIPHERS)
        context.set_session_cache_mode(SSL.SESS_CACHE_OFF)  # the tickets are with the peers
        context.set_session_id(os.urandom(32))
        context.set_timeout(SESSION_SECONDS)
        context.set_options(SSL.OP_NO_RENEGOTIATION)
        context.set_mode(SSL.MODE_RELEASE_BUFFERS)
        context.set_alpn_select_callback(_select_protocol)
        context.set_verify(self._mode, _note_shown)
        use_certificates(context, *self._chains)
        return context

    def _forget_sessions(self) -> None:
        """From now on, handshakes are full ones: no session of the former context is resumed."""
        now = time.monotonic()
        if now >= self._forgets_again:
            self._forgets_again = now + _FORGETS_SECONDS
            with suppress(OSError):  # the files are being changed; a reload reads them later
                self._context = self._made()

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        *,
        server_side: bool,
        server_hostname: str | None = None,
    ) -> "_Connection":
        """As `ssl.SSLContext.wrap_bio`, for servers only."""
        if not server_side or server_hostname is not None:
            raise ValueError("this context is for servers")
        return _Connection(SSL.Connection(self._context, None), self._shown, incoming, outgoing)


def _note_shown(connection: SSL.Connection, *_: object) -> bool:
    """The peer shows a certificate now, and not in the session that it resumes."""
    connection.set_app_data(True)
    return True


class _Shown:
    """The certificates that peers have shown, for sessions that they resume.

    When there are too many, the oldest are forgotten. A peer that comes back then is disconnected, and
    `forget_sessions` is called, so that its next handshake is a full one, as everybody's.
    """

    def __init__(self, forget_sessions: Callable[[], None]) -> None:
        self._forget_sessions = forget_sessions
        self._intermediates: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()  # by the hash of the certificate
        self._bytes = 0

    def by(self, connection: SSL.Connection) -> ClientCertificate | None:
        """As `shown_by`, also for a session that was resumed. Raises SSL.Error."""
        shown = shown_by(connection)
        if shown is None:
            return None
        name = hashlib.sha256(shown.leaf).digest()
        if connection.get_app_data():
            self._remember(name, shown.intermediates)
            return shown
        intermediates = self._intermediates.get(name)
        if intermediates is None:
            self._forget_sessions()
            raise SSL.Error("the certificates of this session are not known any more")
        self._intermediates.move_to_end(name)
        return ClientCertificate(shown.leaf, intermediates)

    def _remember(self, name: bytes, intermediates: tuple[bytes, ...]) -> None:
        self._bytes -= sum(map(len, self._intermediates.pop(name, ())))
        self._intermediates[name] = intermediates
        self._bytes += sum(map(len, intermediates))
        while len(self._intermediates) > _REMEMBERED or self._bytes > _REMEMBERED_BYTES:
            self._bytes -= sum(map(len, self._intermediates.popitem(last=False)[1]))


def _select_protocol(_: SSL.Connection, offered: list[bytes]) -> Any:
    """ALPN (RFC 7301): MQTT has the name `mqtt`. A client that offers other names is served without one: it is the port
    that says which protocol is spoken."""
    return _MQTT if _MQTT in offered else SSL.NO_OVERLAPPING_PROTOCOLS


def use_certificates(context: SSL.Context, first: Chain, second: Chain | None = None) -> None:
    """Give a context its certificate chain and key, or two of both with different kinds of key (RSA and ECDSA).

    Raises:
        OSError: they cannot be used, or have the same kind of key.
    """
    _use_certificate(context, *first)
    if second is not None:
        require_two_kinds(first, second)
        _use_certificate(context, *second)


def require_two_kinds(first: Chain, second: Chain) -> None:
    """Raises OSError when two chains have the same kind of key: no client would ever get the second."""
    if _kind_of_key(first[0]) == _kind_of_key(second[0]):
        raise OSError(f"cannot use certificate {second[0]} beside {first[0]}: both have the same kind of key")


def _kind_of_key(certificate: Path) -> int:
    return crypto.load_certificate(crypto.FILETYPE_PEM, certificate.read_bytes()).get_pubkey().type()


def _use_certificate(context: SSL.Context, certificate: Path, key: Path) -> None:
    try:
        context.use_certificate_chain_file(str(certificate))
        context.use_privatekey_file(str(key))
        context.check_privatekey()
    except SSL.Error as error:
        raise OSError(f"cannot use certificate {certificate} with key {key}: {error}") from error


class RenewableContext:
    """Stands for a context that is replaced: handshakes that begin afterwards have the new certificate."""

    def __init__(self, make: Callable[[Tls], ssl.SSLContext | PeerContext], tls: Tls) -> None:
        """`make` raises what `prepare` raises."""
        self._make = make
        self._context = make(tls)

    def prepare(self, tls: Tls) -> Callable[[], None]:
        """Read the certificates; the function that is returned puts them into use. Raises SettingsError."""
        context = self._make(tls)

        def put_into_use() -> None:
            self._context = context

        return put_into_use

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **options: Any) -> Any:
        """As `ssl.SSLContext.wrap_bio`."""
        return self._context.wrap_bio(incoming, outgoing, **options)


TlsContext = ssl.SSLContext | PeerContext | RenewableContext
TlsStream = trio.SSLStream[trio.SocketStream]


def server_stream(transport: trio.SocketStream, context: TlsContext) -> TlsStream:
    """The server's side of a TLS connection, before its handshake."""
    return trio.SSLStream(transport, cast("ssl.SSLContext", context), server_side=True, https_compatible=True)


async def abandon(stream: TlsStream) -> None:
    """Close a stream that nobody uses any more, at once, and free what OpenSSL holds for it.

    trio's stream refers to itself, so this memory would wait for the garbage collector, which counts objects and not
    bytes: a second of strangers' connections would take 20 MiB.
    """
    await trio.aclose_forcefully(stream)
    vars(stream).clear()


def peer_certificate(stream: trio.abc.Stream) -> ClientCertificate | None:
    """The client certificate of a finished handshake; None when the peer has shown none, was not asked for one, or the
    connection has failed."""
    ask = getattr(stream, "getpeercert", None)  # TLS streams have it, and streams inside of them
    try:
        shown = None if ask is None else ask()
    except ValueError:  # the connection has failed, and OpenSSL says that there was no handshake
        return None
    return shown if isinstance(shown, ClientCertificate) else None


def shown_by(connection: SSL.Connection) -> ClientCertificate | None:
    """The certificate chain that the peer of a server has shown, as unparsed bytes; None when it has shown none.

    Raises:
        SSL.Error: the chain is longer than `CHAIN_BYTES`.
    """
    certificate = connection.get_peer_certificate()
    if certificate is None:
        return None
    chain = connection.get_peer_cert_chain() or ()  # on the server's side without the peer's own certificate
    shown = ClientCertificate(_der(certificate), tuple(map(_der, chain)))
    if shown.size > CHAIN_BYTES:
        raise SSL.Error("the chain of certificates is too long")
    return shown


def _der(certificate: crypto.X509) -> bytes:
    return crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate)


class _Connection:
    """The methods of `ssl.SSLObject` that `trio.SSLStream` uses, with the errors of `ssl`."""

    __slots__ = ("_connection", "_incoming", "_outgoing", "_shown", "_shown_before")

    server_side: Final = True

    def __init__(
        self, connection: SSL.Connection, shown: _Shown, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ) -> None:
        self._connection = connection
        self._shown_before = shown
        self._incoming = incoming
        self._outgoing = outgoing
        self._shown: ClientCertificate | None = None
        connection.set_accept_state()

    def do_handshake(self) -> None:
        self._run(self._shake_hands)

    def _shake_hands(self) -> None:
        self._connection.do_handshake()
        self._shown = self._shown_before.by(self._connection)

    def read(self, max_bytes: int) -> bytes:
        try:
            return self._run(lambda: self._connection.recv(max_bytes))
        except SSL.ZeroReturnError:  # the peer has closed TLS
            return b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._run(lambda: self._connection.sendall(data))

    def version(self) -> str:
        return self._connection.get_protocol_version_name()

    def getpeercert(self) -> ClientCertificate | None:
        """The peer's certificate chain; `ssl.SSLObject` returns a dictionary here."""
        return self._shown

    def _run(self, operation: Callable[[], T]) -> T:
        received = self._incoming.read()
        if received:
            self._connection.bio_write(received)
        has_ended = self._incoming.eof
        if has_ended:
            self._connection.bio_shutdown()
        try:
            return operation()
        except SSL.WantReadError as error:
            raise ssl.SSLWantReadError from error
        except SSL.ZeroReturnError:
            raise
        except SSL.Error as error:
            raise (ssl.SSLEOFError if has_ended else ssl.SSLError)(str(error)) from error
        finally:
            self._flush()

    def _flush(self) -> None:
        try:
            while True:
                self._outgoing.write(self._connection.bio_read(_BIO_BYTES))
        except SSL.WantReadError:
            pass
