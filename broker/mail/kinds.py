"""The kinds of mail that the daemon sends, and their texts (reference 22).

A kind is a dataclass and a file in templates/, with one for each other language in a folder of its own: the subject
line, an empty line, the text, with `$name` for each field. Values are inserted as they are; `$` in a value is not
expanded. A line whose fields are all empty is left out. Fields named `…_on` are times in milliseconds. A field `code`
is a one-time code: the template has `$link`, the address of the accounts page `path` with the code.
"""

import unicodedata
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import resources
from string import Template
from typing import ClassVar, Final, Literal, Protocol
from urllib.parse import quote

import msgspec

from config.languages import ENGLISH, LANGUAGES
from config.rates import Rate

VALUE_CHARACTERS = 2000
#: Read once at the start: an upgrade may replace the files under a running daemon.
_TEMPLATES: Final = resources.files("broker.mail") / "templates"
_TEXTS: Final = {
    (language, file.name.removesuffix(".txt")): file.read_text(encoding="utf-8")
    for language in LANGUAGES
    for file in (_TEMPLATES if language == ENGLISH else _TEMPLATES / language).iterdir()
    if file.name.endswith(".txt")
}
#: The words of fields that are `worded`. They agree with the nouns of the templates.
_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "de": {
        "accepted": "angenommen",
        "declined": "abgelehnt",
        "approved": "genehmigt",
        "rejected": "abgelehnt",
        "participant": "Teilnehmer",
        "administrator": "Verwalter",
    },
    "fr": {
        "accepted": "acceptée",
        "declined": "refusée",
        "approved": "approuvé",
        "rejected": "rejeté",
        "participant": "participant",
        "administrator": "administrateur",
    },
}
_LINE_ENDERS = frozenset({"Cc", "Cs", "Zl", "Zp"})


class LinkOrigins(Protocol):
    """The addresses that links in mails begin with (broker/site.py), without a slash at the end."""

    @property
    def origin(self) -> str: ...

    @property
    def mailed_accounts_url(self) -> str: ...


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    kind: ClassVar[str]  # the template's name; rates are counted for each kind
    path: ClassVar[str] = ""
    texts: ClassVar[frozenset[str]] = frozenset()  # the fields whose values may have several lines
    worded: ClassVar[frozenset[str]] = frozenset()  # the fields whose values are words of this service
    per_recipient: ClassVar[Rate] = Rate(10, 100)
    per_cause: ClassVar[Rate] = Rate(20, 200)
    waits: ClassVar[bool] = True  # beyond the rates the mail is sent later; otherwise it is not sent

    def render(self, links: LinkOrigins, language: str = ENGLISH) -> tuple[str, str]:
        """Subject and text, in English where there is no template in a language."""
        values = {"site": links.origin} | dict(self._values(links.mailed_accounts_url, _WORDS.get(language, {})))
        subject, lines = _template(self.kind, language)
        return Template(subject).substitute(values), "\n".join(_filled(lines, values)).rstrip() + "\n"

    def _values(self, accounts_url: str, words: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name in self.worded:
                value = words.get(value, value)
            if name == "code":
                yield "link", f"{accounts_url}/{self.path}?code={quote(value, safe='')}"
            elif name.endswith("_on"):
                yield name, f"{datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%d %H:%M} UTC"
            elif name in self.texts:
                yield name, _text(value)
            elif name == "subject":
                yield name, value  # unchanged: `Letters.compose` refuses a subject with line breaks
            else:
                yield name, _line(str(value))


class ExportFinished(Mail, frozen=True, kw_only=True):
    kind = "export_finished"
    export_id: str
    url: str = ""


class TrialInvitation(Mail, frozen=True, kw_only=True):
    kind = "trial_invitation"
    worded = frozenset({"role"})
    path = "accept/trial"
    trial: str
    role: Literal["participant", "administrator"]
    code: str
    expires_on: int


class DeviceShareInvitation(Mail, frozen=True, kw_only=True):
    kind = "device_share_invitation"
    path = "accept/share"
    device: str
    owner: str
    code: str


class DeviceTransferOffer(Mail, frozen=True, kw_only=True):
    """Offer of a device. The receiver answers in the console. The cause is the owner."""

    kind = "device_transfer_offer"
    device: str
    owner: str
    expires_on: int


class DeviceTransferAnswered(Mail, frozen=True, kw_only=True):
    """The mail to the owner who offered the device. The cause is the user who answered."""

    kind = "device_transfer_answered"
    worded = frozenset({"answer"})
    device: str
    user: str
    answer: Literal["accepted", "declined"]


class DeviceQuotaUsedUp(Mail, frozen=True, kw_only=True):
    """The cause is the device, so that each device causes at most one of these mails a day.

    `per_recipient` is high because the quotas of all devices of one owner may be used up in the same minute.
    `per_cause` allows two in a minute because the quota of one device may be used up just before and just after
    midnight.
    """

    kind = "device_quota_used_up"
    waits = False
    per_recipient = Rate(1000, 1000)
    per_cause = Rate(2, 1)
    device: str
    device_id: str
    limit: int
    reset_on: int


class MonetizationPlanDecided(Mail, frozen=True, kw_only=True):
    kind = "monetization_plan_decided"
    worded = frozenset({"decision"})
    texts = frozenset({"comments"})
    device_type: str
    version: int
    decision: Literal["approved", "rejected"]
    comments: str = ""


class SubscriptionSuspended(Mail, frozen=True, kw_only=True):
    """`receiver`: its description, or the host to which it delivers. `backlog`: notifications and messages that waited
    and are given up."""

    kind = "subscription_suspended"
    subscription_id: str
    receiver: str = ""
    last_error: str
    backlog: int


class StreamRemoved(Mail, frozen=True, kw_only=True):
    kind = "stream_removed"
    stream_id: str
    last_error: str


class RuleMail(Mail, frozen=True, kw_only=True):
    """The e-mail Action of a rule. The cause is the user: 5 per minute and 50 per day (reference 21.4)."""

    kind = "rule_mail"
    waits = False
    texts = frozenset({"body"})
    per_cause = Rate(5, 50)
    subject: str
    body: str


class AlarmMail(Mail, frozen=True, kw_only=True):
    """An alarm, or several (reference 12.13). The cause is the user. `address`: the link that acknowledges."""

    kind = "alarm"
    texts = frozenset({"text"})
    title: str
    text: str
    address: str = ""


class RuleStopped(Mail, frozen=True, kw_only=True):
    """The mail about a rule that does not run any more. The cause is the user."""

    kind = "rule_stopped"
    rule: str
    rule_id: str
    reason: str


class PasswordReset(Mail, frozen=True, kw_only=True):
    """The cause is the IP address that asked for the reset."""

    kind = "password_reset"
    waits = False
    path = "reset"
    per_recipient = Rate(2, 10)
    per_cause = Rate(5, 50)
    code: str
    expires_on: int


class NoPasswordHere(Mail, frozen=True, kw_only=True):
    """The mail to a user who signs in with an identity provider. The cause is the IP address that asked for a reset."""

    kind = "no_password_here"
    waits = False
    per_recipient = Rate(2, 10)
    per_cause = Rate(5, 50)
    provider: str


class AddressConfirmation(Mail, frozen=True, kw_only=True):
    """The cause is the user who asks."""

    kind = "address_confirmation"
    waits = False
    path = "account/confirm"
    per_recipient = Rate(2, 10)
    per_cause = Rate(2, 10)
    code: str
    expires_on: int


class AccountInvitation(Mail, frozen=True, kw_only=True):
    kind = "account_invitation"
    path = "signup"
    organization: str = ""
    code: str
    expires_on: int


def ends_a_line(text: str) -> bool:
    """The text has control characters, line or paragraph separators or surrogates, which a header must not have."""
    return any(unicodedata.category(character) in _LINE_ENDERS for character in text)


def _line(text: str) -> str:
    """A value without line breaks and shortened, so that the name of a device cannot add paragraphs to a mail."""
    words = "".join(" " if ends_a_line(character) else character for character in text[: VALUE_CHARACTERS + 1]).split()
    line = " ".join(words)
    return line if len(line) <= VALUE_CHARACTERS else line[:VALUE_CHARACTERS] + "…"


def _text(text: str) -> str:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").expandtabs()
    return "".join(
        character if character == "\n" or not ends_a_line(character) else "\ufffd" for character in lines
    ).rstrip()


def _template(kind: str, language: str) -> tuple[str, tuple[str, ...]]:
    subject, _, body = (_TEXTS.get((language, kind)) or _TEXTS[ENGLISH, kind]).partition("\n\n")
    return subject.removeprefix("Subject: "), tuple(body.splitlines())


def _filled(lines: tuple[str, ...], values: Mapping[str, str]) -> Iterator[str]:
    after_blank = True
    for line in lines:
        names = Template(line).get_identifiers()
        if (names and not any(values[name] for name in names)) or (not line and after_blank):
            continue
        after_blank = not line
        yield Template(line).substitute(values)
