"""How a user wants to be told of alarms (reference 12.13), and the port through which notices leave."""

import re
from collections.abc import Callable
from datetime import datetime, time, timedelta
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from broker.errors import Finding, ValidationFailed, choice, invalid, too_long
from broker.zones import zone_named
from config.limits import ALARM_APPRISE_MAX, ALARM_URL_CHARACTERS
from storage.keys import Milliseconds

SEVERITIES: Final = ("info", "warning", "critical")
_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]{0,31})://\S+", re.IGNORECASE)
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,200}")


class NotToldError(Exception):
    """A notice was not taken. The text is one line without secrets. `is_final`: to try again is of no use."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class AlarmNotice(msgspec.Struct, frozen=True):
    """`link` leads to the page that acknowledges; empty without one. `alarms`: the ids of those whose texts it has.
    `acknowledge`: the words of the link."""

    title: str
    text: str
    severity: str
    link: str = ""
    alarms: tuple[str, ...] = ()
    acknowledge: str = "Acknowledge"


class Ntfy(msgspec.Struct, frozen=True):
    """`url` is that of the topic, which whoever knows it may read; `token`: of an account there."""

    url: str
    token: str = ""


class QuietHours(msgspec.Struct, frozen=True):
    """Local times such as `22:00`; `end` may be on the next day. `critical`: critical alarms are told all the same."""

    begin: str
    end: str
    time_zone: str
    critical: bool = True


class Telling(msgspec.Struct, frozen=True):
    """`again_minutes`: told again so often until somebody acknowledges; 0: once."""

    severity: str = "warning"
    mail: bool = False
    ntfy: Ntfy | None = None
    apprise: tuple[str, ...] = ()
    quiet: QuietHours | None = None
    again_minutes: int = 0

    @property
    def has_ways(self) -> bool:
        return self.mail or self.ntfy is not None or bool(self.apprise)

    def is_told_of(self, severity: str) -> bool:
        return self.has_ways and SEVERITIES.index(severity) >= SEVERITIES.index(self.severity)


class AlarmWays(Protocol):
    """The port through which notices leave. `protocols/outbound` implements it."""

    @property
    def has_apprise(self) -> bool: ...

    async def ntfy(self, way: Ntfy, notice: AlarmNotice) -> None:
        """Raises NotToldError."""

    async def apprise(self, urls: tuple[str, ...], notice: AlarmNotice) -> None:
        """Raises NotToldError."""


def check_telling(wanted: Telling, schemes: tuple[str, ...]) -> None:
    """Check the settings. `schemes`: the ways of Apprise that the operator allows. Raises ValidationFailed."""
    findings = list[Finding]()

    def refuse(field: str, text: str) -> None:
        findings.append(Finding(field, (text,)))

    if wanted.severity not in SEVERITIES:
        refuse("severity", invalid(choice(SEVERITIES)))
    if wanted.ntfy is not None:
        if not _is_topic(wanted.ntfy.url):
            refuse("ntfy.url", invalid("must be the http or https address of a topic"))
        if wanted.ntfy.token and _TOKEN.fullmatch(wanted.ntfy.token) is None:
            refuse("ntfy.token", invalid("must be at most 200 printable characters"))
    if len(wanted.apprise) > ALARM_APPRISE_MAX:
        refuse("apprise", too_long(ALARM_APPRISE_MAX))
    for index, url in enumerate(wanted.apprise[:ALARM_APPRISE_MAX]):
        if len(url) > ALARM_URL_CHARACTERS or _SCHEME.fullmatch(url) is None:
            refuse(f"apprise.{index}", invalid("must be an address of Apprise"))
        elif not is_allowed(url, schemes):
            allowed = ", ".join(schemes) if schemes else "none"
            refuse(f"apprise.{index}", invalid(f"the operator allows {allowed}"))
    if wanted.quiet is not None:
        _check_quiet(wanted.quiet, refuse)
    if findings:
        raise ValidationFailed(tuple(findings))


def is_allowed(url: str, schemes: tuple[str, ...]) -> bool:
    """Whether the operator allows an address of Apprise."""
    found = _SCHEME.fullmatch(url)
    return found is not None and found[1].lower() in schemes


def _check_quiet(quiet: QuietHours, refuse: Callable[[str, str], None]) -> None:
    for name, at in (("begin", quiet.begin), ("end", quiet.end)):
        if _TIME.fullmatch(at) is None:
            refuse(f"quiet.{name}", invalid("must be a time such as 22:00"))
    try:
        zone_named(quiet.time_zone)
    except ValueError:
        refuse("quiet.timeZone", invalid("there is no such time zone"))


def _is_topic(url: str) -> bool:
    if len(url) > ALARM_URL_CHARACTERS or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_complete and "@" not in parts.netloc and parts.path.strip("/") != ""


def quiet_until(quiet: QuietHours | None, severity: str, now_ms: Milliseconds) -> Milliseconds | None:
    """When the quiet hours end in which this moment is; None: it is in none."""
    if quiet is None or (quiet.critical and severity == "critical"):
        return None
    zone = zone_named(quiet.time_zone)
    now = datetime.fromtimestamp(now_ms / 1000, zone)
    begin, end = time.fromisoformat(quiet.begin), time.fromisoformat(quiet.end)
    local = now.time().replace(tzinfo=None)
    is_quiet = begin <= local < end if begin <= end else local >= begin or local < end
    if not is_quiet:
        return None
    day = now.date() if local < end else now.date() + timedelta(days=1)
    ends = datetime.combine(day, end, zone)
    return Milliseconds(max(int(ends.timestamp() * 1000), now_ms + 60_000))
