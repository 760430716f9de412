"""SIGHUP: what is taken from the configuration while the daemon runs (reference 27.13).

Everything is read and checked before anything changes, so a mistake leaves the daemon as it was.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import structlog
import trio

from broker.services import Services
from config.loading import SettingsError
from config.logging import configure_logging
from config.settings import Settings, Tls
from protocols.coap.dtls.errors import DtlsUnavailable
from protocols.operation import systemd

#: Tables and keys that are taken; every other one needs a restart.
_TAKEN: Final = ("tls", "log", "limits", "metrics", "home_assistant", "discover", "forward", "grace_seconds")
#: Keys of these tables that need a restart all the same: connections hold the objects that they switch off.
KEPT_LIMITS: Final = ("rate_limits", "quotas")

Load = Callable[[], Settings]
#: Reads certificates without using them; what it returns puts them into use. Raises SettingsError, OSError.
Prepare = Callable[[Tls], Callable[[], None]]

_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Reloading:
    """The present settings, and the users of certificates."""

    settings: Settings
    load: Load | None
    certificates: list[Prepare] = field(default_factory=list)
    #: Further receivers of new settings.
    others: list[Callable[[Settings], None]] = field(default_factory=list)

    async def reload_at(self, signals: AsyncIterator[int], status: Callable[[], str] = str) -> None:
        """Reload at each signal. systemd is told what came of it, then `status`."""
        async for _ in signals:
            systemd.notify(f"RELOADING=1\nMONOTONIC_USEC={int(trio.current_time() * 1_000_000)}")
            said = ". ".join(filter(None, (self.reload(), status())))
            systemd.notify(f"READY=1\nSTATUS={said}")

    def reload(self) -> str:
        """Take what can be taken, or nothing. Returns a sentence about it, which the log has, too."""
        try:
            wanted = self._load()
            prepared = [prepare(wanted.tls) for prepare in self.certificates]
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the files: the daemon goes on
            is_known = isinstance(error, SettingsError | OSError | DtlsUnavailable)
            reason = str(error) if is_known else f"{type(error).__name__}: {error}"
            goes_on = "with the former settings and certificates"
            _log.error("reload_refused", reason=reason, goes_on=goes_on, exc_info=None if is_known else error)
            return f"Not reloaded: {' '.join(reason.split())}"
        running, self.settings = self.settings, _taken(self.settings, wanted)
        for put_into_use in prepared:
            put_into_use()
        configure_logging(self.settings.log.level, self.settings.log.format)
        for renew in self.others:
            renew(self.settings)
        changed, left = _changes(running, self.settings), _changes(self.settings, wanted)
        tell = _log.warning if left else _log.info
        tell("reloaded", changed=changed, needs_restart=left, certificates="read again" if prepared else "none")
        return f"Reloaded; needs a restart: {', '.join(left)}" if left else "Reloaded"

    def _load(self) -> Settings:
        if self.load is None:
            raise SettingsError("this daemon was started without a configuration")
        return self.load()


def renew_limits(services: Services, settings: Settings) -> None:
    limits = settings.limits
    services.limits.renew(limits)
    services.accounts.tokens.renew_limit(limits.calls_per_address)
    services.messages.ingest.future_grace_ms = limits.future_grace_seconds * 1000


def renew_homes(services: Services, settings: Settings) -> None:
    if (announcer := services.home_assistant.announcer) is not None:
        announcer.renew(settings)
    if (finder := services.found.finder) is not None:
        finder.renew(settings)


def renew_forwards(services: Services, settings: Settings) -> None:
    services.forwarding.forwarding.renew(settings)


def _taken(running: Settings, wanted: Settings) -> Settings:
    """The running settings with all of the wanted ones that need no restart."""
    kept = {name: getattr(running.limits, name) for name in KEPT_LIMITS}
    taken = {name: getattr(wanted, name) for name in _TAKEN}
    return msgspec.structs.replace(running, **{**taken, "limits": msgspec.structs.replace(wanted.limits, **kept)})


def _changes(one: Settings, other: Settings) -> list[str]:
    """The keys with different values; never the values, which may be secrets."""
    return [name for name, value in _keys(one) if value != dict(_keys(other))[name]]


def _keys(settings: Settings) -> Iterator[tuple[str, Any]]:
    for table in settings.__struct_fields__:
        value = getattr(settings, table)
        if isinstance(value, msgspec.Struct):
            yield from ((f"{table}.{key}", getattr(value, key)) for key in value.__struct_fields__)
        else:
            yield table, value
