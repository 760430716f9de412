"""Clock, ports, descriptors, GnuTLS and the unit of systemd."""

import errno
import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.trusted_time import UNEXPLAINED_MS
from config.settings import ANY_HOST, Address
from config.shown_command import shown_command
from protocols.coap.dtls.errors import DtlsUnavailable
from protocols.coap.dtls.self_test import self_test
from protocols.doctor.patient import CheckResult, Patient
from protocols.operation.time_sync import is_clock_synchronized
from storage.engines import engine_of, may_have_store
from storage.messages import MessageStore
from storage.sql import StoreError

_CONNECT_SECONDS: Final = 3.0
_SYSTEMCTL_SECONDS: Final = 10
#: Some dozen connections, and what the store and the listeners need.
_FEW_DESCRIPTORS: Final = 1_024
_FULL: Final = 0.8
#: The listeners of a daemon that stands by.
_OF_STANDBY: Final = frozenset({"http", "https"})
#: Hardening of this version's unit, as `systemctl show` prints it; a test compares the two.
HARDENING: Final = {
    "NoNewPrivileges": "yes",
    "PrivateDevices": "yes",
    "PrivateTmp": "yes",
    "ProtectClock": "yes",
    "ProtectControlGroups": "yes",
    "ProtectHome": "yes",
    "ProtectHostname": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectSystem": "strict",
    "LockPersonality": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
}


def look_at_clock(patient: Patient) -> Iterator[CheckResult]:
    jumped = 0
    if patient.statistics is not None:
        jumped = int(patient.statistics.get("clock", {}).get("jumped_seconds", 0))
    elif may_have_store(patient.settings):
        try:
            with engine_of(patient.settings).snapshot() as snapshot:
                known_ms = MessageStore(snapshot.rows).counter("trusted_ms")
        except StoreError:  # the check of the store tells
            known_ms = 0
        ahead_ms = time.time_ns() // 1_000_000 - known_ms
        jumped = ahead_ms // 1000 if known_ms and ahead_ms > UNEXPLAINED_MS else 0
    is_right = is_clock_synchronized()
    if jumped and not is_right:
        yield CheckResult(
            "clock",
            False,
            f"{jumped} s ahead of the last time that was believed, so nothing is deleted: if it shows the right time,"
            f" run: {shown_command('retention confirm')} (with the daemon running)",
        )
    elif is_right:
        yield CheckResult("clock", True, "synchronised")
    else:
        yield CheckResult(
            "clock",
            False,
            "not synchronised: install and start chrony or systemd-timesyncd (container: on its host)",
        )


def look_at_ports(patient: Patient) -> Iterator[CheckResult]:
    found = False
    for name, bind, is_udp in patient.listeners:
        found = True
        if not bind.port:
            yield CheckResult("port", True, f"{name} takes a free port at each start")
            continue
        is_running = patient.is_running or (patient.standing_by is not None and name in _OF_STANDBY)
        problem = _port_problem(bind, is_udp=is_udp, is_running=is_running)
        yield CheckResult("port", not problem, f"{name} {bind}: {problem}" if problem else f"{name} {bind}")
    if not found:
        yield CheckResult(
            "port", False, "no listener is configured: set http.bind or another bind, or name the --config"
        )


def _port_problem(bind: Address, *, is_udp: bool, is_running: bool) -> str:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            None if bind.host == ANY_HOST else bind.host,
            bind.port,
            type=socket.SOCK_DGRAM if is_udp else socket.SOCK_STREAM,
        )[0]
    except OSError as error:
        return f"{error.strerror}: use an address of this machine"
    with socket.socket(family, kind, protocol) as sock:
        if is_running and not is_udp:
            sock.settimeout(_CONNECT_SECONDS)
            host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(address[0]), str(address[0]))  # noqa: S104 - compared
            try:
                sock.connect((host, bind.port))
            except OSError as error:
                return f"the running daemon does not answer here ({error}): restart it, and look at its log"
            return ""
        if not is_udp:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(address)
        except OSError as error:
            if is_running and error.errno == errno.EADDRINUSE:
                return ""
            if error.errno == errno.EACCES:
                return "ports below 1024 need CAP_NET_BIND_SERVICE: take one above, or add it in the unit"
            return f"{error.strerror}: find who has it with ss -lnp, or take another port"
        if not is_running:
            return ""
    return "the running daemon does not listen here: look for the listener in its log, then restart it"


def look_at_descriptors(patient: Patient) -> Iterator[CheckResult]:
    pid = patient.pid
    if pid is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        yield CheckResult("descriptors", True, f"{limit} in this shell; the unit's LimitNOFILE counts for the service")
        return
    try:
        limits = Path(f"/proc/{pid}/limits").read_text(encoding="ascii").splitlines()
        used = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - without a Path for each
    except PermissionError:
        yield CheckResult("descriptors", False, "not visible for you: run the doctor as root")
        return
    text = next(line.split()[3] for line in limits if line.startswith("Max open files"))
    limit = int(text) if text.isdecimal() else 1 << 30
    if used >= _FULL * limit or limit < _FEW_DESCRIPTORS:
        yield CheckResult(
            "descriptors", False, f"{used} of {limit} are open: raise LimitNOFILE in the unit, then restart"
        )
    else:
        yield CheckResult("descriptors", True, f"{used} of {limit} are open")


def look_at_gnutls(patient: Patient) -> Iterator[CheckResult]:
    if not {"coaps", "lwm2m_dtls"} & {name for name, _, _ in patient.listeners}:
        yield CheckResult("gnutls", True, "no listener needs it")
        return
    try:
        self_test()
    except DtlsUnavailable as error:
        yield CheckResult("gnutls", False, f"listeners of DTLS stay closed: {error}")
    else:
        yield CheckResult("gnutls", True, "it passes the daemon's self-test")


def look_at_unit(patient: Patient) -> Iterator[CheckResult]:
    systemctl = shutil.which("systemctl")
    if systemctl is None or not Path("/run/systemd/system").exists():
        yield CheckResult("unit", True, "systemd does not run here")
        return
    asked = ",".join(("LoadState", "NeedDaemonReload", *HARDENING))
    run = subprocess.run(  # noqa: S603 - the unit's name is one argument
        [systemctl, "show", f"--property={asked}", "--", patient.unit],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SYSTEMCTL_SECONDS,
    )
    yield unit_finding(patient.unit, run.stdout)


def unit_finding(unit: str, shown: str) -> CheckResult:
    """The finding about the unit, from the output of `systemctl show`."""
    found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    if found.get("LoadState") != "loaded":
        return CheckResult("unit", True, f"there is no {unit}; another one is named with --unit")
    if found.get("NeedDaemonReload") == "yes":
        return CheckResult("unit", False, f"{unit} was changed: run systemctl daemon-reload, then restart the service")
    missing = [f"{name}={value}" for name, value in HARDENING.items() if found.get(name) != value]
    if missing:
        return CheckResult("unit", False, f"{unit} lacks {', '.join(missing)}: use systemd/trunkline.service")
    return CheckResult("unit", True, f"{unit} is hardened")
