"""Why a server refuses a connection, as its code: the library tells of such an answer only the text.

PostgreSQL manual, 55.2.1 (start-up) and 55.8 (fields of ErrorResponse).
"""

import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

_VERSION: Final = 3 << 16
_SECONDS: Final = 2.0
_MOST_BYTES: Final = 8192
_DEFAULT_FOLDER: Final = "/var/run/postgresql"
_DEFAULT_PORT: Final = "5432"


def refusal_codes(parameters: Mapping[str, Any]) -> Iterator[str]:
    """The codes with which the servers of an address refuse whoever comes, before they ask for a password. `parameters`
    are those of the library, with addresses instead of names."""
    hosts = str(parameters.get("hostaddr") or parameters.get("host") or os.environ.get("PGHOST") or _DEFAULT_FOLDER)
    ports = str(parameters.get("port") or os.environ.get("PGPORT") or _DEFAULT_PORT).split(",")
    names = str(parameters.get("host") or "").split(",")
    for at, host in enumerate(hosts.split(",")):
        with suppress(OSError):
            code = _asked(host or names[at], ports[min(at, len(ports) - 1)], str(parameters.get("user") or "trunkline"))
            if code:
                yield code


def _asked(host: str, port: str, user: str) -> str:
    where: Any = f"{host}/.s.PGSQL.{port}" if host.startswith(("/", "@")) else (host, int(port))
    if isinstance(where, str):
        connection = socket.socket(socket.AF_UNIX)
    else:
        connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    with connection:
        connection.settimeout(_SECONDS)
        connection.connect(where)
        names = b"\0".join((b"user", user.encode(), b"database", user.encode(), b"", b""))
        connection.sendall(struct.pack(">II", len(names) + 8, _VERSION) + names)
        answer = connection.recv(_MOST_BYTES)
    if answer[:1] != b"E":
        return ""
    return next((field[1:].decode("ascii", "replace") for field in answer[5:].split(b"\0") if field[:1] == b"C"), "")
