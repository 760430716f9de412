"""What a DTLS handshake needs from OpenSSL and trio, and the proof at the start that all of it works together.

Five things reach beneath the interfaces of those libraries, all in this file only:

- **Pre-shared keys.** pyOpenSSL has no call for them; cryptography's bindings have.
- **The cookie.** trio covers the whole ClientHello with it. OpenSSL's clients pad their second hello once it passes
  255 bytes, and never get in. RFC 6347 section 4.2.1 names five fields that must not change; `_cookie_fields` covers
  those, in place of a function of trio's.
- **Client certificates.** trio's channel does not tell what its peer has shown; its connection does.
- **Records.** trio's channel has a task, a lock and buffers of 16 KiB for each. What a session says needs none of them.
- **First hellos.** trio takes any handshake record for one whose 14th byte is 1, encrypted ones included. There that
  byte is the first of a random nonce, so one in 256 handshakes with OpenSSL's clients could never be finished.

`self_test` shakes hands over loopback with both in place. Where it fails, DTLS is not served.
"""

from collections import OrderedDict
from socket import SOCK_DGRAM
from typing import Final

import trio
import trio._dtls
from cryptography.hazmat.bindings._rust import _openssl
from OpenSSL import SSL

from broker.registration.certificates import ClientCertificate
from protocols.coap.datagrams import is_client_hello
from protocols.tls import Chain, shown_by, use_certificates

SELF_TEST_SECONDS: Final = 10.0
_RECORD_OVERHEAD_BYTES: Final = 128  # of the largest cipher suite: header, nonce, code, padding
_MAX_KEYS = 1024

#: Forward secrecy where the peer can, CCM-8 where it is small (RFC 7252 section 9.1.3, RFC 7925 section 4).
_CERTIFICATE_CIPHERS: Final = (
    b"ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-CCM8:ECDHE-ECDSA-AES128-CCM"
    b":ECDHE-ECDSA-AES128-SHA256:ECDHE-RSA-AES128-SHA256"
)
_PSK_CIPHERS: Final = (
    b"ECDHE-PSK-AES128-CBC-SHA256:PSK-AES128-GCM-SHA256:PSK-AES128-CCM:PSK-AES128-CCM8:PSK-AES128-CBC-SHA256"
)
#: CCM-8 authenticates with 64 bits, which higher levels refuse.
_LEVEL: Final = b":@SECLEVEL=0"
_DTLS_1_2: Final = 0xFEFD

_ffi, _lib = _openssl.ffi, _openssl.lib


class DtlsUnavailable(Exception):
    """The self-test failed: these versions of trio, OpenSSL and its bindings do not work together."""


def server_context(first: Chain, second: Chain | None, keys: "PreSharedKeys") -> SSL.Context:
    """Raises OSError when certificates and keys cannot be used."""
    context = SSL.Context(SSL.DTLS_SERVER_METHOD)
    context.set_min_proto_version(_DTLS_1_2)
    context.set_cipher_list(_CERTIFICATE_CIPHERS + b":" + _PSK_CIPHERS + _LEVEL)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_CIPHER_SERVER_PREFERENCE)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # an idle session needs no 16 KiB to write in
    # Asked for, so that a securely registered device can show its own, but neither required nor verified here.
    context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
    use_certificates(context, first, second)
    keys.install(context)
    return context


def client_certificate(channel: trio.DTLSChannel) -> ClientCertificate | None:
    """What the peer has shown in its handshake, which is over; None when nothing, or a pre-shared key."""
    return shown_by(channel._ssl)


def encrypted(channel: trio.DTLSChannel, message: bytes) -> bytes:
    """One record, after the handshake. Raises SSL.Error when the session is over."""
    connection: SSL.Connection = channel._ssl
    connection.send(message)
    return connection.bio_read(len(message) + _RECORD_OVERHEAD_BYTES)


def decrypted(channel: trio.DTLSChannel, record: bytes) -> bytes:
    """The message in one record of application data; none when it is forged or repeated. Raises SSL.Error."""
    connection: SSL.Connection = channel._ssl
    connection.bio_write(record)
    try:
        return connection.recv(len(record))
    except SSL.WantReadError:
        return b""


class PreSharedKeys:
    """The keys that OpenSSL may ask for: of devices whose handshake is under way, read anew for each handshake."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, bytes] = OrderedDict()
        self._callback = _ffi.callback("unsigned int(SSL *, const char *, unsigned char *, unsigned int)", self._find)

    def install(self, context: SSL.Context) -> None:
        _lib.SSL_CTX_set_psk_server_callback(context._context, self._callback)
        context.set_app_data(self)  # OpenSSL holds no reference: the callback must live as long as the context

    def put(self, identity: bytes, key: bytes | None) -> None:
        self._keys.pop(identity, None)
        if key is not None:
            self._keys[identity] = key
        if len(self._keys) > _MAX_KEYS:
            self._keys.popitem(last=False)

    def _find(self, _ssl: object, identity: object, out: object, out_bytes: int) -> int:
        key = self._keys.get(_ffi.string(identity), b"")
        if len(key) > out_bytes:
            return 0
        _ffi.buffer(out, out_bytes)[: len(key)] = key
        return len(key)  # none: OpenSSL ends the handshake


_decode_client_hello = trio._dtls.decode_client_hello_untrusted


def _cookie_fields(packet: bytes) -> tuple[int, bytes, bytes]:
    """As trio's, but the cookie covers version, random, session id, cipher suites and compression methods only."""
    sequence, cookie, covered = _decode_client_hello(packet)
    # `covered` is the hello without its cookie: 2 bytes version, 32 random, session id, suites, methods, extensions.
    try:
        at = 34
        at += 1 + covered[at]
        at += 2 + int.from_bytes(covered[at : at + 2], "big")
        at += 1 + covered[at]
    except IndexError:
        raise trio._dtls.BadPacket("bad ClientHello") from None
    return sequence, cookie, covered[:at]


def _install() -> None:
    """Raises DtlsUnavailable when trio's functions are not those that are replaced here, or not where they were."""
    first, second = (_hello(extensions) for extensions in (b"", b"\0\x15\0\x04\0\0\0\0"))
    encrypted = b"\x16\xfe\xfd\0\x01" + bytes(6) + b"\0\x01" + b"\x01"
    try:
        if not trio._dtls.is_client_hello_untrusted(first):
            raise DtlsUnavailable("trio finds first hellos elsewhere")
        trio._dtls.is_client_hello_untrusted = is_client_hello
        trio._dtls.decode_client_hello_untrusted = _cookie_fields
        if not is_client_hello(first) or is_client_hello(encrypted):
            raise DtlsUnavailable("a first hello is not known from other records")
        seen = [trio._dtls.decode_client_hello_untrusted(hello)[2] for hello in (first, second)]
    except (AttributeError, TypeError, ValueError, trio._dtls.BadPacket) as error:
        raise DtlsUnavailable(f"the cookie of trio {trio.__version__}: {error!r}") from error
    if seen[0] != seen[1] or len(seen[0]) != 2 + 32 + 1 + 4 + 2:
        raise DtlsUnavailable(f"the cookie of trio {trio.__version__} covers something else")


def _hello(extensions: bytes) -> bytes:
    body = b"\xfe\xfd" + bytes(32) + b"\0" + b"\0" + b"\0\x02\xc0\xa8" + b"\x01\0" + extensions
    length = len(body).to_bytes(3, "big")
    message = b"\x01" + length + b"\0\0" + b"\0\0\0" + length + body
    return b"\x16\xfe\xfd" + bytes(8) + len(message).to_bytes(2, "big") + message


async def self_test() -> None:
    """Shake hands with ourselves over loopback and exchange a message. Raises DtlsUnavailable."""
    _install()
    try:
        with trio.fail_after(SELF_TEST_SECONDS):
            await _talk_to_ourselves()
    except Exception as error:
        raise DtlsUnavailable(
            f"the self-test failed with trio {trio.__version__}, {SSL.OpenSSL_version(SSL.OPENSSL_VERSION).decode()}:"
            f" {error!r}"
        ) from error


async def _talk_to_ourselves() -> None:
    keys = PreSharedKeys()
    identity, key = b"0" * 32, bytes(range(16))
    keys.put(identity, key)
    server = SSL.Context(SSL.DTLS_SERVER_METHOD)
    server.set_cipher_list(_PSK_CIPHERS + _LEVEL)
    keys.install(server)

    @_ffi.callback("unsigned int(SSL *, const char *, char *, unsigned int, unsigned char *, unsigned int)")  # type: ignore[untyped-decorator]
    def offer(_ssl: object, _hint: object, name: object, name_bytes: int, out: object, out_bytes: int) -> int:
        _ffi.buffer(name, name_bytes)[: len(identity) + 1] = identity + b"\0"
        _ffi.buffer(out, out_bytes)[: len(key)] = key
        return len(key)

    client = SSL.Context(SSL.DTLS_CLIENT_METHOD)
    client.set_cipher_list(_PSK_CIPHERS + _LEVEL)
    _lib.SSL_CTX_set_psk_client_callback(client._context, offer)
    client.set_app_data(offer)

    async def echo(channel: trio.DTLSChannel) -> None:
        await channel.send(await channel.receive())

    with trio.socket.socket(type=SOCK_DGRAM) as here, trio.socket.socket(type=SOCK_DGRAM) as there:
        await here.bind(("127.0.0.1", 0))
        with trio.DTLSEndpoint(here) as serving, trio.DTLSEndpoint(there) as asking:
            async with trio.open_nursery() as nursery:
                await nursery.start(serving.serve, server, echo)
                channel = asking.connect(here.getsockname(), client)
                await channel.send(b"ping")
                if await channel.receive() != b"ping":
                    raise DtlsUnavailable("the message was lost")
                nursery.cancel_scope.cancel()
