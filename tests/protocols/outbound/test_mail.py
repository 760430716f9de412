"""Mails over real SMTP (aiosmtpd is the server, smtplib the client), and mails as files in a real folder."""

import email
import email.policy
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path

import pytest
import structlog
import trio
from trio.testing import MockClock

from broker.clock import Clock
from broker.mail import MailDeferred, MailRejected, MailServerUnavailable, MailTransport, OutgoingMail, RuleMail
from broker.services import Services
from config.loading import SettingsError
from config.mail import MailSecurity, SmtpServer
from config.settings import Outbound, Settings
from protocols.outbound import mail as outbound_mail
from protocols.outbound.mail import SmtpTransport, SpoolTransport, mail_transport
from storage.keys import Milliseconds
from tests.builders import ServicesOpener
from tests.factories import NOW_MS
from tests.fakes import run_inline
from tests.protocols.http.certificates import contexts
from tests.protocols.outbound.smtp_servers import Received, smtp_server

TEXT = "Zimmer: 30 °C\n.\n..zwei Punkte\n" + "sehr lange Zeile " * 100 + "\n\nFrom here on 🌡️\n"


def outgoing(recipient: str = "ada@example.org", *, text: str = TEXT, number: int = 0) -> OutgoingMail:
    message = EmailMessage(SMTP.clone(cte_type="7bit", utf8=not recipient.isascii()))
    message["From"] = "Trunkline <trunkline@gateway.example.org>"
    message["To"] = recipient
    message["Subject"] = "Warm: 30 °C"
    message["Message-ID"] = f"<{number:032x}@gateway.example.org>"
    message.set_content(text)
    id_ = f"{number:032x}@gateway.example.org"
    return OutgoingMail(id_, NOW_MS + number, "trunkline@gateway.example.org", recipient, message)


def transport_to(
    port: int, *, scheme: str = "smtp", user: str = "", ca_file: str = "", host: str = "127.0.0.1"
) -> SmtpTransport:
    url = f"{scheme}://{user}{host}:{port}"
    transport = mail_transport(
        Settings(
            state_dir=Path("/nonexistent"),
            public_url="https://gateway.example.org",
            outbound=Outbound(smtp_url=url, ca_file=ca_file),
        )
    )
    assert isinstance(transport, SmtpTransport)
    return transport


@pytest.fixture
def received() -> Received:
    return Received()


@pytest.fixture
def plain(received: Received) -> Iterator[int]:
    with smtp_server(received) as port:
        yield port


@pytest.fixture
def certified(tmp_path: Path) -> tuple[ssl.SSLContext, str]:
    """The context of a server on 127.0.0.1, and the file with which a client trusts it."""
    server, _ = contexts(tmp_path)
    return server, str(tmp_path / "cert.pem")


@pytest.fixture
def refused() -> Iterator[int]:
    """A port without a listener, reserved during the test."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


# A mail and its way


async def test_a_mail_arrives_as_it_was_written(received: Received, plain: int) -> None:
    await transport_to(plain).deliver(outgoing())
    (envelope,), (message,) = received.envelopes, received.messages
    assert (envelope.mail_from, envelope.rcpt_tos) == ("trunkline@gateway.example.org", ["ada@example.org"])
    assert message["Message-ID"] == "<00000000000000000000000000000000@gateway.example.org>"
    assert message["Subject"] == "Warm: 30 °C"
    assert message.get_content().replace("\r\n", "\n") == TEXT
    assert isinstance(envelope.original_content, bytes)
    assert envelope.original_content.isascii()
    assert max(map(len, envelope.original_content.splitlines())) <= 78
    assert received.sessions[0].host_name == "gateway.example.org"


async def test_an_international_address_needs_a_server_that_knows_them(received: Received) -> None:
    mail = outgoing("jürgen@xn--bcher-kva.example")
    with smtp_server(received) as port:
        await transport_to(port).deliver(mail)
    assert received.envelopes[0].rcpt_tos == ["jürgen@xn--bcher-kva.example"]
    assert "SMTPUTF8" in received.envelopes[0].mail_options
    assert received.messages[0]["To"] == "jürgen@xn--bcher-kva.example"
    with smtp_server(received, smtputf8=False) as port, pytest.raises(MailRejected, match="ASCII addresses only"):
        await transport_to(port).deliver(mail)


async def test_the_user_logs_in(received: Received) -> None:
    received.password = "p:/@%"
    with smtp_server(received, authenticated=True) as port:
        await transport_to(port, user="ada%40example.org:p%3A%2F%40%25@").deliver(outgoing())
    assert received.logins == [("ada@example.org", "p:/@%")]
    assert len(received.envelopes) == 1


async def test_a_wrong_password_defers_mails_and_is_not_shown(received: Received) -> None:
    received.password = "right"
    with smtp_server(received, authenticated=True) as port:
        transport = transport_to(port, user="ada:s3cret@")
        with pytest.raises(MailServerUnavailable, match=r"^535 ") as caught:
            await transport.deliver(outgoing())
    assert "s3cret" not in repr((caught.value, caught.value.__cause__))
    assert received.envelopes == []


# TLS


async def test_starttls_with_a_certificate_of_our_own_authority(
    received: Received, certified: tuple[ssl.SSLContext, str]
) -> None:
    received.password = "right"
    context, ca_file = certified
    with smtp_server(received, starttls=context, authenticated=True) as port:
        transport = transport_to(port, scheme="smtp+starttls", user="ada:right@", ca_file=ca_file)
        await transport.deliver(outgoing())
    assert received.sessions[0].ssl is not None
    assert received.logins == [("ada", "right")]


@pytest.mark.parametrize("scheme", ["smtp+starttls", "smtps"])
async def test_a_certificate_of_an_unknown_authority_is_refused(
    received: Received, certified: tuple[ssl.SSLContext, str], scheme: str
) -> None:
    context, _ = certified
    tls, starttls = (context, None) if scheme == "smtps" else (None, context)
    with smtp_server(received, tls=tls, starttls=starttls) as port:
        transport = transport_to(port, scheme=scheme, user="ada:s3cret@")
        with pytest.raises(MailServerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await transport.deliver(outgoing())
    assert received.logins == []


@pytest.mark.parametrize("scheme", ["smtp+starttls", "smtps"])
async def test_a_certificate_for_another_name_is_refused(
    received: Received, certified: tuple[ssl.SSLContext, str], scheme: str
) -> None:
    context, ca_file = certified
    tls, starttls = (context, None) if scheme == "smtps" else (None, context)
    with smtp_server(received, tls=tls, starttls=starttls) as port:
        transport = transport_to(port, scheme=scheme, ca_file=ca_file, host="localhost")
        with pytest.raises(MailServerUnavailable, match="Hostname mismatch"):
            await transport.deliver(outgoing())


async def test_smtps_is_tls_from_the_first_byte(received: Received, certified: tuple[ssl.SSLContext, str]) -> None:
    context, ca_file = certified
    with smtp_server(received, tls=context) as port:
        await transport_to(port, scheme="smtps", ca_file=ca_file).deliver(outgoing())
    assert len(received.envelopes) == 1


async def test_on_loopback_starttls_is_used_when_offered_with_any_certificate(
    received: Received, certified: tuple[ssl.SSLContext, str]
) -> None:
    with smtp_server(received, starttls=certified[0]) as port:
        await transport_to(port).deliver(outgoing())
    assert received.sessions[0].ssl is not None


async def test_without_starttls_no_mail_is_sent_to_a_remote_server(received: Received) -> None:
    with smtp_server(received, authenticated=True) as port:
        elsewhere = SmtpServer("127.0.0.1", port, MailSecurity.STARTTLS, "ada", "s3cret")
        transport = SmtpTransport(elsewhere, ssl.create_default_context(), "x")
        with pytest.raises(MailServerUnavailable, match="no STARTTLS"):
            await transport.deliver(outgoing())
    assert received.logins == []


def test_a_ca_file_that_cannot_be_used_is_an_error_of_the_settings(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for path in (tmp_path / "none.pem", empty):
        with pytest.raises(SettingsError, match=r"^outbound\.ca_file: cannot use "):
            transport_to(25, ca_file=str(path))


# Answers of a server


@pytest.mark.parametrize(
    ("step", "reply", "error"),
    [
        ("sender", "451 try later", MailDeferred),
        ("sender", "552 too large", MailRejected),
        ("sender", "553 not your address", MailServerUnavailable),
        ("sender", "530 log in first", MailServerUnavailable),
        ("recipient", "450 greylisted", MailDeferred),
        ("recipient", "452 too many recipients", MailDeferred),
        ("recipient", "550 no such user", MailRejected),
        ("recipient", "554 relay access denied", MailRejected),
        ("recipient", "530 log in first", MailServerUnavailable),
        ("recipient", "421 closing", MailServerUnavailable),
        ("data", "451 try later", MailDeferred),
        ("data", "452 disk full", MailDeferred),
        ("data", "550 looks like spam", MailRejected),
        ("data", "554 failed", MailRejected),
    ],
)
async def test_answers(received: Received, plain: int, step: str, reply: str, error: type[Exception]) -> None:
    getattr(received, f"{step}_replies").append(reply)
    with pytest.raises(error, match=f"^{reply}$"):
        await transport_to(plain).deliver(outgoing())
    assert received.envelopes == []
    await transport_to(plain).deliver(outgoing())
    assert len(received.envelopes) == 1


async def test_a_refused_connection(refused: int) -> None:
    with pytest.raises(MailServerUnavailable, match="ConnectionRefusedError"):
        await transport_to(refused).deliver(outgoing())


async def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound_mail, "STEP_SECONDS", 0.05)
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.raises(MailServerUnavailable, match="timed out"):
        await transport_to(silent.getsockname()[1]).deliver(outgoing())


async def test_a_server_that_does_not_speak_smtp() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_say, listener, b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with pytest.raises(MailServerUnavailable):
                await transport_to(listener.getsockname()[1]).deliver(outgoing())


async def _say(listener: socket.socket, what: bytes) -> None:
    peer, _ = await trio.to_thread.run_sync(listener.accept)
    with peer:
        peer.sendall(what)


async def test_a_dialogue_that_takes_too_long_is_ended(received: Received, plain: int, mock_clock: MockClock) -> None:
    received.hold = True

    async def deliver() -> None:
        with pytest.raises(MailDeferred, match="not done after 300 s"):
            await transport_to(plain).deliver(outgoing())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver)
        await trio.to_thread.run_sync(received.asked.wait, 10)
        mock_clock.jump(300)
    await trio.to_thread.run_sync(received.lost.wait, 10)
    assert received.lost.is_set()


async def test_a_cancelled_dialogue_is_ended_at_once(received: Received, plain: int) -> None:
    received.hold = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport_to(plain).deliver, outgoing())
        await trio.to_thread.run_sync(received.asked.wait, 10)
        nursery.cancel_scope.cancel()
    await trio.to_thread.run_sync(received.lost.wait, 10)
    assert received.lost.is_set()


# The queue in front of it


def opened(opener: ServicesOpener, transport: MailTransport) -> AbstractAsyncContextManager[Services]:
    """Services whose wall clock follows the mock clock of trio."""
    return opener(
        clock=Clock(lambda: Milliseconds(NOW_MS + round(trio.current_time() * 1000))), mail_transport=transport
    )


async def test_a_deferred_mail_is_sent_again_and_arrives_once(
    received: Received, plain: int, opener: ServicesOpener, autojump_clock: MockClock
) -> None:
    received.recipient_replies = ["450 greylisted"]
    received.data_replies = ["451 busy"]
    server = SmtpServer.parse(f"smtp://127.0.0.1:{plain}")
    transport = SmtpTransport(server, ssl.create_default_context(), "x", run_inline)
    async with opened(opener, transport) as services:
        await services.mail.send("ada@example.org", RuleMail(subject="Hi", body="Ho"), cause="user:1")
        await trio.sleep(59)
        assert received.envelopes == []
        await trio.sleep(300)
        assert received.envelopes == []
        await trio.sleep(2)
        assert [message["Subject"] for message in received.messages] == ["Hi"]
        statistics = services.mail.statistics()
        assert (statistics.deferred, statistics.sent, statistics.waiting) == (2, 1, 0)


async def test_a_server_that_refuses_connections_is_asked_with_growing_pauses(
    received: Received, refused: int, opener: ServicesOpener, autojump_clock: MockClock
) -> None:
    times: list[float] = []

    async def run(sync_fn, /, *, limiter=None):  # type: ignore[no-untyped-def]
        times.append(trio.current_time())
        return await run_inline(sync_fn, limiter=limiter)

    server = SmtpServer("127.0.0.1", refused, MailSecurity.STARTTLS_IF_OFFERED, "ada", "s3cret")
    transport = SmtpTransport(server, ssl.create_default_context(), "x", run)
    with structlog.testing.capture_logs() as logs:
        async with opened(opener, transport) as services:
            await services.mail.send("ada@example.org", RuleMail(subject="Hi", body="Ho"), cause="user:1")
            await trio.sleep(1000)
            assert not services.mail.statistics().server_available
            assert services.mail.statistics().waiting == 1
    assert times == [0, 10, 40, 100, 220, 520, 820]
    (log,) = [log for log in logs if log["event"] == "mail_server_unavailable"]
    assert "ConnectionRefusedError" in log["reason"]
    assert "s3cret" not in str(logs)


# The spool


async def test_without_a_server_mails_become_files(opener: ServicesOpener, settings: Settings) -> None:
    transport = mail_transport(settings)
    assert isinstance(transport, SpoolTransport)
    outbox = settings.state_dir / "outbox"
    async with opened(opener, transport) as services:
        await _send_and_wait(services, "ada@example.org")
        await _send_and_wait(services, "jürgen@bücher.example")
    messages = [
        email.message_from_bytes(path.read_bytes(), policy=email.policy.default) for path in sorted(outbox.iterdir())
    ]
    assert [message["To"] for message in messages] == ["ada@example.org", "jürgen@xn--bcher-kva.example"]
    assert messages[0]["Subject"] == "Grüße"
    assert messages[0].get_content() == "30 °C\r\n"


async def _send_and_wait(services: Services, to: str) -> None:
    sent = services.mail.statistics().sent
    await services.mail.send(to, RuleMail(subject="Grüße", body="30 °C"), cause="user:1")
    with trio.fail_after(10):
        while services.mail.statistics().sent == sent:
            await services.core.database.write(lambda _tx: None)


async def test_spooled_files_are_private_whole_and_in_order(tmp_path: Path) -> None:
    outbox = tmp_path / "a" / "outbox"
    transport = SpoolTransport(outbox)
    previous = os.umask(0)
    try:
        for number in (2, 0, 1):
            await transport.deliver(outgoing(number=number))
    finally:
        os.umask(previous)
    paths = sorted(outbox.iterdir())
    assert [path.name for path in paths] == [f"20251009T085320.{number:03d}Z-{number:032x}.eml" for number in (0, 1, 2)]
    assert stat.S_IMODE(outbox.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    read = email.message_from_bytes(paths[0].read_bytes(), policy=email.policy.default)
    assert read.get_content().splitlines() == outgoing().message.get_content().splitlines()


async def test_a_spooled_mail_can_be_read_without_a_mail_program(tmp_path: Path) -> None:
    await SpoolTransport(tmp_path).deliver(outgoing("jörg@example.org", text="Grüße: 30 °C\n"))
    (name,) = names_in(tmp_path)
    text = await trio.Path(tmp_path / name).read_text(encoding="utf-8")
    assert "\nTo: jörg@example.org\n" in text
    assert text.endswith("\n\nGrüße: 30 °C\n")


async def test_a_repeated_mail_replaces_its_file_and_a_draft_of_a_crash(tmp_path: Path) -> None:
    transport = SpoolTransport(tmp_path)
    await transport.deliver(outgoing())
    (name,) = names_in(tmp_path)
    (tmp_path / f".{name}.new").write_bytes(b"half a ma")
    await transport.deliver(outgoing())
    assert names_in(tmp_path) == [name]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_mails_wait_while_the_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "outbox").touch()
    with pytest.raises(MailServerUnavailable, match="outbox: File exists"):
        await SpoolTransport(tmp_path / "outbox").deliver(outgoing())


async def test_mails_to_a_person_who_is_gone_and_about_the_person_are_removed(tmp_path: Path) -> None:
    transport = SpoolTransport(tmp_path / "outbox")
    await transport.forget("ada@example.org", "Zoë Quill")  # before there is any
    given = (
        ("ada@example.org", "Hello"),
        ("bob@example.org", "Zoë Quill shares a light with you"),
        ("bob@example.org", "Write to ada@example.org"),
        ("bob@example.org", "Quill pens, from Zoë Quillfeather"),
        ("aada@example.org", "Hello"),
    )
    for number, (recipient, text) in enumerate(given):
        await transport.deliver(outgoing(recipient, text=text, number=number))
    before = names_in(tmp_path / "outbox")
    await transport.forget("ADA@example.org", "Zoë Quill")
    assert names_in(tmp_path / "outbox") == before[3:]
