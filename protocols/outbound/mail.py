"""Mails by SMTP, or as `.eml` files where no server is configured.

smtplib blocks, so a dialogue runs in a worker thread, where it cannot be cancelled. When its caller is cancelled, the
socket of the dialogue is shut down instead.
"""

import os
import re
import smtplib
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP, default
from pathlib import Path
from typing import Final

import trio

from broker.mail import MailDeferred, MailRejected, MailServerUnavailable, MailTransport, OutgoingMail
from broker.threads import RunInThread, run_in_thread
from config.mail import MailSecurity, Sender, SmtpServer, caseless, folded_address
from config.settings import Settings
from protocols.outbound.tls import client_context

#: The time limit of each SMTP command.
STEP_SECONDS: Final = 30.0
#: The time limit of a whole dialogue: a server that sends a byte now and then stays within each step's limit.
DIALOGUE_SECONDS: Final = 300.0
# The server asks for authentication. The operator can correct that, so the mail stays in the queue.
_AUTHENTICATION = frozenset({530, 534, 535, 538})
_SIZE_EXCEEDED = 552
_SERVICE_CLOSING = 421


def mail_transport(settings: Settings) -> MailTransport:
    """The transport that the settings ask for. Raises SettingsError when `outbound.ca_file` cannot be used."""
    if not settings.outbound.smtp_url:
        return SpoolTransport(settings.state_dir / "outbox")
    server = SmtpServer.parse(settings.outbound.smtp_url)
    helo = Sender.of(settings.outbound.mail_from, settings.public_url).domain
    return SmtpTransport(server, _tls(server, settings.outbound.ca_file), helo)


def _tls(server: SmtpServer, ca_file: str) -> ssl.SSLContext:
    context = client_context(ca_file)
    if server.security is MailSecurity.STARTTLS_IF_OFFERED:
        # On loopback, where plain text is allowed, a self-signed certificate is accepted, too.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@dataclass(eq=False)
class SmtpTransport:
    """Sends each mail in an SMTP dialogue of its own."""

    _server: SmtpServer
    _context: ssl.SSLContext
    _helo: str
    _run_sync: RunInThread = run_in_thread

    done = "mail_sent"

    async def deliver(self, mail: OutgoingMail) -> None:
        dialogue = _Dialogue(self._server, self._context, self._helo, mail)
        try:
            with trio.move_on_after(DIALOGUE_SECONDS) as scope:
                await self._run_sync(dialogue.run)
        finally:
            dialogue.abort()
        if scope.cancelled_caught:
            raise MailDeferred(f"not done after {DIALOGUE_SECONDS:.0f} s")

    async def forget(self, address: str, name: str) -> None:
        """This machine keeps no copies."""


class _Smtp(smtplib.SMTP):
    """Passes itself to `note` before its constructor connects, so that connecting can be aborted, too."""

    def __init__(
        self, note: Callable[[smtplib.SMTP], None], host: str, port: int, helo: str, *, timeout: float
    ) -> None:
        note(self)
        super().__init__(host, port, local_hostname=helo, timeout=timeout)


class _SmtpOverTls(smtplib.SMTP_SSL):
    def __init__(
        self,
        note: Callable[[smtplib.SMTP], None],
        host: str,
        port: int,
        helo: str,
        *,
        timeout: float,
        context: ssl.SSLContext,
    ) -> None:
        note(self)
        super().__init__(host, port, local_hostname=helo, timeout=timeout, context=context)


@dataclass(eq=False)
class _Dialogue:
    _server: SmtpServer
    _context: ssl.SSLContext
    _helo: str
    _mail: OutgoingMail
    _smtp: smtplib.SMTP | None = field(default=None, init=False)

    def run(self) -> None:
        try:
            smtp = self._introduced()
            self._hand_over(smtp)
            with suppress(OSError):  # the server has accepted the mail, so an error of QUIT does not matter
                smtp.quit()
        finally:
            self._close()

    def abort(self) -> None:
        """Shut the socket down, so that the dialogue ends. May be called from any thread at any time."""
        connection = self._smtp.sock if self._smtp is not None else None
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _close(self) -> None:
        if self._smtp is not None:
            self._smtp.close()

    def _introduced(self) -> smtplib.SMTP:
        """Connect, start TLS and log in, as configured."""
        try:
            smtp = self._connect()
            self._introduce(smtp)
        except OSError as error:  # smtplib's errors are OSErrors
            raise MailServerUnavailable(_reason(error)) from error
        return smtp

    def _connect(self) -> smtplib.SMTP:
        server, note = self._server, self._note
        if server.security is MailSecurity.TLS:
            return _SmtpOverTls(note, server.host, server.port, self._helo, timeout=STEP_SECONDS, context=self._context)
        return _Smtp(note, server.host, server.port, self._helo, timeout=STEP_SECONDS)

    def _note(self, smtp: smtplib.SMTP) -> None:
        self._smtp = smtp

    def _introduce(self, smtp: smtplib.SMTP) -> None:
        smtp.ehlo_or_helo_if_needed()
        if self._server.security is not MailSecurity.TLS:
            if smtp.has_extn("starttls"):
                smtp.starttls(context=self._context)
            elif self._server.security is MailSecurity.STARTTLS:
                raise MailServerUnavailable("the server offers no STARTTLS, and without it nothing is sent")
        if self._server.user:
            smtp.login(self._server.user, self._server.password)

    def _hand_over(self, smtp: smtplib.SMTP) -> None:
        mail = self._mail
        try:
            # Not `send_message`: it writes ">From" for "From" at the beginning of a line.
            options = () if mail.recipient.isascii() else ("SMTPUTF8", "BODY=8BITMIME")
            smtp.sendmail(mail.sender, [mail.recipient], mail.message.as_bytes(), options)
        except smtplib.SMTPRecipientsRefused as error:
            code, text = error.recipients[mail.recipient]
            raise _verdict(code, text) from error
        except smtplib.SMTPSenderRefused as error:
            # The sender is refused, so every mail would be.
            if error.smtp_code >= 500 and error.smtp_code != _SIZE_EXCEEDED:
                raise MailServerUnavailable(_reason(error)) from error
            raise _verdict(error.smtp_code, error.smtp_error) from error
        except smtplib.SMTPResponseException as error:
            raise _verdict(error.smtp_code, error.smtp_error) from error
        except smtplib.SMTPNotSupportedError as error:
            raise MailRejected("the server takes ASCII addresses only") from error
        except OSError as error:
            raise MailDeferred(_reason(error)) from error


def _verdict(code: int, text: bytes | str) -> Exception:
    reason = _one_line(f"{code} {_decoded(text)}")
    if code in _AUTHENTICATION or code == _SERVICE_CLOSING:
        return MailServerUnavailable(reason)
    return MailRejected(reason) if 500 <= code < 600 else MailDeferred(reason)


def _reason(error: OSError) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        return _one_line(f"{error.smtp_code} {_decoded(error.smtp_error)}")
    return _one_line(f"{type(error).__name__}: {error}")


def _decoded(text: bytes | str) -> str:
    return text if isinstance(text, str) else text.decode(errors="replace")


def _one_line(text: str) -> str:
    """A text of the server as one line for the log."""
    return "".join(character if character.isprintable() else " " for character in text)[:300]


class SpoolTransport:
    """Writes each mail to an `.eml` file, where no server is configured.

    The names sort by time, and a repeated attempt replaces its file.
    """

    done = "mail_written"

    def __init__(self, directory: Path, *, run_sync: RunInThread = run_in_thread) -> None:
        self._directory = directory
        self._run_sync = run_sync

    async def deliver(self, mail: OutgoingMail) -> None:
        try:
            await self._run_sync(lambda: self._write(mail))
        except OSError as error:
            raise MailServerUnavailable(f"{self._directory}: {error.strerror or error}") from error

    async def forget(self, address: str, name: str) -> None:
        try:
            await self._run_sync(lambda: self._forget({address, folded_address(address), name}))
        except OSError as error:
            raise MailServerUnavailable(f"{self._directory}: {error.strerror or error}") from error

    def _forget(self, texts: set[str]) -> None:
        if not self._directory.is_dir():
            return
        named = re.compile("|".join(rf"(?<!\w){re.escape(text)}(?!\w)" for text in map(caseless, texts) if text))
        for path in self._directory.iterdir():
            if path.suffix in {".eml", ".new"} and named.search(_words_of(path)):
                path.unlink(missing_ok=True)

    def _write(self, mail: OutgoingMail) -> None:
        created = datetime.fromtimestamp(mail.created_on / 1000, UTC)
        name = f"{created:%Y%m%dT%H%M%S}.{mail.created_on % 1000:03d}Z-{mail.message_id.partition('@')[0]}.eml"
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._directory / f".{name}.new"
        draft.unlink(missing_ok=True)
        content = _readable(mail.message)
        # Written to another name and renamed, so that an `.eml` file is never incomplete.
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 - its mode
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._directory / name)
        folder = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _readable(message: EmailMessage) -> bytes:
    """The mail as a person reads it in the file: its text as UTF-8 and not encoded once more."""
    plain = EmailMessage(SMTP.clone(cte_type="8bit", utf8=True))
    for name, value in message.items():
        if not name.lower().startswith(("content-", "mime-")):
            plain[name] = str(value)
    plain.set_content(message.get_content(), cte="8bit")
    return plain.as_bytes()


def _words_of(path: Path) -> str:
    """Recipient, subject and text of a mail in a file, as people read them, in lower case."""
    message = message_from_bytes(path.read_bytes(), policy=default)
    body = message.get_body(("plain",))
    text = "" if body is None else str(body.get_content())
    return caseless(f"{message['to']} {message['subject']} {text}")
