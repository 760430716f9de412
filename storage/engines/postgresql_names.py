"""The addresses of the servers' names, with a bound in time, which neither the library nor the system has."""

import socket
import threading
import time
from concurrent.futures import Future
from ipaddress import ip_address
from typing import Any

Addresses = list[str]
_lock = threading.Lock()
#: Look-ups that have not ended: of each name, one runs, however often it is asked for.
_running: dict[str, Future[Addresses]] = {}


def resolved(given: dict[str, Any], hosts: str, seconds: float) -> dict[str, Any]:
    """The parameters of a connection with an address for each of `hosts`, the names with commas between.

    Raises OSError: no name has an address, or none was found within `seconds`.
    """
    names = hosts.split(",")
    if given.get("hostaddr") or not any(map(_is_name, names)):
        return given
    ports = str(given.get("port") or "").split(",")
    ports += [ports[-1]] * (len(names) - len(ports))
    until = time.monotonic() + seconds
    begun = {name: _look_up(name) for name in names if _is_name(name)}
    found, failed = list[tuple[str, str, str]](), OSError()
    for name, port in zip(names, ports, strict=False):
        try:
            addresses = begun[name].result(max(until - time.monotonic(), 0)) if name in begun else [_address(name)]
        except TimeoutError:
            failed = TimeoutError(
                f"the name {name} was not found within {seconds:g} s: the name server does not answer"
            )
        except OSError as error:
            failed = OSError(f"failed to resolve host {name!r}: {error}")
        else:
            found += [(name, address, port) for address in addresses]
    if not found:
        raise failed
    columns = [",".join(column) for column in zip(*found, strict=True)]
    return {**given, **dict(zip(("host", "hostaddr", "port"), columns, strict=True))}


def _is_name(host: str) -> bool:
    return bool(host) and not host.startswith(("/", "@")) and not _address(host)


def _address(host: str) -> str:
    """The host, if it is an address; the folder of a socket has none."""
    try:
        return str(ip_address(host.partition("%")[0])) and host
    except ValueError:
        return ""


def _look_up(name: str) -> "Future[Addresses]":
    with _lock:
        if (running := _running.get(name)) is None:
            running = _running[name] = Future()
            # Nothing ends a thread that waits for a name server, so nobody waits for the thread either.
            threading.Thread(target=_run, args=(name, running), daemon=True, name="look-up").start()
        return running


def _run(name: str, looked_up: "Future[Addresses]") -> None:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        looked_up.set_result(list(dict.fromkeys(str(one[4][0]) for one in found)))
    except (OSError, UnicodeError) as error:
        looked_up.set_exception(error if isinstance(error, OSError) else OSError(str(error)))
    finally:
        with _lock:
            del _running[name]
