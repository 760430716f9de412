"""Users are told of alarms: when, how often, and on which ways; and links acknowledge."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.alarms.links import AlarmLinks
from broker.alarms.ways import AlarmNotice, NotToldError, Ntfy, QuietHours, Telling, quiet_until
from broker.errors import Conflict, ValidationFailed
from broker.mail import OutgoingMail
from broker.secrets import Vault
from broker.services import Services
from config.limits import ALARM_LINK_HOURS, ALARM_NOTICE_HOURS, ALARM_NOTICES_A_HOUR
from storage.keys import Milliseconds
from storage.records import UserRecord
from storage.transaction import Transaction
from tests.broker.alarms.test_life import alarms, ringing
from tests.broker.rules.home import Home, when
from tests.builders import ServicesOpener
from tests.factories import ADA, BOBS, LIGHT_TYPE, NOW_MS, build_world
from tests.fakes import FakeClock
from tests.rows import each_row

NTFY: Final = Ntfy("https://ntfy.example.org/topic", "tk_secret")
_MINUTE_MS: Final = 60_000


@dataclass
class FakeWays:
    """Keeps notices. `fails` says, for the next ones, what is wrong; `waits`: by host, what a server waits for."""

    has_apprise: bool = True
    told: list[tuple[str, AlarmNotice]] = field(default_factory=list)
    fails: list[NotToldError] = field(default_factory=list)
    waits: dict[str, trio.Event] = field(default_factory=dict)
    under_way: int = 0

    async def ntfy(self, way: Ntfy, notice: AlarmNotice) -> None:
        assert way == NTFY or self.waits
        if (event := self.waits.get(urlsplit(way.url).hostname or "")) is not None:
            self.under_way += 1
            await event.wait()
            self.under_way -= 1
        self._take("ntfy", notice)

    async def apprise(self, urls: tuple[str, ...], notice: AlarmNotice) -> None:
        self._take(" ".join(urls), notice)

    def _take(self, way: str, notice: AlarmNotice) -> None:
        if self.fails:
            raise self.fails.pop(0)
        self.told.append((way, notice))


class Transport:
    """Keeps the texts of mails."""

    done: Final = "mail_sent"

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def deliver(self, mail: OutgoingMail) -> None:
        self.texts.append(mail.message.get_content())

    async def forget(self, address: str, name: str) -> None:
        """It keeps nothing that names somebody."""


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
        await self.services.alarms.settings.put(user, telling)

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


@pytest.mark.both_engines
async def test_a_user_is_told_in_the_language_of_the_account(world: World) -> None:
    services = world.services
    user = await services.accounts.users.find(ADA)
    await services.core.database.write(lambda tx: tx.accounts.set_language(user.key, "de", now_ms=NOW_MS))
    await world.wants(Telling(ntfy=NTFY, mail=True))
    await world.home.rule(ringing(text="Es ist dunkel"), "Dunkel")
    await world.home.says({"intensity": 3})
    await world.passes(0)
    ((_, notice),) = world.ways.told
    assert (notice.title, notice.acknowledge) == ("Kritisch: Dunkel", "Bestätigen")
    transport = Transport()
    async with trio.open_nursery() as nursery:
        await nursery.start(services.mail.deliver_forever, transport)
        await world.passes(1)
        nursery.cancel_scope.cancel()
    (text,) = transport.texts
    assert text.startswith("Es ist dunkel\n\nBestätigen, innerhalb von drei Tagen")


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


@pytest.mark.both_engines
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
    settings = world.services.alarms.settings
    settings.schemes = ("tgram", "discord")
    await world.wants(Telling(apprise=("tgram://a/b", "discord://c/d")))
    settings.schemes = ("tgram",)
    await world.home.rule(ringing())
    await world.home.says({"intensity": 3})
    await world.passes(0)
    assert [way for way, _ in world.ways.told] == ["tgram://a/b"]
    shown = await settings.show((await world.services.accounts.users.find(ADA)).key)
    assert shown.problem == "apprise: the operator does not allow all of the addresses any more"


async def lost(services: Services, share: str) -> None:
    await services.devices.shares.remove(share)
    await wait_all_tasks_blocked()


@pytest.mark.both_engines
async def test_what_may_not_be_read_any_more_is_told_to_nobody(world: World) -> None:
    """Bob ends a share while a notice and a mail wait that have the value of his device, and before they are due."""
    services, transport = world.services, Transport()
    await services.provisioning.apply({"shares": [{"device": BOBS, "with": ADA}]})
    (share,), _ = await services.devices.shares.of_device(await services.devices.registry.find(BOBS), offset=0, count=1)
    await world.wants(Telling(ntfy=NTFY, mail=True, again_minutes=5))
    world.ways.fails = [NotToldError("the server answered 503")] * 2
    of_bob: Any = {"concat": [{"value": "Bob has "}, {"valueFrom": {"sdid": BOBS, "field": "intensity"}}]}
    await world.home.rule(ringing(text=of_bob))
    await world.home.rule(ringing(text="It is dark"))
    await world.home.says({"intensity": 77}, BOBS)
    await world.home.says({"intensity": 3})
    await world.passes(0)
    waiting = await services.core.database.read(
        lambda tx: tx.alarm_telling.due_notices(Milliseconds(2**60), of_one=9, limit=9)
    )
    assert len(waiting) == 2
    assert world.told == []
    await lost(services, share.id)
    async with trio.open_nursery() as nursery:
        await nursery.start(services.mail.deliver_forever, transport)
        await world.passes(1)
        await world.passes(1)
        nursery.cancel_scope.cancel()
    # The one that may be read is told again, because both may have been in one mail.
    assert set(world.told) == {"It is dark"}
    assert transport.texts
    assert not [text for text in transport.texts if "Bob has" in text]
    user = await services.accounts.users.find(ADA)
    assert (await services.alarms.settings.show(user.key)).problem == ""
    told = len(world.told)
    await world.passes(5)
    assert world.told[told:] == ["It is dark"]


def by_email(email: str, tx: Transaction) -> UserRecord | None:
    return tx.accounts.user_by_email(email)


async def test_a_server_that_does_not_answer_delays_no_others(world: World) -> None:
    services = world.services
    slow, crowd = trio.Event(), [f"crowd{number}@example.org" for number in range(12)]
    await services.provisioning.apply({"users": [{"email": one} for one in crowd]})
    world.ways.waits["slow.example.org"] = slow
    for number, email in enumerate(crowd):
        user = await services.core.database.read(partial(by_email, email))
        assert user is not None
        server = "slow.example.org" if number < 10 else "ntfy.example.org"
        await services.alarms.settings.put(user, Telling(ntfy=Ntfy(f"https://{server}/{number}")))
        for _ in range(5):
            await services.alarms.telling.test(user)
    await world.passes(0)
    assert len(world.ways.told) == 10
    assert world.ways.under_way == 4  # of 24 places
    slow.set()
    await world.passes(0)
    assert len(world.ways.told) == 60


async def test_a_notice_that_has_waited_for_hours_is_given_up(world: World) -> None:
    await world.wants(Telling(ntfy=NTFY))
    user = await world.services.accounts.users.find(ADA)
    await world.services.alarms.telling.test(user)
    world.clock.advance(ALARM_NOTICE_HOURS * 3_600_000)
    await world.passes(0)
    assert world.told == []
    shown = await world.services.alarms.settings.show(user.key)
    assert shown.problem == "ntfy: it has waited for 6 hours"


@pytest.mark.both_engines
async def test_a_notice_is_tried_again_and_given_up(world: World) -> None:
    await world.wants(Telling(ntfy=NTFY))
    world.ways.fails = [NotToldError("the server answered 503")]
    await world.home.rule(ringing())
    await world.home.says({"intensity": 3})
    await world.passes(0)
    user = await world.services.accounts.users.find(ADA)
    assert (await world.services.alarms.settings.show(user.key)).problem == "ntfy: the server answered 503"
    await world.passes(1)
    assert world.told == ["It is dark"]
    assert (await world.services.alarms.settings.show(user.key)).problem == ""
    world.ways.fails = [NotToldError("the server answered 403", is_final=True)]
    await world.services.alarms.telling.test(user)
    await world.passes(120)
    assert world.told == ["It is dark"]


@each_row(
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
