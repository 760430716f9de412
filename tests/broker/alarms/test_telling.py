"""Users are told of alarms: when, how often, and on which ways; and links acknowledge."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.alarms.links import AlarmLinks
from broker.alarms.ways import AlarmNotice, NotToldError, Ntfy, QuietHours, Telling, quiet_until
from broker.errors import Conflict, ValidationFailed
from broker.secrets import Vault
from broker.services import Services
from config.limits import ALARM_LINK_HOURS, ALARM_NOTICES_A_HOUR
from storage.keys import Milliseconds
from tests.broker.alarms.test_life import alarms, ringing
from tests.broker.rules.home import Home, when
from tests.builders import ServicesOpener
from tests.factories import ADA, LIGHT_TYPE, NOW_MS, build_world
from tests.fakes import FakeClock

NTFY: Final = Ntfy("https://ntfy.example.org/topic", "tk_secret")
_MINUTE_MS: Final = 60_000


@dataclass
class FakeWays:
    """Keeps notices. `fails` says, for the next ones, what is wrong."""

    has_apprise: bool = True
    told: list[tuple[str, AlarmNotice]] = field(default_factory=list)
    fails: list[NotToldError] = field(default_factory=list)

    async def ntfy(self, way: Ntfy, notice: AlarmNotice) -> None:
        assert way == NTFY
        self._take("ntfy", notice)

    async def apprise(self, urls: tuple[str, ...], notice: AlarmNotice) -> None:
        self._take(" ".join(urls), notice)

    def _take(self, way: str, notice: AlarmNotice) -> None:
        if self.fails:
            raise self.fails.pop(0)
        self.told.append((way, notice))


@dataclass
class World:
    home: Home
    ways: FakeWays
    clock: FakeClock

    @property
    def services(self) -> Services:
        return self.home.services

    async def wants(self, telling: Telling) -> None:
        user = await self.services.accounts.users.find(ADA)
        await self.services.alarms.telling.put(user, telling)

    async def passes(self, minutes: float) -> None:
        """The time goes on, and the workers look."""
        self.clock.advance(int(minutes * _MINUTE_MS))
        self.services.alarms.telling.wake()
        await wait_all_tasks_blocked()

    @property
    def told(self) -> list[str]:
        return [notice.text for _, notice in self.ways.told]


@pytest.fixture
async def world(opener: ServicesOpener, fake_clock: FakeClock) -> Any:
    ways = FakeWays()
    async with opener(alarm_ways=ways) as services:
        await build_world(services.core.database, services.core.vault)
        yield World(Home(services), ways, fake_clock)


async def test_a_user_is_told_once_on_each_way(world: World) -> None:
    await world.wants(Telling(ntfy=NTFY, mail=True))
    await world.home.rule(ringing(), "Dark")
    await world.home.says({"intensity": 3})
    await world.passes(0)
    ((way, notice),) = world.ways.told
    assert (way, notice.title, notice.text) == ("ntfy", "Critical: Dark", "It is dark")
    (alarm,) = await alarms(world.services)
    code = notice.link.partition("/accounts/alarm?code=")[2]
    assert world.services.alarms.links.alarm_of(code) == alarm.id
    mail = await world.services.core.database.read(lambda tx: tx.mails.next())
    assert mail is not None
    assert mail.kind == "alarm"
    await world.home.says({"intensity": 3})
    await world.passes(60)
    assert len(world.ways.told) == 1


async def test_nobody_is_told_of_less_than_was_asked_for(world: World) -> None:
    await world.wants(Telling(severity="critical", ntfy=NTFY))
    await world.home.rule(ringing(severity="warning"))
    await world.home.says({"intensity": 3})
    await world.passes(0)
    assert world.told == []
    await world.wants(Telling())  # no way at all
    await world.home.rule(ringing())
    await world.home.says({"intensity": 3})
    await world.passes(0)
    assert world.told == []


async def test_it_is_told_again_until_somebody_acknowledges(world: World) -> None:
    await world.wants(Telling(ntfy=NTFY, again_minutes=10))
    await world.home.rule(ringing())
    await world.home.says({"intensity": 3})
    for minutes in (0, 9, 1, 10):
        await world.passes(minutes)
    assert len(world.told) == 3
    (alarm,) = await alarms(world.services)
    await world.services.alarms.alarms.acknowledge(alarm, by="user ada")
    await world.passes(60)
    assert len(world.told) == 3


async def test_quiet_hours_are_kept_and_end(world: World) -> None:
    hour = datetime.fromtimestamp(NOW_MS / 1000, UTC).hour
    quiet = QuietHours(f"{hour:02}:00", f"{(hour + 1) % 24:02}:00", "UTC", critical=True)
    await world.wants(Telling(ntfy=NTFY, quiet=quiet))
    await world.home.rule(ringing(severity="warning", text="Later"))
    await world.home.rule(ringing(text="Now"))
    await world.home.says({"intensity": 3})
    await world.passes(0)
    assert world.told == ["Now"]
    await world.passes(61)
    assert world.told == ["Now", "Later"]


async def test_many_alarms_are_one_notice(world: World) -> None:
    await world.wants(Telling(ntfy=NTFY))
    for number in range(12):
        await world.home.rule(ringing(text=f"Alarm {number}"))
    await world.home.says({"intensity": 3})
    await world.passes(0)
    ((_, notice),) = world.ways.told
    assert (notice.title, notice.severity, notice.link) == ("12 alarms", "critical", "")
    assert notice.text.endswith("Critical: Alarm 9\nand 2 more")


async def test_an_hour_has_a_bound(world: World) -> None:
    await world.wants(Telling(ntfy=NTFY))
    rule = await world.home.rule(ringing(when("intensity", "<", 10, {"selector": "any", "dtid": LIGHT_TYPE})))
    for _ in range(ALARM_NOTICES_A_HOUR + 5):
        await world.home.says({"intensity": 3})
        await world.passes(0)
        await world.home.says({"intensity": 30})
        await world.passes(0.1)
    assert rule.enabled
    assert len(world.told) == ALARM_NOTICES_A_HOUR


async def test_alarms_that_are_told_one_by_one_count_one_by_one(world: World) -> None:
    await world.wants(Telling(ntfy=NTFY))
    for number in range(3):
        await world.home.rule(ringing(text=f"Alarm {number}"))
    for _ in range(ALARM_NOTICES_A_HOUR):
        await world.home.says({"intensity": 3})
        await world.passes(0)
        await world.home.says({"intensity": 30})
        await world.passes(0.1)
    assert len(world.told) == ALARM_NOTICES_A_HOUR


async def test_ways_that_the_operator_does_not_allow_any_more_are_not_used(world: World) -> None:
    telling = world.services.alarms.telling
    telling._schemes = ("tgram", "discord")
    await world.wants(Telling(apprise=("tgram://a/b", "discord://c/d")))
    telling._schemes = ("tgram",)
    await world.home.rule(ringing())
    await world.home.says({"intensity": 3})
    await world.passes(0)
    assert [way for way, _ in world.ways.told] == ["tgram://a/b"]
    shown = await telling.show((await world.services.accounts.users.find(ADA)).key)
    assert shown.problem == "apprise: the operator does not allow all of the addresses any more"


async def test_a_notice_is_tried_again_and_given_up(world: World) -> None:
    await world.wants(Telling(ntfy=NTFY))
    world.ways.fails = [NotToldError("the server answered 503")]
    await world.home.rule(ringing())
    await world.home.says({"intensity": 3})
    await world.passes(0)
    user = await world.services.accounts.users.find(ADA)
    assert (await world.services.alarms.telling.show(user.key)).problem == "ntfy: the server answered 503"
    await world.passes(1)
    assert world.told == ["It is dark"]
    assert (await world.services.alarms.telling.show(user.key)).problem == ""
    world.ways.fails = [NotToldError("the server answered 403", is_final=True)]
    await world.services.alarms.telling.test(user)
    await world.passes(120)
    assert world.told == ["It is dark"]


@pytest.mark.parametrize(
    ("telling", "field_"),
    [
        (Telling(ntfy=Ntfy("ftp://ntfy.sh/topic")), "ntfy.url"),
        (Telling(ntfy=Ntfy("https://ntfy.sh/")), "ntfy.url"),
        (Telling(ntfy=Ntfy("https://ada:secret@ntfy.sh/topic")), "ntfy.url"),
        (Telling(apprise=("json://localhost",)), "apprise.0"),
        (Telling(quiet=QuietHours("22", "07:00", "UTC")), "quiet.begin"),
        (Telling(quiet=QuietHours("22:00", "07:00", "Mars/Olympus")), "quiet.timeZone"),
    ],
)
async def test_wrong_settings_are_refused(world: World, telling: Telling, field_: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        await world.wants(telling)
    assert [one.field for one in refused.value.findings] == [field_]
    user = await world.services.accounts.users.find(ADA)
    with pytest.raises(Conflict):
        await world.services.alarms.telling.test(user)


def at(text: str) -> Milliseconds:
    return Milliseconds(int(datetime.fromisoformat(text).timestamp() * 1000))


@pytest.mark.parametrize(
    ("now", "until"),
    [
        ("2026-06-01T21:59:59+02:00", None),
        ("2026-06-01T22:00:00+02:00", "2026-06-02T07:00:00+02:00"),
        ("2026-06-02T06:59:00+02:00", "2026-06-02T07:00:00+02:00"),
        ("2026-06-02T07:00:00+02:00", None),
        ("2026-10-24T23:00:00+02:00", "2026-10-25T07:00:00+01:00"),  # the clocks are changed in this night
    ],
)
def test_quiet_hours_follow_the_time_zone(now: str, until: str | None) -> None:
    quiet = QuietHours("22:00", "07:00", "Europe/Berlin")
    assert quiet_until(quiet, "warning", at(now)) == (None if until is None else at(until))
    assert quiet_until(quiet, "critical", at(now)) is None


async def test_a_link_is_good_for_its_alarm_and_for_a_time(fake_clock: FakeClock, services: Services) -> None:
    links = AlarmLinks(services.core.vault, fake_clock.clock, services.core.site)
    alarm_id = "0f" * 16
    code = links.code(alarm_id)
    assert links.alarm_of(code) == alarm_id
    for wrong in ("", "é", code[:-4], "A" + code[1:], code[:-5] + "AAAA="):
        assert links.alarm_of(wrong) is None, wrong
    other = AlarmLinks(Vault(Vault.new_key()), fake_clock.clock, services.core.site)
    assert other.alarm_of(code) is None
    fake_clock.advance(ALARM_LINK_HOURS * 3_600_000)
    assert links.alarm_of(code) is None
