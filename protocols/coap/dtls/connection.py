"""DTLS 1.2 connections of a server by GnuTLS, without I/O: the caller passes records in and gets datagrams to send.

A device that sends once an hour keeps its connection all the time. A connection takes 10 KiB in GnuTLS and 58 in
OpenSSL, which keeps the buffers of its handshake (measured with 10,000 sessions).

The functions that GnuTLS calls are made once for each context. During a call into GnuTLS the context holds the record
for the connection in this call, and collects the datagrams that it sends. All calls are made in one thread.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import byref, c_uint, c_void_p, create_string_buffer, memmove, string_at
from typing import Any, Final
from weakref import finalize

from broker.registration.certificates import ClientCertificate
from protocols.coap.dtls import gnutls
from protocols.coap.dtls.errors import ConnectionOver, DtlsUnavailable
from protocols.coap.dtls.gnutls import Datum, Prestate
from protocols.coap.dtls.resumption import Resumable
from protocols.streams.tls import CHAIN_BYTES, SESSION_SECONDS, Chain

#: Forward secrecy for clients that support it, AES-128-CCM-8 for constrained ones (RFC 7252, 9.1.3; RFC 7925, 4).
PRIORITIES: Final = (
    b"NONE:+VERS-DTLS1.2:+ECDHE-ECDSA:+ECDHE-RSA:+ECDHE-PSK:+PSK"
    b":+AES-128-GCM:+AES-128-CCM-8:+AES-128-CCM:+AES-128-CBC:+AEAD:+SHA256"
    b":+COMP-NULL:+SIGN-ALL:-SIGN-RSA-SHA1:-SIGN-ECDSA-SHA1:+GROUP-ALL:+CTYPE-X509:%SERVER_PRECEDENCE"
)
#: With AES-128-CBC-SHA for LWM2M (reference 18.1).
LWM2M_PRIORITIES: Final = PRIORITIES + b":+SHA1"
RETRANSMISSION_SECONDS: Final = 1.0
#: For this long after a handshake GnuTLS sends its last flight again when the client asks (OpenSSL's clients ask after
#: 1, 3, 7, 15 and 31 s). The listener bounds the handshake itself.
_LAST_FLIGHT_SECONDS: Final = 70.0
COOKIE_SECONDS: Final = 60.0
#: The MTU that every IPv6 link supports (RFC 8200, 5), without the headers of IPv6 and UDP.
_FLIGHT_BYTES: Final = 1280 - 48
_RECORD_BYTES: Final = 16 * 1024


class Transfers:
    """One call into GnuTLS at a time: its connection, the record for it, and the records that it sends."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.connection: DtlsConnection | None = None
        self.incoming: bytes | None = None
        self.outgoing: list[bytes] = []
        self.pull, self.push, self.wait = (
            gnutls.Transfer(self._pull),
            gnutls.Transfer(self._push),
            gnutls.Wait(lambda _pointer, _milliseconds: self.incoming is not None),
        )

    def take(self) -> list[bytes]:
        """The records that were sent since the last call."""
        outgoing, self.outgoing = self.outgoing, []
        return outgoing

    # GnuTLS calls these two, and they must not raise.

    def _pull(self, _pointer: object, buffer: int, size: int) -> int:
        datagram = self.incoming
        if not datagram:  # GnuTLS would take an empty datagram for the end of the connection
            if self.connection is not None:
                self.connection.would_block()
            return -1
        self.incoming = None
        count = min(len(datagram), size)
        memmove(buffer, datagram, count)
        return count

    def _push(self, _pointer: object, data: int, size: int) -> int:
        self.outgoing.append(string_at(data, size))
        return size


class DtlsContext:
    """Shared state of a listener's connections: certificates, ciphers and the keys of cookies."""

    side = gnutls.SERVER

    def __init__(self, chains: Iterable[Chain], *, now: Callable[[], float], priorities: bytes = PRIORITIES) -> None:
        """A context with these certificate chains; `now` gives seconds, `priorities` are GnuTLS's.

        Raises:
            DtlsUnavailable: GnuTLS is missing, too old, or lacks a cipher.
            OSError: a certificate and its key cannot be used.
        """
        self.library = gnutls.load()
        self._now = now
        self._priority_string = priorities
        self._cookie_keys = _new_cookie_key(), _new_cookie_key()
        self._next_cookie_key = now() + COOKIE_SECONDS
        #: A handshake may go on in a thread while messages are sent and received in another one.
        self.handshakes, self.messages = Transfers(self.library), Transfers(self.library)
        self._find_session_function = gnutls.FindSession(self.library, self._find_session)
        self._store_session_function = gnutls.StoreSession(self._store_session)
        self._find_key_function = gnutls.FindKey(self._find_key)
        self.has_no_key = False
        self.buffer = create_string_buffer(_RECORD_BYTES)
        self._priorities, self._certificates, self._keys = c_void_p(), c_void_p(), c_void_p()
        self._prepare(chains)

    def _prepare(self, chains: Iterable[Chain]) -> None:
        library = self.library
        self._check(library.gnutls_priority_init(byref(self._priorities), self._priority_string, None))
        self._check(library.gnutls_psk_allocate_server_credentials(byref(self._keys)))
        self._check(library.gnutls_certificate_allocate_credentials(byref(self._certificates)))
        # A connection refers to its context, so the context is freed last. At the end of the process the order is
        # unknown, so nothing is freed then.
        finalize(self, _free, library, self._priorities, self._keys, self._certificates).atexit = False
        library.gnutls_psk_set_server_credentials_function(self._keys, self._find_key_function)
        for certificate, key in chains:
            code = library.gnutls_certificate_set_x509_key_file(
                self._certificates, os.fsencode(certificate), os.fsencode(key), gnutls.PEM
            )
            if code < 0:
                raise OSError(f"cannot use certificate {certificate} with key {key}: {self.reason(code)}")

    def _check(self, code: int) -> None:
        if code < 0:
            raise DtlsUnavailable(f"GnuTLS: {self.reason(code)}")

    def reason(self, code: int) -> str:
        """GnuTLS's text for an error code."""
        text: bytes = self.library.gnutls_strerror(code)
        return text.decode()

    def equip(self, handle: c_void_p) -> None:
        """Give a new connection its ciphers and credentials."""
        library = self.library
        self._check(library.gnutls_priority_set(handle, self._priorities))
        self._check(library.gnutls_credentials_set(handle, gnutls.CERTIFICATE_CREDENTIALS, self._certificates))
        self._check(library.gnutls_credentials_set(handle, gnutls.PSK_CREDENTIALS, self._keys))
        # A securely registered device authenticates with its certificate. It is neither required nor verified here.
        library.gnutls_certificate_server_set_request(handle, gnutls.REQUEST_CERTIFICATE)
        # Without tickets: one has all that the peer has shown, and its ClientHello might not fit into a datagram.
        library.gnutls_db_set_retrieve_function(handle, self._find_session_function.address)
        library.gnutls_db_set_store_function(handle, self._store_session_function)
        library.gnutls_db_set_cache_expiration(handle, SESSION_SECONDS)

    # --- Sessions that are resumed. GnuTLS calls these two, and they must not raise ----------------------------------

    def _find_session(self, id_: bytes) -> bytes | None:
        connection = self.handshakes.connection
        known = connection and connection.resumes
        return known.data if known and known.id == id_ else None

    def _store_session(self, _pointer: object, id_: Datum, data: Datum) -> int:
        if (connection := self.handshakes.connection) is not None:
            connection.resumable = Resumable(string_at(id_.data, id_.size), string_at(data.data, data.size))
        return 0

    # --- Cookies -----------------------------------------------------------------------------------------------------

    def prestate(self, hello: bytes, address: bytes) -> Prestate | None:
        """State for a connection that begins with this ClientHello. None if it has no valid cookie for this address.

        A cookie is valid for at least COOKIE_SECONDS and at most twice as long.
        """
        prestate = Prestate()
        verify = self.library.gnutls_dtls_cookie_verify
        for key in self._current_cookie_keys():
            if verify(byref(key), address, len(address), hello, len(hello), byref(prestate)) >= 0:
                return prestate
        return None

    def challenge(self, address: bytes) -> bytes:
        """A HelloVerifyRequest with the cookie of an address (RFC 6347, 4.2.1)."""
        key = self._current_cookie_keys()[0]
        transfers = self.messages
        self.library.gnutls_dtls_cookie_send(byref(key), address, len(address), byref(Prestate()), None, transfers.push)
        return b"".join(transfers.take())

    def _current_cookie_keys(self) -> tuple[Datum, Datum]:
        now = self._now()
        if now >= self._next_cookie_key:
            is_recent = now < self._next_cookie_key + COOKIE_SECONDS
            self._cookie_keys = _new_cookie_key(), self._cookie_keys[0] if is_recent else _new_cookie_key()
            self._next_cookie_key = now + COOKIE_SECONDS
        return self._cookie_keys

    def _find_key(self, _handle: object, identity: bytes, place: Any) -> int:
        """GnuTLS calls this, and it must not raise."""
        connection = self.handshakes.connection
        known = connection and connection.key
        if not connection or not known or known[0] != identity:
            self.has_no_key = True
            return -1
        connection.used_key = known
        key = known[1]
        place[0].data = copy = self.library.allocate(len(key))
        place[0].size = len(key)
        memmove(copy, key, len(key))
        return 0


class DtlsConnection:
    """The connection of one peer."""

    __slots__ = (
        "_context",
        "_handle",
        "_send",
        "_transfers",
        "has_failed",
        "key",
        "resumable",
        "resumes",
        "used_key",
    )

    def __init__(
        self,
        context: DtlsContext,
        send: Callable[[bytes], None],
        prestate: Prestate | None = None,
        *,
        resumes: Resumable | None = None,
    ) -> None:
        """A connection before its handshake.

        Args:
            context: of the listener.
            send: sends a datagram or loses it, without waiting.
            prestate: of the ClientHello, from `DtlsContext.prestate`.
            resumes: the session that the peer may resume.

        Raises:
            ConnectionOver: GnuTLS cannot make a connection.
        """
        self._context = context
        self._send = send
        #: An identity and its pre-shared key, with which the peer can authenticate in the handshake.
        self.key: tuple[bytes, bytes] | None = None
        #: The one with which it did. A handshake asks for one key at most.
        self.used_key: tuple[bytes, bytes] | None = None
        self.resumes = resumes
        #: The session after a full handshake.
        self.resumable: Resumable | None = None
        #: Whether an alert has ended the session for good.
        self.has_failed = False
        self._handle: c_void_p | None = None
        library, handle = context.library, c_void_p()
        flags = context.side | gnutls.DATAGRAM | gnutls.NONBLOCK | gnutls.NO_TICKETS
        code = library.gnutls_init(byref(handle), flags)
        if code < 0:
            raise ConnectionOver(context.reason(code))
        self._handle = handle
        context.equip(handle)
        if prestate is not None:
            library.gnutls_dtls_prestate_set(handle, byref(prestate))
        library.gnutls_dtls_set_mtu(handle, _FLIGHT_BYTES)
        library.gnutls_dtls_set_timeouts(handle, int(RETRANSMISSION_SECONDS * 1000), int(_LAST_FLIGHT_SECONDS * 1000))
        library.gnutls_handshake_set_max_packet_length(handle, CHAIN_BYTES)
        self._transfers = context.handshakes
        self._use(context.handshakes)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory that GnuTLS holds. A second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._context.library.gnutls_deinit(handle)

    def _use(self, transfers: Transfers) -> None:
        self._transfers = transfers
        library, handle = self._opened()
        library.gnutls_transport_set_pull_function(handle, transfers.pull)
        library.gnutls_transport_set_push_function(handle, transfers.push)
        library.gnutls_transport_set_pull_timeout_function(handle, transfers.wait)

    def _opened(self) -> tuple[Any, c_void_p]:
        if self._handle is None:
            raise ConnectionOver("closed")
        return self._context.library, self._handle

    def _begin(self, datagram: bytes | None) -> tuple[Any, c_void_p]:
        opened, transfers = self._opened(), self._transfers
        transfers.connection, transfers.incoming = self, datagram
        return opened

    def _flush(self) -> None:
        for datagram in _joined(self._transfers.take()):
            self._send(datagram)

    def would_block(self) -> None:
        """Tell GnuTLS that no record has come."""
        self._context.library.gnutls_transport_set_errno(self._handle, errno.EAGAIN)

    # --- The handshake -----------------------------------------------------------------------------------------------

    def shake_hands(self, record: bytes | None = None) -> bool:
        """Continue the handshake with a record of the peer, or without one send the last flight again.

        A datagram with several records must be passed in one by one: GnuTLS may keep the later ones for another call.

        Returns whether the handshake is done.

        Raises:
            ConnectionOver: the handshake has failed, and an alert was sent.
        """
        is_done = False
        try:
            is_done = self.go_on(record)
        finally:
            self.handshake_stepped(is_done=is_done)
        return is_done

    def go_on(self, record: bytes | None) -> bool:
        """Continue the handshake without sending: call `handshake_stepped` next, whatever this returns or raises.

        Most of a handshake's time is spent here. This may run in a thread, for one connection of the context at a time.
        """
        library, handle = self._begin(record)
        self._context.has_no_key = False
        while (code := library.gnutls_handshake(handle)) < 0:
            if code == gnutls.AGAIN:
                return False
            if library.gnutls_error_is_fatal(code):
                if self._context.has_no_key:  # RFC 4279, 2; GnuTLS would send internal_error
                    library.gnutls_alert_send(handle, gnutls.FATAL, gnutls.UNKNOWN_PSK_IDENTITY)
                else:
                    library.gnutls_alert_send_appropriate(handle, code)
                raise ConnectionOver(self._context.reason(code))
        return True

    def handshake_stepped(self, *, is_done: bool) -> None:
        """Send what the handshake has to send."""
        self._flush()
        if is_done:
            self.key = None
            self._use(self._context.messages)
            library, handle = self._opened()
            library.gnutls_dtls_set_mtu(handle, _RECORD_BYTES)

    @property
    def is_resumed(self) -> bool:
        """Whether the peer has resumed its session; known after the ClientHello."""
        _, handle = self._opened()
        return bool(self._context.library.gnutls_session_is_resumed(handle))

    @property
    def retransmits_in(self) -> float:
        """Seconds until `shake_hands` has to send the last flight again."""
        _, handle = self._opened()
        milliseconds: int = self._context.library.gnutls_dtls_get_timeout(handle)
        return milliseconds / 1000

    @property
    def certificate(self) -> ClientCertificate | None:
        """The certificate of the peer, not verified; None when it sent none."""
        library, handle = self._opened()
        count = c_uint()
        shown = library.gnutls_certificate_get_peers(handle, byref(count))
        chain = [string_at(shown[index].data, shown[index].size) for index in range(count.value)]
        return ClientCertificate(chain[0], tuple(chain[1:])) if chain else None

    # --- After the handshake -----------------------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        """Encrypt and send a message.

        Raises:
            ConnectionOver: the connection has ended, or the message is too long for the peer.
        """
        library, handle = self._begin(None)
        code = library.gnutls_record_send(handle, message, len(message))
        self._flush()
        if code < 0:
            raise ConnectionOver(self._context.reason(code))

    def receive(self, record: bytes) -> bytes:
        """Decrypt a record. Returns its message, or nothing when the record is forged, a replay or has no message.

        Raises:
            ConnectionOver: the record is an alert that ends the connection.
        """
        library, handle = self._begin(record)
        context, transfers = self._context, self._transfers
        while (count := library.gnutls_record_recv(handle, context.buffer, _RECORD_BYTES)) < 0:
            if count == gnutls.REHANDSHAKE:
                library.gnutls_alert_send(handle, gnutls.WARNING, gnutls.NO_RENEGOTIATION)
            elif count != gnutls.AGAIN and library.gnutls_error_is_fatal(count):
                self.has_failed = True
                raise ConnectionOver(context.reason(count))
            if transfers.incoming is None:  # otherwise GnuTLS has not taken the record yet
                break
        if transfers.outgoing:
            self._flush()
        if count == 0:
            raise ConnectionOver("close_notify")
        return string_at(context.buffer, count) if count > 0 else b""

    def send_close_notify(self) -> None:
        """Send close_notify, unless the connection is closed."""
        if self._handle is not None:
            library, handle = self._begin(None)
            library.gnutls_bye(handle, gnutls.CLOSE_WRITING)
            self._flush()


def _free(library: Any, priorities: c_void_p, keys: c_void_p, certificates: c_void_p) -> None:
    library.gnutls_certificate_free_credentials(certificates)
    library.gnutls_psk_free_server_credentials(keys)
    library.gnutls_priority_deinit(priorities)


def _new_cookie_key() -> Datum:
    return Datum.of(os.urandom(gnutls.COOKIE_KEY_BYTES))


def _joined(records: Sequence[bytes]) -> Iterator[bytes]:
    """Put records together into as few datagrams as possible."""
    datagram = b""
    for record in records:
        if datagram and len(datagram) + len(record) > _FLIGHT_BYTES:
            yield datagram
            datagram = b""
        datagram += record
    if datagram:
        yield datagram
