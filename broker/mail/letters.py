"""Composing mails (checked, rendered, sealed), and building the message that is sent."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from typing import Final

import msgspec
from cryptography.fernet import InvalidToken
from msgspec.structs import replace

from broker.clock import Clock
from broker.errors import TEXT_ONLY, ValidationFailed, too_long
from broker.ids import new_id
from broker.mail.kinds import LinkOrigins, Mail, ends_a_line
from broker.mail.transport import MailRejected, OutgoingMail
from broker.secrets import Vault
from config.languages import ENGLISH, LANGUAGES
from config.mail import Sender, folded_address, mail_address
from config.rates import Rate
from storage.records import MailRecord

SUBJECT_CHARACTERS: Final = 500
TEXT_CHARACTERS: Final = 65_536

# Seven bits, because a server without 8BITMIME may change other bytes.
_POLICY = SMTP.clone(cte_type="7bit")
_TOGETHER_MAX: Final = 100  # mails that were put together into one
_MORE: Final = {ENGLISH: " (and {count} more)", "de": " (und {count} weitere)", "fr": " (et {count} autres)"}
_BETWEEN: Final = "\n" + "-" * 70 + "\n\n"


class _Content(msgspec.Struct, array_like=True):
    subject: str
    text: str
    mails: int = 1  # that were put together: the subject is that of the first one
    to: str = ""  # the recipient as it was written; the queue has the form in which addresses are compared
    about: tuple[str, ...] = ()  # the objects whose texts it has
    language: str = ENGLISH


_decode_content = msgspec.json.Decoder(_Content).decode


class Letter(msgspec.Struct, frozen=True):
    """A composed mail, not yet queued. `contents`: in other languages than that of the record, which is English."""

    record: MailRecord
    contents: Mapping[str, bytes]
    per_recipient: Rate
    per_cause: Rate
    waits: bool

    def in_language(self, language: str | None) -> "Letter":
        """In a language, or in English where the mail has none of its texts."""
        content = self.contents.get(language or ENGLISH)
        return self if content is None else replace(self, record=replace(self.record, content=content))


class Letters:
    def __init__(self, vault: Vault, clock: Clock, sender: Sender, links: LinkOrigins) -> None:
        self._vault = vault
        self._clock = clock
        self._sender = sender
        self._links = links

    def compose(self, to: str, mail: Mail, *, cause: str, about: tuple[str, ...] = ()) -> Letter:
        """Check, render and seal a mail.

        Args:
            to: one plain e-mail address.
            mail: the content.
            cause: who or what causes the mail (a user's id, a device's id, an IP address); rates are counted for it.
            about: the ids of the objects whose texts it has, which are looked at before it is sent.

        Raises:
            ValidationFailed: `to` is no address, the subject has line breaks, or the subject or the text is too long.
        """
        try:
            recipient = mail_address(to)
        except ValueError:
            raise ValidationFailed.of("to", "Invalid email") from None
        subject, text = mail.render(self._links)
        if ends_a_line(subject):
            raise ValidationFailed.of("subject", TEXT_ONLY)
        if len(subject) > SUBJECT_CHARACTERS:
            raise ValidationFailed.of("subject", too_long(SUBJECT_CHARACTERS))
        if len(text) > TEXT_CHARACTERS:
            raise ValidationFailed.of("body", too_long(TEXT_CHARACTERS))
        now_ms = self._clock.now_ms()
        record = MailRecord(
            message_id=f"{new_id()}@{self._sender.domain}",
            kind=mail.kind,
            recipient=folded_address(recipient),
            cause=cause,
            content=self._seal(_Content(subject, text, to=recipient, about=about)),
            created_on=now_ms,
            next_on=now_ms,
        )
        contents = {
            language: self._seal(_Content(*mail.render(self._links, language), 1, recipient, about, language))
            for language in LANGUAGES
            if language != ENGLISH
        }
        return Letter(record, contents, mail.per_recipient, mail.per_cause, mail.waits)

    def _seal(self, content: _Content) -> bytes:
        return self._vault.seal(msgspec.json.encode(content).decode())

    def joined(self, waiting: MailRecord, letter: Letter) -> bytes | None:
        """The content of a waiting mail with the letter's text behind its own; None when it is full or unreadable."""
        try:
            before = _decode_content(self._vault.open(waiting.content or b""))
            new = _decode_content(self._vault.open(letter.record.content or b""))
        except InvalidToken:
            return None
        text = before.text + _BETWEEN + new.text
        if len(text) > TEXT_CHARACTERS or before.mails >= _TOGETHER_MAX:
            return None
        return self._seal(
            _Content(before.subject, text, before.mails + 1, before.to, before.about + new.about, before.language)
        )

    def about(self, mail: MailRecord) -> tuple[str, ...]:
        """The ids that `compose` got; none when its content cannot be read."""
        try:
            return _decode_content(self._vault.open(mail.content or b"")).about
        except InvalidToken:
            return ()

    def outgoing(self, mail: MailRecord) -> OutgoingMail:
        """The message of a queued mail. Raises MailRejected when its content cannot be read."""
        try:
            content = _decode_content(self._vault.open(mail.content or b""))
        except InvalidToken:
            raise MailRejected("its content was sealed with another key") from None
        recipient = content.to or mail.recipient
        message = EmailMessage(_POLICY if recipient.isascii() else _POLICY.clone(utf8=True))  # RFC 6532
        message["From"] = self._sender.header
        local_part, _, domain = recipient.rpartition("@")
        message["To"] = Address("", local_part, domain)
        message["Subject"] = content.subject + (
            _MORE[content.language].format(count=content.mails - 1) if content.mails > 1 else ""
        )
        message["Date"] = datetime.fromtimestamp(mail.created_on / 1000, UTC)
        message["Message-ID"] = f"<{mail.message_id}>"
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834: prevents automatic replies
        message.set_content(content.text)
        return OutgoingMail(mail.message_id, mail.created_on, self._sender.address, recipient, message)
