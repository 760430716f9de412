"""/users/…/telling: how a user is told of alarms (reference 12.13)."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.alarms.room import AlarmsRoom
from broker.alarms.telling import NO_WAYS
from broker.alarms.telling_settings import ShownTelling
from broker.alarms.ways import SEVERITIES, Ntfy, QuietHours, Telling
from config.limits import ALARM_APPRISE_MAX, ALARM_NOTICES_A_HOUR, ALARM_URL_CHARACTERS
from protocols.http.calls import USER, Chapter, RestCall, RestCalls
from protocols.http.schema import Data, Shape, about, absent_if_none, one_of, time_ms
from storage.records import UserRecord

_PATH = "/users/{uid}/telling"
_MINUTES_MAX = 7 * 24 * 60
_EXAMPLE = {
    "severity": "warning",
    "mail": True,
    "ntfy": {"url": "https://ntfy.sh/my-secret-topic"},
    "apprise": [],
    "quiet": {"begin": "22:00", "end": "07:00", "timeZone": "Europe/Berlin", "critical": True},
    "againMinutes": 15,
}


class _Quiet(Shape, kw_only=True):
    begin: Annotated[str, about("A local time", example="22:00")]
    end: Annotated[str, about("A local time, also on the next day", example="07:00")]
    time_zone: Annotated[str, about("Of the tz database", example="Europe/Berlin")]
    critical: Annotated[bool, about("Critical alarms are told all the same")] = True


class _NtfyBody(Shape, kw_only=True):
    url: Annotated[str, about("The address of the topic", example="https://ntfy.sh/my-secret-topic")]
    token: (
        Annotated[str, about("Of an account there; absent: the one that is set for the same address stays")] | None
    ) = None


class _NtfyObject(Shape, kw_only=True):
    url: str
    has_token: bool


class TellingBody(Shape, kw_only=True):
    example = _EXAMPLE

    severity: Annotated[Literal["info", "warning", "critical"], about("From this one on")] = "warning"
    mail: Annotated[bool, about("To the address of the account")] = False
    ntfy: _NtfyBody | None = None
    apprise: (
        Annotated[
            list[Annotated[str, Meta(max_length=ALARM_URL_CHARACTERS)]],
            Meta(max_length=ALARM_APPRISE_MAX),
            about(
                "Addresses of Apprise, with their secrets, as the operator allows; absent: the ones that are set stay"
            ),
        ]
        | None
    ) = None
    quiet: _Quiet | None = None
    again_minutes: Annotated[
        int, Meta(ge=0, le=_MINUTES_MAX), about("Told again so often until somebody acknowledges; 0: once")
    ] = 0


class TellingObject(Shape, kw_only=True):
    shape = "Telling"
    example = _EXAMPLE | {
        "ntfy": {"url": "https://ntfy.sh/my-secret-topic", "hasToken": False},
        "appriseSchemes": ["tgram"],
    }

    severity: Annotated[str, one_of(SEVERITIES)]
    mail: bool
    ntfy: _NtfyObject | UnsetType = UNSET
    apprise: Annotated[list[str], about("The beginnings of the addresses: the rest has secrets")]
    quiet: _Quiet | UnsetType = UNSET
    again_minutes: int
    apprise_schemes: Annotated[list[str], about("The schemes that the operator allows")]
    problem: Annotated[str, about("Why the last notice was not taken; absent when it was")] | UnsetType = UNSET
    problem_on: Annotated[int, time_ms("When that was")] | UnsetType = UNSET


class AlarmTellingCalls(RestCalls):
    chapter = Chapter(
        "Telling of alarms",
        "A user is told of alarms by mail, on a topic of ntfy, or on ways of Apprise: not in quiet hours, and again "
        "until somebody acknowledges. Each notice has a link that acknowledges.",
    )

    def __init__(self, accounts: AccountsRoom, alarms: AlarmsRoom) -> None:
        self._users = accounts.users
        self._permissions = accounts.permissions
        self._settings = alarms.settings
        self._telling = alarms.telling

    async def _own(self, caller: Caller, uid: str) -> UserRecord:
        """The caller's own user, whose profile it may write. Raises UserNotFound, PermissionDenied."""
        user = await self._users.find(uid, caller)
        await self._permissions.require_profile(caller, user.key)
        return user

    @RestCall(
        "GET", _PATH, tokens=USER, on=_own, summary="How a user is told of alarms", about="Needs WRITE on the profile."
    )
    async def show(self, user: UserRecord) -> Data[TellingObject]:
        return Data(_object(await self._settings.show(user.key), self._settings.schemes))

    @RestCall(
        "PUT",
        _PATH,
        tokens=USER,
        on=_own,
        summary="Set how a user is told of alarms",
        about="The setting is replaced, but for secrets that are left out. Needs WRITE on the profile.",
    )
    async def put(self, user: UserRecord, body: TellingBody) -> Data[TellingObject]:
        known = (await self._settings.show(user.key)).telling
        ntfy = None
        if body.ntfy is not None:
            token = body.ntfy.token
            if token is None:
                token = known.ntfy.token if known.ntfy is not None and known.ntfy.url == body.ntfy.url else ""
            ntfy = Ntfy(body.ntfy.url, token)
        quiet = None
        if body.quiet is not None:
            quiet = QuietHours(body.quiet.begin, body.quiet.end, body.quiet.time_zone, body.quiet.critical)
        wanted = Telling(
            body.severity,
            body.mail,
            ntfy,
            known.apprise if body.apprise is None else tuple(body.apprise),
            quiet,
            body.again_minutes,
        )
        return Data(_object(await self._settings.put(user, wanted), self._settings.schemes))

    @RestCall(
        "POST",
        f"{_PATH}/test",
        tokens=USER,
        on=_own,
        summary="Tell once, as a test",
        about=f"On all ways that are set. At most {ALARM_NOTICES_A_HOUR} notices go to a user in an hour.",
        refusals={409: f"{NO_WAYS}."},
    )
    async def test(self, user: UserRecord) -> Data[TellingObject]:
        await self._telling.test(user)
        return Data(_object(await self._settings.show(user.key), self._settings.schemes))


def _object(shown: ShownTelling, schemes: tuple[str, ...]) -> TellingObject:
    telling, quiet = shown.telling, shown.telling.quiet
    return TellingObject(
        severity=telling.severity,
        mail=telling.mail,
        ntfy=UNSET if telling.ntfy is None else _NtfyObject(url=telling.ntfy.url, has_token=bool(telling.ntfy.token)),
        apprise=[f"{url.partition(':')[0]}://…" for url in telling.apprise],
        quiet=UNSET
        if quiet is None
        else _Quiet(begin=quiet.begin, end=quiet.end, time_zone=quiet.time_zone, critical=quiet.critical),
        again_minutes=telling.again_minutes,
        apprise_schemes=list(schemes),
        problem=shown.problem or UNSET,
        problem_on=absent_if_none(shown.problem_on),
    )
