"""Notices about alarms: to topics of ntfy, and on the ways of Apprise (reference 12.13)."""

import ssl
import sys
from base64 import b64encode
from importlib.util import find_spec
from typing import Final

import msgspec
import trio

from broker.alarms.ways import AlarmNotice, AlarmWays, NotToldError, Ntfy
from config.limits import ALARM_NOTICE_SECONDS
from config.settings import Settings
from protocols.outbound.http import HttpFailedError, OutboundHttp

_ANSWER_BYTES: Final = 64 * 1024
_PRIORITIES: Final = {"info": "3", "warning": "4", "critical": "5"}
_TAGS: Final = {"info": "information_source", "warning": "warning", "critical": "rotating_light"}
_COMMAND: Final = (sys.executable, "-P", "-m", "protocols.outbound.apprise_process")
_SAID: Final = 200


def alarm_ways(settings: Settings, tls: ssl.SSLContext) -> AlarmWays:
    return OutboundAlarmWays(OutboundHttp(tls, allow_private=settings.outbound.allow_private_addresses))


class OutboundAlarmWays:
    def __init__(self, http: OutboundHttp, *, seconds: float = ALARM_NOTICE_SECONDS) -> None:
        self._http = http
        self._seconds = seconds
        self._has_apprise = find_spec("apprise") is not None

    @property
    def has_apprise(self) -> bool:
        return self._has_apprise

    async def ntfy(self, way: Ntfy, notice: AlarmNotice) -> None:
        """POST to the topic, as docs.ntfy.sh/publish has it."""
        headers = {
            "Title": _header(notice.title),
            "Priority": _PRIORITIES[notice.severity],
            "Tags": _TAGS[notice.severity],
        }
        if notice.link:
            headers |= {"Click": notice.link, "Actions": _header(f"view, {notice.acknowledge}, {notice.link}")}
        if way.token:
            headers["Authorization"] = f"Bearer {way.token}"
        try:
            answer = await self._http.send(
                "POST",
                way.url,
                headers=headers,
                body=notice.text.encode(),
                seconds=self._seconds,
                most_bytes=_ANSWER_BYTES,
            )
        except HttpFailedError as error:
            raise NotToldError(str(error)) from error
        if not 200 <= answer.status < 300:
            is_final = 400 <= answer.status < 500 and answer.status not in {408, 429}
            raise NotToldError(f"the server answered {answer.status}", is_final=is_final)

    async def apprise(self, urls: tuple[str, ...], notice: AlarmNotice) -> None:
        """In a process of its own, with nothing of the daemon's environment and bounds on time and memory."""
        if not self._has_apprise:
            raise NotToldError("the extra apprise is not installed", is_final=True)
        text = f"{notice.text}\n\n{notice.acknowledge}: {notice.link}" if notice.link else notice.text
        job = {"urls": urls, "title": notice.title, "text": text, "severity": notice.severity}
        try:
            with trio.move_on_after(2 * self._seconds) as time:
                ended = await trio.run_process(
                    _COMMAND,
                    stdin=msgspec.json.encode(job),
                    capture_stdout=True,
                    capture_stderr=True,
                    env={},
                    check=False,
                )
        except OSError as error:
            raise NotToldError(f"no process can be started: {error.strerror}") from error
        if time.cancelled_caught:
            raise NotToldError(f"not told within {2 * self._seconds:g} seconds")
        if ended.returncode != 0:
            said = "".join(one if one.isprintable() else " " for one in (ended.stdout or b"").decode(errors="replace"))
            raise NotToldError(said[:_SAID].strip() or "Apprise has failed")


def _header(text: str) -> str:
    """The value of a header. Other texts than ASCII are encoded words (RFC 2047), which ntfy reads."""
    return text if text.isascii() else f"=?UTF-8?B?{b64encode(text.encode()).decode()}?="
