"""Result of a check, and the installation that it looks at."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from broker.errors import ValidationFailed
from config.settings import Address, Settings
from protocols.control.client import ControlFailedError, ControlUnavailableError, send_command
from protocols.operation.state import holder

_ANSWER_SECONDS: Final = 10.0
_DATAGRAMS: Final = frozenset({"coap", "coaps", "lwm2m_dtls"})


class CheckResult(msgspec.Struct, frozen=True):
    """One line. `text` says what was found, or, where it is not `ok`, what to do."""

    check: str
    ok: bool
    text: str


class Patient(msgspec.Struct, frozen=True):
    """The daemon's configuration, and the daemon itself if it runs."""

    settings: Settings
    #: The answer to `statistics` of the running daemon; None when none answers.
    statistics: Mapping[str, Any] | None
    #: Why a daemon that seems to be there did not answer; empty otherwise.
    silence: str
    unit: str
    #: Where the running daemon listens, by the names of its ready line.
    listening: Mapping[str, Address] = msgspec.field(default_factory=dict)
    #: The process of a daemon that stands by, which answers nothing (reference 27.25).
    standing_by: int | None = None

    @property
    def store(self) -> Path:
        return self.settings.state_dir / "store.sqlite"

    @property
    def is_running(self) -> bool:
        return self.statistics is not None or bool(self.silence)

    @property
    def pid(self) -> int | None:
        """The process of the running daemon."""
        if self.statistics is None:
            return None
        try:
            return int((self.settings.state_dir / "lock").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    @property
    def user(self) -> tuple[int, int]:
        """User and group that the daemon has, or will have: whose the state directory is."""
        try:
            status = (Path(f"/proc/{self.pid}") if self.pid else self.settings.state_dir).stat()
        except OSError:
            return os.geteuid(), os.getegid()
        return status.st_uid, status.st_gid

    @property
    def listeners(self) -> Iterator[tuple[str, Address, bool]]:
        """The listeners: name in the ready line, address, whether it is one of datagrams.

        Those of the configuration; where it has none, those of the running daemon, which got others than this command.
        """
        settings = self.settings
        if not settings.listeners:
            yield from ((name, one, name in _DATAGRAMS) for name, bind in self.listening.items() for one in bind.all)
        for name, bind, is_udp in (
            ("http", settings.http.bind, False),
            ("https", settings.http.tls_bind, False),
            ("accounts", settings.accounts.tls_bind, False),
            ("secure", settings.secure.tls_bind, False),
            ("mqtt", settings.mqtt.bind, False),
            ("mqtts", settings.mqtt.tls_bind, False),
            ("coap", settings.coap.bind, True),
            ("coaps", settings.coap.dtls_bind, True),
            ("lwm2m_dtls", settings.lwm2m.dtls_bind, True),
            ("lwm2m_tcp", settings.lwm2m.tcp_bind, False),
            ("lwm2m_tls", settings.lwm2m.tls_bind, False),
        ):
            if bind is not None:
                yield from ((name, one, is_udp) for one in bind.all)


def patient_of(settings: Settings, unit: str) -> Patient:
    """Ask the daemon that may run."""
    statistics, silence, listening, standing_by = None, "", dict[str, Address](), None
    try:
        statistics, listening = trio.run(_ask, settings.state_dir)
    except ControlUnavailableError as error:
        if isinstance(error.__cause__, PermissionError):
            silence = "its control socket is not for you: run the doctor as root or as the user of the service"
        elif settings.storage.is_postgresql:
            standing_by = holder(settings.state_dir)
    except trio.TooSlowError:
        silence = f"it does not answer within {_ANSWER_SECONDS:.0f} s: look at its log, then restart it"
    except (ControlFailedError, ValidationFailed) as error:
        silence = f"it does not answer: {error}"
    return Patient(settings, statistics, silence, unit, listening, standing_by)


async def _ask(state_dir: Path) -> tuple[Mapping[str, Any], dict[str, Address]]:
    with trio.fail_after(_ANSWER_SECONDS):
        answer: Mapping[str, Any] = await send_command(state_dir, "statistics", {})
        try:
            listening = await send_command(state_dir, "listeners", {})
        except ControlFailedError:  # a daemon of a version before this command
            listening = {}
        return answer, {name: Address.of(value) for name, value in listening.items()}
