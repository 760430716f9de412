"""The queue of outgoing mails, over the real store, with a transport of the tests and trio's mock clock."""

import email
import email.policy
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template

import pytest
import structlog
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.clock import Clock
from broker.cluster.leases import Lease, LeaseName
from broker.errors import ValidationFailed
from broker.mail import (
    AccountInvitation,
    AddressConfirmation,
    AlarmMail,
    DeviceQuotaUsedUp,
    DeviceShareInvitation,
    DeviceTransferAnswered,
    DeviceTransferOffer,
    ExportFinished,
    Mail,
    MailDeferred,
    MailRejected,
    Mails,
    MailServerUnavailable,
    MonetizationPlanDecided,
    NoPasswordHere,
    OutgoingMail,
    PasswordReset,
    RuleMail,
    RuleStopped,
    StreamRemoved,
    SubscriptionSuspended,
    TrialInvitation,
)
from broker.mail import queue as mail_queue
from broker.mail.kinds import _TEXTS
from broker.secrets import Vault
from broker.site import Site
from config.languages import ENGLISH, LANGUAGES
from config.rates import Rate
from config.settings import Accounts, Address, Outbound, Settings
from storage.database import Database
from storage.engines.port import StoreEngine
from storage.engines.sqlite import SqliteEngine
from storage.keys import Milliseconds
from storage.records import MailRecord
from storage.sql import StoreError
from storage.transaction import Transaction
from tests.config.test_mail import NO_ADDRESSES
from tests.factories import NOW_MS
from tests.fakes import BreakableEngine, on_loop
from tests.mail_queue import mail_record, waiting_mails
from tests.rows import each_row

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
SITE = "https://gateway.example.org:8080"
LINKS = Site(Settings(state_dir=Path(), public_url=SITE))
VAULT = Vault(Vault.new_key())
HELLO = RuleMail(subject="Hello", body="It is warm.")

SAMPLES = (
    ExportFinished(export_id="e" * 32, url="https://app.example.org/done"),
    TrialInvitation(trial="Lamps", role="participant", code="c0de", expires_on=NOW_MS),
    DeviceShareInvitation(device="Kitchen light", owner="Ada", code="c0de"),
    DeviceQuotaUsedUp(device="Kitchen light", device_id="1" * 32, limit=150, reset_on=NOW_MS),
    MonetizationPlanDecided(device_type="Smart Light", version=2, decision="rejected", comments="Too dear.\nSorry."),
    SubscriptionSuspended(subscription_id="5" * 32, last_error="410 Gone", backlog=12),
    RuleStopped(rule="Warm", rule_id="6" * 32, reason="The rule triggers itself"),
    StreamRemoved(stream_id="6" * 32, last_error="no such stream"),
    HELLO,
    PasswordReset(code="c0de", expires_on=NOW_MS),
    AccountInvitation(organization="Acme", code="c0de", expires_on=NOW_MS),
    AddressConfirmation(code="c0de", expires_on=NOW_MS),
    NoPasswordHere(provider="example"),
    DeviceTransferOffer(device="Kitchen light", owner="Ada", expires_on=NOW_MS),
    DeviceTransferAnswered(device="Kitchen light", user="Bob", answer="declined"),
    AlarmMail(title="Warning: Hot", text="Kitchen light: 31 °C", address="https://gateway.example.org/a/c0de"),
)


class Transport:
    """Accepts mails, or raises what the test has put into `script` or `otherwise`."""

    done = "mail_sent"

    def __init__(self, *, otherwise: Exception | None = None) -> None:
        self.script: list[BaseException | None] = []
        self.otherwise = otherwise
        self.mails: list[OutgoingMail] = []
        self.times: list[float] = []
        self.forgotten: list[tuple[str, str]] = []
        self.delivered = trio.Event()

    async def deliver(self, mail: OutgoingMail) -> None:
        await trio.lowlevel.checkpoint()
        self.mails.append(mail)
        self.times.append(trio.current_time())
        outcome = self.script.pop(0) if self.script else self.otherwise
        if outcome is not None:
            raise outcome
        self.delivered.set()

    async def forget(self, address: str, name: str) -> None:
        self.forgotten.append((address, name))

    async def wait_delivered(self) -> None:
        with trio.fail_after(3600):
            await self.delivered.wait()

    @property
    def recipients(self) -> list[str]:
        return [mail.recipient for mail in self.mails]


class SlowTransport(Transport):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.started = trio.Event()
        self._seconds = seconds

    async def deliver(self, mail: OutgoingMail) -> None:
        self.started.set()
        await trio.sleep(self._seconds)
        await super().deliver(mail)


@dataclass
class Office:
    mails: Mails
    database: Database
    transport: Transport
    workers: trio.Nursery

    async def send(self, to: str = "ada@example.org", mail: Mail = HELLO, cause: str = "user:1") -> bool:
        return await self.mails.send(to, mail, cause=cause)

    async def waiting(self) -> list[MailRecord]:
        return await self.database.read(waiting_mails)

    async def record(self, message_id: str) -> MailRecord:
        found = await self.database.read(lambda tx: mail_record(tx, message_id))
        assert found is not None
        return found


OpenOffice = Callable[..., AbstractAsyncContextManager[Office]]


@pytest.fixture
def open_office(engine: SqliteEngine, settings: Settings) -> OpenOffice:
    """Opens the queue on the same file, as often as a test needs. The wall clock follows trio's mock clock."""

    @asynccontextmanager
    async def open_(
        transport: Transport | None = None,
        *,
        on: StoreEngine = engine,
        vault: Vault = VAULT,
        start_ms: int = NOW_MS,
        may_delete: bool = True,
    ) -> AsyncIterator[Office]:
        database = Database(on, worker=on_loop())
        await database.open()
        now_ms = lambda: Milliseconds(start_ms + round(trio.current_time() * 1000))  # noqa: E731
        clock = Clock(now_ms, may_delete=lambda: may_delete)
        mails = Mails(database, Lease(LeaseName.MAILS), vault, clock, replace_public_url(settings), LINKS)
        async with trio.open_nursery() as writer:
            await writer.start(database.commit_forever)
            async with trio.open_nursery() as workers:
                if transport is not None:
                    await workers.start(mails.deliver_forever, transport)
                yield Office(mails, database, transport or Transport(), workers)
                workers.cancel_scope.cancel()
            writer.cancel_scope.cancel()

    return open_


def replace_public_url(settings: Settings) -> Settings:
    return Settings(state_dir=settings.state_dir, public_url=SITE + "/", outbound=Outbound(mail_from=""))


def parsed(mail: OutgoingMail) -> email.message.EmailMessage:
    return email.message_from_bytes(mail.message.as_bytes(), policy=email.policy.default)


def text_of(message: email.message.EmailMessage) -> str:
    text: str = message.get_content()
    return text.replace("\r\n", "\n")


# Texts


def test_every_kind_of_mail_has_a_sample_and_a_template() -> None:
    assert {mail.kind for mail in Mail.__subclasses__()} == {sample.kind for sample in SAMPLES}
    names = {path.name for path in resources.files("broker.mail").joinpath("templates").iterdir()}
    assert names - {"de", "fr"} == {f"{sample.kind}.txt" for sample in SAMPLES}


@pytest.mark.parametrize("language", sorted(set(LANGUAGES) - {ENGLISH}))
def test_a_mail_in_another_language_has_the_same_fields(language: str) -> None:
    """But a rule's own mail has no text of this service."""
    for mail in SAMPLES:
        texts = [_TEXTS.get((spoken, mail.kind)) for spoken in (ENGLISH, language)]
        if mail.kind == "rule_mail":
            assert texts[1] is None
            continue
        english, other = (Template(str(text)).get_identifiers() for text in texts)
        assert set(other) == set(english), mail.kind
        subject, text = mail.render(LINKS, language)
        assert (subject, text) != mail.render(LINKS)
        assert "$" not in subject + text
    said = DeviceTransferAnswered(device="Lampe", user="Bob", answer="declined").render(LINKS, "de")[0]
    assert said == "Ihr Angebot eines Geräts wurde abgelehnt"


@each_row("mail", SAMPLES)
def test_a_template_shows_every_field_and_no_other(mail: Mail) -> None:
    text = resources.files("broker.mail").joinpath("templates", f"{mail.kind}.txt").read_text(encoding="utf-8")
    assert text.startswith("Subject: ")
    shown = {name if name != "code" else "link" for name in mail.__struct_fields__}
    if mail.kind != "rule_mail":
        shown.add("site")
    assert set(Template(text).get_identifiers()) == shown


@each_row("mail", SAMPLES)
def test_a_rendered_mail_is_complete(mail: Mail) -> None:
    subject, text = mail.render(LINKS)
    assert "$" not in subject + text
    assert subject
    for name in mail.__struct_fields__:
        value = getattr(mail, name)
        assert ("2025-10-09 08:53 UTC" if name.endswith("_on") else str(value)) in subject + text


def test_a_share_invitation_reads_well() -> None:
    subject, text = SAMPLES[2].render(LINKS)
    assert subject == "A device is shared with you"
    assert text == (
        "Ada wants to share a device with you.\n\nDevice: Kitchen light\n\nTo accept, open this link and sign in:\n\n"
        "https://gateway.example.org:8080/accounts/accept/share?code=c0de\n\n"
        "You will be able to read its messages and to send it messages and Actions. If you did not expect this,"
        " ignore this\nmail: nothing happens.\n\n-- \nTrunkline at https://gateway.example.org:8080\n"
    )


@pytest.mark.parametrize(
    ("mail", "path"),
    [
        (DeviceShareInvitation(device="d", owner="o", code="a&b=c/ü"), "accept/share"),
        (TrialInvitation(trial="t", role="participant", code="a&b=c/ü", expires_on=1), "accept/trial"),
        (PasswordReset(code="a&b=c/ü", expires_on=1), "reset"),
        (AccountInvitation(code="a&b=c/ü", expires_on=1), "signup"),
        (AddressConfirmation(code="a&b=c/ü", expires_on=1), "account/confirm"),
    ],
)
def test_links_lead_to_the_accounts_pages_with_the_code(mail: Mail, path: str) -> None:
    assert f"\n\n{SITE}/accounts/{path}?code=a%26b%3Dc%2F%C3%BC\n\n" in mail.render(LINKS)[1]


@pytest.mark.parametrize(
    ("public_url", "accounts_url", "bound", "link", "site"),
    [
        ("", "", {"http": 4711}, "http://127.0.0.1:4711/accounts", "http://127.0.0.1:4711"),
        ("", "", {"http": 4711, "https": 8443}, "https://127.0.0.1:8443/accounts", "https://127.0.0.1:8443"),
        (SITE, "", {"https": 8443}, f"{SITE}/accounts", SITE),
        (SITE, "https://accounts.example.org/", {"https": 8443}, "https://accounts.example.org", SITE),
    ],
)
def test_links_begin_where_the_site_is_reached(
    public_url: str, accounts_url: str, bound: dict[str, int], link: str, site: str
) -> None:
    """Configured public URLs go first; among bound addresses one with TLS is preferred."""
    own = Accounts(public_url=accounts_url)
    links = Site(Settings(state_dir=Path(), public_url=public_url, accounts=own))
    links.listens_on({scheme: Address("127.0.0.1", port) for scheme, port in bound.items()})
    text = PasswordReset(code="c0de", expires_on=1).render(links)[1]
    assert f"\n{link}/reset?code=c0de\n" in text
    assert text.endswith(f"Trunkline at {site}\n")


def test_a_line_without_a_value_is_left_out() -> None:
    assert "Your link" not in ExportFinished(export_id="e").render(LINKS)[1]
    text = MonetizationPlanDecided(device_type="t", version=1, decision="approved").render(LINKS)[1]
    assert "Version: 1\n\n-- \n" in text


def test_a_name_cannot_add_lines_and_is_not_expanded() -> None:
    name = "Light\r\n\r\nYour account is closed.\u2028\x00 $site ${code} {0} {{x}} %s"
    text = DeviceShareInvitation(device=name, owner="Ada", code="c0de").render(LINKS)[1]
    assert "\nDevice: Light Your account is closed. $site ${code} {0} {{x}} %s\n" in text
    named = SubscriptionSuspended(subscription_id="5", receiver="collector.example.org", last_error="", backlog=0)
    assert "Subscription: 5\nTo: collector.example.org\n" in named.render(LINKS)[1]
    assert "…\n" in SubscriptionSuspended(subscription_id="5", last_error="x" * 5000, backlog=0).render(LINKS)[1]


def test_a_text_keeps_its_lines_and_loses_control_characters() -> None:
    assert RuleMail(subject="s", body="one\r\n\r\ntwo\x00\rthree\tfour").render(LINKS)[1] == (
        "one\n\ntwo\ufffd\nthree   four\n"
    )


# Refused mails


async def test_a_mail_to_what_is_no_address_is_refused(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    async with open_office() as office:
        for to in NO_ADDRESSES:
            with pytest.raises(ValidationFailed) as caught:
                await office.send(to)
            findings = [(finding.field, finding.messages) for finding in caught.value.findings]
            assert findings == [("to", ("Invalid email",))], to
            assert await office.waiting() == [], to


NO_SUBJECTS = (
    "Hi\r\nBcc: eve@example.org",
    "Hi\nBcc: eve@example.org",
    "Hi\rBcc: eve@example.org",
    "Hi\r\n\r\nother text",
    "Hi\x00",
    "Hi\x0b",
    "Hi\x85Bcc: eve@example.org",
    "Hi\u2028Bcc: eve@example.org",
    "Hi\u2029",
    "Hi\ud800",
    "x" * 501,
)


async def test_a_subject_that_is_no_line_is_refused(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    async with open_office() as office:
        for subject in NO_SUBJECTS:
            with pytest.raises(ValidationFailed) as caught:
                await office.send(mail=RuleMail(subject=subject, body=""))
            assert caught.value.findings[0].field == "subject", repr(subject)
            assert await office.waiting() == [], repr(subject)


async def test_a_text_that_is_too_long_is_refused(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    async with open_office() as office:
        with pytest.raises(ValidationFailed):
            await office.send(mail=RuleMail(subject="", body="x" * 65_536))
        assert await office.send(mail=RuleMail(subject="", body="x" * 65_535))


# Delivery


async def test_a_mail_is_delivered_at_once_with_its_headers(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    transport = Transport()
    async with open_office(transport) as office:
        assert await office.send("Ada@Example.ORG", RuleMail(subject="Warm: 30 °C 🌡️", body="Zimmer: 30 °C\n\n.\nEnde"))
        await transport.wait_delivered()
    assert trio.current_time() == 0
    (mail,) = transport.mails
    message = parsed(mail)
    assert (mail.sender, mail.recipient) == ("trunkline@gateway.example.org", "Ada@example.org")
    assert message["From"] == "Trunkline <trunkline@gateway.example.org>"
    assert message["To"] == "Ada@example.org"
    assert message["Subject"] == "Warm: 30 °C 🌡️"
    assert message["Date"] == "Thu, 09 Oct 2025 08:53:20 +0000"
    assert message["Message-ID"] == f"<{mail.message_id}>"
    assert mail.message_id.endswith("@gateway.example.org")
    assert message["Auto-Submitted"] == "auto-generated"
    assert message.get_content_type() == "text/plain"
    assert message.get_content_charset() == "utf-8"
    assert text_of(message) == "Zimmer: 30 °C\n\n.\nEnde\n"
    assert mail.message.as_bytes().isascii()


async def test_an_international_address_keeps_its_local_part(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    transport = Transport()
    async with open_office(transport) as office:
        await office.send("jürgen@bücher.example")
        await transport.wait_delivered()
    (mail,) = transport.mails
    assert mail.recipient == "jürgen@xn--bcher-kva.example"
    assert "To: jürgen@xn--bcher-kva.example\r\n".encode() in mail.message.as_bytes()


@pytest.mark.parametrize("mail", SAMPLES, ids=lambda mail: mail.kind)
async def test_every_kind_of_mail_arrives(open_office: OpenOffice, autojump_clock: MockClock, mail: Mail) -> None:
    transport = Transport()
    async with open_office(transport) as office:
        await office.send(mail=mail)
        await transport.wait_delivered()
    message = parsed(transport.mails[0])
    assert (message["Subject"], text_of(message)) == mail.render(LINKS)


async def test_a_mail_is_queued_with_its_cause(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    transport = Transport()
    async with open_office(transport) as office:
        letter = office.mails.compose("ada@example.org", HELLO, cause="user:1")

        def work(tx: Transaction) -> str:
            assert office.mails.add(tx, letter)
            tx.accounts.add_organization("0a" * 16, "Acme", 1)
            return "done"

        assert await office.database.write(work) == "done"
        await transport.wait_delivered()
        assert await office.database.read(lambda tx: tx.accounts.organization_named("Acme")) is not None


async def test_a_mail_is_undone_with_its_cause(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    transport = Transport()
    async with open_office(transport) as office:
        letter = office.mails.compose("ada@example.org", HELLO, cause="user:1")

        def work(tx: Transaction) -> None:
            assert office.mails.add(tx, letter)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await office.database.write(work)
        await trio.sleep(120)  # on the mock clock: the worker read the queue twice
        assert transport.mails == []
        assert await office.waiting() == []


async def test_a_queued_mail_is_sealed(
    open_office: OpenOffice, autojump_clock: MockClock, engine: SqliteEngine
) -> None:
    async with open_office() as office:
        await office.send(mail=PasswordReset(code="0123456789abcdef", expires_on=NOW_MS))
        (waiting,) = await office.waiting()
        assert waiting.content is not None
    for path in engine.path.parent.glob("store.sqlite*"):
        assert b"0123456789abcdef" not in path.read_bytes()


async def test_the_content_of_a_finished_mail_is_erased_and_its_row_removed_after_two_days(
    open_office: OpenOffice, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail_queue, "_LOOK_SECONDS", 1800)  # nobody sets the clock
    transport = Transport()
    async with open_office(transport) as office:
        await office.send()
        await transport.wait_delivered()
        await wait_all_tasks_blocked()
        id_ = transport.mails[0].message_id
        done = await office.record(id_)
        assert (done.outcome, done.content, done.next_on) == ("sent", None, None)
        await trio.sleep(47 * 3600)
        assert (await office.record(id_)).outcome == "sent"
        await trio.sleep(2 * 3600)
        assert await office.database.read(lambda tx: mail_record(tx, id_)) is None


# Rates


@pytest.mark.both_engines
async def test_rates_of_recipients_and_causes(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    reset = PasswordReset(code="c", expires_on=1)  # 2 a minute and 10 a day to one, 5 a minute and 50 a day from one
    async with open_office() as office:
        assert [await office.send("a@x.example", reset, "1") for _ in range(3)] == [True, True, False]
        assert not await office.send("A@X.example", reset, "2")
        assert [await office.send(f"{n}@x.example", reset, "1") for n in range(4)] == [True] * 3 + [False]
        assert await office.send("a@x.example", HELLO, "1")
        of_one = ("JÖRG@exämple.org", "jörg@exämple.org", "jo\u0308rg@xn--exmple-cua.org")  # reference 5.1
        assert [await office.send(to, reset, str(n)) for n, to in enumerate(of_one, 3)] == [True, True, False]
        statistics = office.mails.statistics()
        assert (statistics.queued, statistics.refused) == (8, 4)
        await office.database.write(lambda tx: tx.leaving.forget_addressed("JÖRG@exämple.org"))
        assert not any("exmple" in mail.recipient for mail in await office.waiting()), "a user who leaves has no mails"


async def test_the_minute_is_a_sliding_one(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    reset = PasswordReset(code="c", expires_on=1)
    async with open_office() as office:
        assert await office.send(mail=reset)
        await trio.sleep(30)
        assert await office.send(mail=reset)
        await trio.sleep(29.999)
        assert not await office.send(mail=reset)
        await trio.sleep(0.001)
        assert await office.send(mail=reset)
        assert not await office.send(mail=reset)


async def test_the_day_is_the_utc_day(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    reset = PasswordReset(code="c", expires_on=1)
    midnight = (NOW_MS // DAY_MS + 1) * DAY_MS
    async with open_office(start_ms=midnight - 300_001) as office:
        for n in range(10):
            await trio.sleep(30)
            assert await office.send(mail=reset, cause=str(n))
        assert not await office.send(mail=reset)
        await trio.sleep(0.001)
        assert not await office.send(mail=reset)  # a minute still allows two only
        await trio.sleep(30)
        assert await office.send(mail=reset)


async def test_a_used_up_quota_is_mailed_once_a_day_for_each_device(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    async with open_office(start_ms=NOW_MS // DAY_MS * DAY_MS) as office:
        mail = DeviceQuotaUsedUp(device="Light", device_id="1", limit=150, reset_on=NOW_MS)
        assert await office.send(mail=mail, cause="device:1")
        await trio.sleep(23 * 3600)
        assert not await office.send(mail=mail, cause="device:1")
        assert await office.send(mail=mail, cause="device:2")
        await trio.sleep(3590)
        assert await office.send(mail=mail, cause="device:3")
        await trio.sleep(20)
        assert await office.send(mail=mail, cause="device:1")
        assert await office.send(mail=mail, cause="device:3"), "it is another day, if not another minute"


async def test_the_quotas_of_all_of_ones_devices_may_be_used_up_at_once(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    async with open_office() as office:
        mail = DeviceQuotaUsedUp(device="Light", device_id="1", limit=150, reset_on=NOW_MS)
        assert all([await office.send(mail=mail, cause=f"device:{number}") for number in range(120)])


async def test_a_rule_sends_five_a_minute_and_fifty_a_day(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    async with open_office(start_ms=NOW_MS // DAY_MS * DAY_MS) as office:
        assert [await office.send() for _ in range(6)] == [True] * 5 + [False]
        sent = 5
        for _ in range(60):
            await trio.sleep(60)
            sent += await office.send()
        assert sent == 50


async def test_a_refused_mail_leaves_its_cause_alone_and_is_logged(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    mail = DeviceQuotaUsedUp(device="Light", device_id="1", limit=150, reset_on=NOW_MS)
    async with open_office() as office:
        await office.send(mail=mail)
        letter = office.mails.compose("ada@example.org", mail, cause="user:1")

        def work(tx: Transaction) -> bool:
            tx.accounts.add_organization("0a" * 16, "Acme", 1)
            return office.mails.add(tx, letter)

        with structlog.testing.capture_logs() as logs:
            assert not await office.database.write(work)
        assert [(log["event"], log["kind"], log["cause"]) for log in logs] == [
            ("mail_refused", "device_quota_used_up", "user:1")
        ]
        assert await office.database.read(lambda tx: tx.accounts.organization_named("Acme")) is not None


@pytest.mark.both_engines
async def test_mails_beyond_the_rates_are_put_together_and_sent_later(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    transport = Transport()
    async with open_office(transport) as office:
        for number in range(30):
            assert await office.send(mail=ExportFinished(export_id=f"export{number:02}"))
        await trio.sleep(1)
        assert len(transport.mails) == 10
        assert await office.send("bob@example.org", ExportFinished(export_id="of bob"), "user:2")
        await trio.sleep(1)
        assert len(transport.mails) == 11, "nobody else waits"
        await trio.sleep(120)
        assert len(transport.mails) == 12
    last = parsed(transport.mails[-1])
    assert last["Subject"] == f"{parsed(transport.mails[0])['Subject']} (and 19 more)"
    assert last["To"] == "ada@example.org"
    assert [number for number in range(30) if f"export{number:02}" in text_of(last)] == list(range(10, 30))
    assert transport.times[-1] <= 130
    statistics = office.mails.statistics()
    assert (statistics.queued, statistics.joined, statistics.refused) == (12, 19, 0)


async def test_a_cause_sends_twenty_a_minute_and_the_others_follow(
    open_office: OpenOffice, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And 200 a day. A fifth of both here."""
    assert DeviceShareInvitation.per_cause == Rate(20, 200)
    monkeypatch.setattr(DeviceShareInvitation, "per_cause", Rate(4, 40))
    transport = Transport()
    midnight = NOW_MS // DAY_MS * DAY_MS
    async with open_office(transport, start_ms=midnight) as office:
        invitation = DeviceShareInvitation(device="Lamp", owner="Ada", code="c")
        for number in range(20):
            assert await office.send(f"{number}@x.example", invitation)
        await trio.sleep(1)
        assert len(transport.mails) == 4
        await trio.sleep(3600)
        assert transport.recipients == [f"{number}@x.example" for number in range(20)]
        minutes = [sum(start <= one < start + 60 for one in transport.times) for start in range(0, 600, 60)]
        assert max(minutes) <= 4
        sent = [await office.send(f"{number}@y.example", invitation) for number in range(80)]
        assert 20 <= sum(sent) < 80, "what cannot be sent within a day is left out"
        assert sent == sorted(sent, reverse=True)
        await trio.sleep(20 * 3600)
        assert len(transport.mails) == 40, "40 on one UTC day"
        await trio.sleep(4 * 3600)
        assert len(transport.mails) == 20 + sum(sent)


@pytest.mark.both_engines
async def test_a_mail_that_others_were_put_into_is_full_at_a_hundred(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    async with open_office() as office:
        for number in range(10 + 150):
            assert await office.send(mail=ExportFinished(export_id=f"export{number:03}"))
        assert len(await office.waiting()) == 12


async def test_the_queue_is_bounded(
    open_office: OpenOffice, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail_queue, "WAITING_MAX", 3)
    async with open_office() as office:
        assert [await office.send(f"{n}@x.example", cause=str(n)) for n in range(4)] == [True] * 3 + [False]


# Failures


async def test_a_deferred_mail_is_tried_again_for_a_day_and_then_given_up(
    open_office: OpenOffice, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail_queue, "_LOOK_SECONDS", 3600)  # nobody sets the clock
    transport = Transport(otherwise=MailDeferred("450 later"))
    with structlog.testing.capture_logs() as logs:
        async with open_office(transport) as office:
            await office.send()
            await trio.sleep(48 * 3600)
            assert await office.waiting() == []
            record = await office.record(transport.mails[0].message_id)
            assert (record.outcome, record.content, record.last_error) == ("given up", None, "450 later")
            statistics = office.mails.statistics()
            assert (statistics.deferred, statistics.given_up, statistics.sent) == (12, 1, 0)
    delays = [60, 300, 900, 1800, 3600, 7200] + 5 * [14400]
    assert transport.times == [sum(delays[:n]) for n in range(len(delays) + 1)] + [24 * 3600]
    assert len({mail.message_id for mail in transport.mails}) == 1
    assert len({mail.message.as_bytes() for mail in transport.mails}) == 1
    (given_up,) = [log for log in logs if log["event"] == "mail_given_up"]
    assert given_up["log_level"] == "error"
    assert (given_up["recipient"], given_up["attempts"]) == ("ada@example.org", 13)
    assert (given_up["kind"], given_up["reason"]) == ("rule_mail", "450 later")


async def test_a_deferred_mail_does_not_hold_up_the_others(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    transport = Transport()
    transport.script = [MailDeferred("450 greylisted")]
    async with open_office(transport) as office:
        await office.send("a@x.example")
        await office.send("b@x.example")
        await trio.sleep(61)
    assert transport.recipients == ["a@x.example", "b@x.example", "a@x.example"]
    assert transport.times == [0, 0, 60]


@pytest.mark.both_engines
async def test_a_rejected_mail_is_given_up_at_once(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    transport = Transport(otherwise=MailRejected("550 no such user"))
    async with open_office(transport) as office:
        await office.send()
        await trio.sleep(60)
        record = await office.record(transport.mails[0].message_id)
        assert (record.outcome, record.last_error) == ("given up", "550 no such user")
        assert office.mails.statistics().server_available
    assert transport.times == [0]


@pytest.mark.both_engines
async def test_while_the_server_is_away_one_mail_at_a_time_asks_for_it(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    transport = Transport()
    transport.script = [MailServerUnavailable("refused")] * 4
    with structlog.testing.capture_logs() as logs:
        async with open_office(transport) as office:
            await office.send("a@x.example")
            await office.send("b@x.example")
            await trio.sleep(20)
            assert not office.mails.statistics().server_available
            await trio.sleep(1000)
            assert await office.waiting() == []
            assert office.mails.statistics().server_available
    assert transport.recipients[:4] == ["a@x.example", "b@x.example", "a@x.example", "b@x.example"]
    assert transport.times == [0, 10, 40, 100, 220, 220]
    assert sorted(transport.recipients[4:]) == ["a@x.example", "b@x.example"]
    events = [log["event"] for log in logs]
    assert (events.count("mail_server_unavailable"), events.count("mail_server_available")) == (1, 1)


@pytest.mark.both_engines
async def test_an_outage_does_not_count_against_a_mail(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    transport = Transport()
    transport.script = [MailServerUnavailable("refused")] * 3 + [MailDeferred("450")]
    async with open_office(transport) as office:
        await office.send()
        await trio.sleep(1000)
    assert transport.times == [0, 10, 40, 100, 160]


async def test_an_outage_of_a_day_gives_up_everything_that_old(
    open_office: OpenOffice, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail_queue, "OUTAGE_SECONDS", (1800,))  # instead of 300 attempts
    transport = Transport(otherwise=MailServerUnavailable("refused"))
    async with open_office(transport) as office:
        for n in range(3):
            await office.send(f"{n}@x.example")
        await trio.sleep(12 * 3600)
        await office.send("late@x.example")
        await trio.sleep(12.1 * 3600)
        assert [mail.recipient for mail in await office.waiting()] == ["late@x.example"]
        assert office.mails.statistics().given_up == 3
        transport.otherwise = None
        await trio.sleep(1801)
        assert await office.waiting() == []


async def test_a_bug_in_an_attempt_is_logged_and_harms_nobody_else(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    transport = Transport()
    transport.script = [ZeroDivisionError()]
    with structlog.testing.capture_logs() as logs:
        async with open_office(transport) as office:
            await office.send("a@x.example")
            await office.send("b@x.example")
            await trio.sleep(61)
    assert transport.recipients == ["a@x.example", "b@x.example", "a@x.example"]
    assert [log["event"] for log in logs if log["log_level"] == "error"] == ["mail_attempt_failed"]


async def test_no_mail_is_sent_twice_while_its_outcome_cannot_be_stored(
    open_office: OpenOffice, autojump_clock: MockClock, engine: SqliteEngine
) -> None:
    breakable = BreakableEngine(engine)
    transport = SlowTransport(1)
    async with open_office(transport, on=breakable) as office:
        await office.send()
        await transport.started.wait()
        breakable.error = StoreError("disk full")
        await trio.sleep(600)
        breakable.error = None
        await trio.sleep(600)
        assert await office.waiting() == []
        assert office.mails.statistics().sent == 1
    assert len(transport.mails) == 1


async def test_the_queue_is_read_again_after_the_store_failed(
    open_office: OpenOffice, autojump_clock: MockClock, engine: SqliteEngine
) -> None:
    breakable = BreakableEngine(engine)
    async with open_office(on=breakable) as office:
        await office.send()
        breakable.error = StoreError("disk full")
        transport = Transport()
        await office.workers.start(office.mails.deliver_forever, transport)
        await trio.sleep(60)
        assert transport.mails == []
        breakable.error = None
        await trio.sleep(6)
        assert len(transport.mails) == 1


async def test_a_mail_sealed_with_another_key_is_given_up(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    async with open_office() as office:
        await office.send()
        (mail,) = await office.waiting()
    transport = Transport()
    async with open_office(transport, vault=Vault(Vault.new_key())) as office:
        await trio.sleep(1)
        assert (await office.record(mail.message_id)).outcome == "given up"
    assert transport.mails == []


# Stopping and starting


async def test_queued_mails_survive_a_restart_with_their_schedule(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    first = Transport(otherwise=MailDeferred("450"))
    async with open_office(first) as office:
        await office.send()
        await trio.sleep(100)
    assert first.times == [0, 60]
    second = Transport()
    async with open_office(second) as office:
        await second.wait_delivered()
    assert second.times == [360]
    assert second.mails[0].message_id == first.mails[0].message_id
    assert second.mails[0].message.as_bytes() == first.mails[0].message.as_bytes()


async def test_after_a_stop_of_days_a_mail_is_tried_once_more(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    async with open_office() as office:
        await office.send("a@x.example")
        await office.send("b@x.example")
    transport = Transport()
    transport.script = [MailDeferred("450")]
    async with open_office(transport, start_ms=NOW_MS + 3 * DAY_MS) as office:
        await trio.sleep(3600)
        assert await office.waiting() == []
    assert transport.recipients == ["a@x.example", "b@x.example"]


async def test_a_jump_of_the_clock_gives_no_mail_up(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    async with open_office() as office:
        await office.send("a@x.example")
    transport = Transport()
    transport.script = [MailDeferred("450"), MailServerUnavailable("away")]
    async with open_office(transport, start_ms=NOW_MS + 365 * DAY_MS, may_delete=False) as office:
        await trio.sleep(3600)
        assert await office.waiting() == []
    assert transport.recipients == ["a@x.example"] * 3


async def test_a_clock_that_is_set_back_delays_no_mail_by_more_than_a_look(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    transport = Transport(otherwise=MailDeferred("450"))
    async with open_office(transport, start_ms=NOW_MS + 365 * DAY_MS) as office:
        for _ in range(5):
            assert await office.send("a@x.example")
        assert not await office.send("a@x.example")
        await trio.sleep(30)
    transport = Transport()
    async with open_office(transport) as office:
        assert await office.send("a@x.example")  # those of the time that never was do not count
        await trio.sleep(120)
        assert await office.waiting() == []
    assert transport.recipients == ["a@x.example"] * 6


async def test_a_crash_after_the_delivery_repeats_the_mail_with_the_same_id(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    first = Transport()
    first.script = [SystemExit("the process dies")]
    with pytest.RaisesGroup(SystemExit, flatten_subgroups=True):
        async with open_office(first) as office:
            await office.send()
            await trio.sleep_forever()
    second = Transport()
    async with open_office(second):
        await second.wait_delivered()
    assert second.mails[0].message_id == first.mails[0].message_id


@pytest.mark.both_engines
async def test_a_mail_that_is_being_sent_at_the_stop_is_finished(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    transport = SlowTransport(4)
    async with open_office(transport) as office:
        await office.send()
        await transport.started.wait()
    assert trio.current_time() == 4
    async with open_office() as office:
        assert await office.waiting() == []
        assert (await office.record(transport.mails[0].message_id)).outcome == "sent"


async def test_a_mail_that_takes_longer_than_the_grace_stays_queued(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    transport = SlowTransport(1000)
    async with open_office(transport) as office:
        await office.send()
        await transport.started.wait()
    assert trio.current_time() == 5
    async with open_office() as office:
        assert len(await office.waiting()) == 1


async def test_without_a_transport_mails_stay_queued(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    async with open_office() as office:
        await office.send()
        await trio.sleep(60)
        assert len(await office.waiting()) == 1


async def test_statistics(open_office: OpenOffice, autojump_clock: MockClock) -> None:
    transport = Transport()
    transport.script = [None, MailDeferred("450"), MailRejected("550")]
    async with open_office(transport) as office:
        for n in range(3):
            await office.send(f"{n}@x.example")
        await trio.sleep(1)
        statistics = office.mails.statistics()
    assert statistics == replace(statistics, waiting=1, joined=0, queued=3, refused=0, sent=1, deferred=1, given_up=1)


@pytest.mark.both_engines
async def test_a_mail_whose_recipient_was_deleted_is_not_sent(
    open_office: OpenOffice, autojump_clock: MockClock
) -> None:
    transport = SlowTransport(10)
    async with open_office(transport) as office:
        await office.send("bob@example.org")
        await transport.started.wait()
        await office.send("ada@example.org")
        await trio.sleep(1)

        def forget(tx: Transaction) -> None:
            tx.connection.execute("DELETE FROM mail WHERE recipient = 'ada@example.org'")

        await office.database.write(forget)
        await office.mails.forget("ada@example.org", "Ada")
        assert transport.recipients == ["bob@example.org"], "the one that was being sent is waited for"
        assert transport.forgotten == [("ada@example.org", "Ada")]
        await trio.sleep(600)
        assert transport.recipients == ["bob@example.org"]
