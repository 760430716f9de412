"""The binding of GnuTLS through ctypes: the functions that DTLS needs, from gnutls/gnutls.h and gnutls/dtls.h.

Only the modules of this package import it (a contract in pyproject.toml). A wrong type here is memory corruption.

The functions are called with the interpreter's lock held: a record takes 2 µs, and to release the lock and get it back
takes longer as soon as another thread wants it. No function waits, because no connection here has a socket.
"""

from collections.abc import Callable
from ctypes import (
    POINTER,
    PYFUNCTYPE,
    PyDLL,
    Structure,
    c_char_p,
    c_int,
    c_size_t,
    c_ssize_t,
    c_uint,
    c_void_p,
    cast,
    memmove,
)
from functools import cache
from typing import Any, Final, Self

from cffi import FFI

from protocols.coap.dtls.errors import DtlsUnavailable

_LIBRARY: Final = "libgnutls.so.30"
#: The oldest version that was tested: that of Debian 12.
_OLDEST: Final = b"3.7.9"

SERVER, CLIENT, DATAGRAM, NONBLOCK, NO_TICKETS = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 10
CERTIFICATE_CREDENTIALS, PSK_CREDENTIALS = 1, 4
REQUEST_CERTIFICATE = 1
RAW_KEY = 0
PEM = 1
CLOSE_WRITING = 1
WARNING, FATAL = 1, 2
NO_RENEGOTIATION, UNKNOWN_PSK_IDENTITY = 100, 115
AGAIN, REHANDSHAKE = -28, -37
COOKIE_KEY_BYTES = 16


class Datum(Structure):
    """gnutls_datum_t: a pointer to bytes and their number."""

    _fields_ = (("data", c_void_p), ("size", c_uint))

    @classmethod
    def of(cls, data: bytes) -> Self:
        """A datum that points to `data` and keeps it alive."""
        datum = cls(cast(c_char_p(data), c_void_p), len(data))
        datum.keeps_alive = data
        return datum


class Prestate(Structure):
    """gnutls_dtls_prestate_st: what a connection needs of the ClientHello whose cookie was verified."""

    _fields_ = (("record_seq", c_uint), ("hsk_read_seq", c_uint), ("hsk_write_seq", c_uint))


#: The types of functions that GnuTLS calls.
Transfer = PYFUNCTYPE(c_ssize_t, c_void_p, c_void_p, c_size_t)
Wait = PYFUNCTYPE(c_int, c_void_p, c_uint)
FindKey = PYFUNCTYPE(c_int, c_void_p, c_char_p, POINTER(Datum))
StoreSession = PYFUNCTYPE(c_int, c_void_p, Datum, Datum)

_HANDLE: Final = POINTER(c_void_p)

#: The types of the result and of the arguments of each function.
_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "gnutls_check_version": (c_char_p, c_char_p),
    "gnutls_strerror": (c_char_p, c_int),
    "gnutls_error_is_fatal": (c_int, c_int),
    "gnutls_priority_init": (c_int, _HANDLE, c_char_p, c_void_p),
    "gnutls_priority_deinit": (None, c_void_p),
    "gnutls_priority_set": (c_int, c_void_p, c_void_p),
    "gnutls_certificate_allocate_credentials": (c_int, _HANDLE),
    "gnutls_certificate_free_credentials": (None, c_void_p),
    "gnutls_certificate_set_x509_key_file": (c_int, c_void_p, c_char_p, c_char_p, c_int),
    "gnutls_certificate_server_set_request": (None, c_void_p, c_int),
    "gnutls_certificate_get_peers": (POINTER(Datum), c_void_p, POINTER(c_uint)),
    "gnutls_psk_allocate_server_credentials": (c_int, _HANDLE),
    "gnutls_psk_free_server_credentials": (None, c_void_p),
    "gnutls_psk_set_server_credentials_function": (None, c_void_p, FindKey),
    "gnutls_psk_allocate_client_credentials": (c_int, _HANDLE),
    "gnutls_psk_free_client_credentials": (None, c_void_p),
    "gnutls_psk_set_client_credentials": (c_int, c_void_p, c_char_p, POINTER(Datum), c_int),
    "gnutls_psk_server_get_username": (c_char_p, c_void_p),
    "gnutls_db_set_store_function": (None, c_void_p, StoreSession),
    "gnutls_db_set_retrieve_function": (None, c_void_p, c_void_p),
    "gnutls_session_is_resumed": (c_int, c_void_p),
    "gnutls_db_set_cache_expiration": (None, c_void_p, c_int),
    "gnutls_dtls_cookie_verify": (c_int, POINTER(Datum), c_char_p, c_size_t, c_char_p, c_size_t, POINTER(Prestate)),
    "gnutls_dtls_cookie_send": (c_int, POINTER(Datum), c_char_p, c_size_t, POINTER(Prestate), c_void_p, Transfer),
    "gnutls_dtls_prestate_set": (None, c_void_p, POINTER(Prestate)),
    "gnutls_dtls_set_mtu": (None, c_void_p, c_uint),
    "gnutls_dtls_set_timeouts": (None, c_void_p, c_uint, c_uint),
    "gnutls_dtls_get_timeout": (c_uint, c_void_p),
    "gnutls_init": (c_int, _HANDLE, c_uint),
    "gnutls_deinit": (None, c_void_p),
    "gnutls_credentials_set": (c_int, c_void_p, c_int, c_void_p),
    "gnutls_handshake_set_max_packet_length": (None, c_void_p, c_size_t),
    "gnutls_transport_set_push_function": (None, c_void_p, Transfer),
    "gnutls_transport_set_pull_function": (None, c_void_p, Transfer),
    "gnutls_transport_set_pull_timeout_function": (None, c_void_p, Wait),
    "gnutls_transport_set_errno": (None, c_void_p, c_int),
    "gnutls_handshake": (c_int, c_void_p),
    "gnutls_record_recv": (c_ssize_t, c_void_p, c_void_p, c_size_t),
    "gnutls_record_send": (c_ssize_t, c_void_p, c_char_p, c_size_t),
    "gnutls_alert_send": (c_int, c_void_p, c_int, c_int),
    "gnutls_alert_send_appropriate": (c_int, c_void_p, c_int),
    "gnutls_bye": (c_int, c_void_p, c_int),
}


@cache
def _ffi() -> FFI:
    """One for all contexts: to parse its types takes longer than all else that a context needs."""
    ffi = FFI()
    ffi.cdef("typedef struct { void *data; unsigned int size; } gnutls_datum_t;")
    return ffi


class FindSession:
    """A function for `gnutls_db_set_retrieve_function`, by cffi: those of ctypes cannot return a structure."""

    def __init__(self, library: Any, find: Callable[[bytes], bytes | None]) -> None:
        """`find` gives the data of the session with an id, and must not raise."""
        ffi = _ffi()

        def found(_pointer: object, id_: Any) -> Any:
            place, data = ffi.new("gnutls_datum_t *"), find(bytes(ffi.buffer(id_.data, id_.size)))
            if data is not None and (copy := library.allocate(len(data))):
                memmove(copy, data, len(data))
                place.data, place.size = ffi.cast("void *", copy), len(data)
            return place[0]

        self._function = ffi.callback("gnutls_datum_t(void *, gnutls_datum_t)", found)
        self.address = int(ffi.cast("uintptr_t", self._function))


@cache
def load() -> Any:
    """Load the library of the operating system. Raises DtlsUnavailable when it is missing or too old."""
    try:
        library: Any = PyDLL(_LIBRARY)
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        # GnuTLS frees with gnutls_free what it is given, so it must come from gnutls_malloc.
        allocate = PYFUNCTYPE(c_void_p, c_size_t)
        library.allocate = allocate(c_void_p.in_dll(library, "gnutls_malloc").value or 0)
    except (OSError, AttributeError, ValueError) as error:
        raise DtlsUnavailable(f"{_LIBRARY} is needed (Debian's package libgnutls30): {error}") from error
    if library.gnutls_check_version(_OLDEST) is None:
        found = library.gnutls_check_version(None).decode()
        raise DtlsUnavailable(f"GnuTLS {_OLDEST.decode()} is needed, and {found} is installed")
    return library
