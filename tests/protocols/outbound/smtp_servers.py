"""A real SMTP server, aiosmtpd's, in a thread of its own and on a free port."""

import asyncio
import email
import email.policy
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session


class Received:
    """The mails that the server got, and the answers that it gives."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.sessions: list[Session] = []
        self.sender_replies: list[str] = []
        self.recipient_replies: list[str] = []
        self.data_replies: list[str] = []
        self.logins: list[tuple[str, str]] = []
        self.password = ""
        #: While set, DATA is not answered; `asked` says that the client waits for that.
        self.hold = False
        self.asked = threading.Event()
        self.lost = threading.Event()

    @property
    def messages(self) -> list[EmailMessage]:
        return [
            email.message_from_bytes(envelope.original_content or b"", policy=email.policy.default)
            for envelope in self.envelopes
        ]

    async def handle_MAIL(  # noqa: N802 - aiosmtpd's name
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.sender_replies:
            return self.sender_replies.pop(0)
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    async def handle_RCPT(  # noqa: N802
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if self.recipient_replies:
            return self.recipient_replies.pop(0)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        if self.hold:
            self.asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.lost.set()
        if self.data_replies and (reply := self.data_replies.pop(0)) != "250 OK":
            return reply
        self.envelopes.append(envelope)
        self.sessions.append(session)
        return "250 OK"

    def authenticate(self, _server: SMTP, _session: Session, _envelope: Envelope, _how: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password.decode() == self.password, handled=False)


@contextmanager
def smtp_server(
    received: Received,
    *,
    tls: ssl.SSLContext | None = None,
    starttls: ssl.SSLContext | None = None,
    authenticated: bool = False,
    smtputf8: bool = True,
    port: int = 0,
) -> Iterator[int]:
    """Serve on 127.0.0.1 for as long as the block lasts; yields the port. `port`: 0 for any free one."""
    loop = asyncio.new_event_loop()

    def factory() -> SMTP:
        return SMTP(
            received,
            hostname="mail.test",
            loop=loop,
            tls_context=starttls,
            enable_SMTPUTF8=smtputf8,
            authenticator=received.authenticate if authenticated else None,
            auth_require_tls=starttls is not None,
        )

    server = loop.run_until_complete(loop.create_server(factory, "127.0.0.1", port, ssl=tls))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # lets the transports close
