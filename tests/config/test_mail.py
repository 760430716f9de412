"""Mail addresses and the mail server's URL."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from config.loading import SettingsError, load_settings
from config.mail import MailSecurity, Sender, SmtpServer, folded_address, mail_address
from tests.rows import each_row

NO_ADDRESSES = [
    "",
    "ada",
    "@example.org",
    "ada@",
    "ada@example.org\r\nBcc: eve@example.org",
    "ada@example.org\nBcc: eve@example.org",
    "ada\n@example.org",
    "ada@exam\rple.org",
    "ada@example.org\x00",
    "ada@example.org\u2028Bcc: eve@example.org",
    "ada\u202e@example.org",
    "ada@example.org, eve@example.org",
    "ada@example.org eve@example.org",
    " ada@example.org",
    "ada@example.org ",
    "Ada <ada@example.org>",
    "<ada@example.org>",
    '"ada b"@example.org',
    "ada@eve@example.org",
    "a..b@example.org",
    ".a@example.org",
    "ada@example..org",
    "ada@-example.org",
    "ada@[127.0.0.1]",
    "ada@example.org>",
    "a" * 65 + "@example.org",
    "ada@" + "a" * 64 + ".org",
    "ada@" + "a." * 127 + "org",
    "ada@exam_ple.org",
]


@each_row("text", NO_ADDRESSES)
def test_texts_that_are_no_address_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a mail address"):
        mail_address(text)


@each_row(
    ("text", "address"),
    [
        ("ada@example.org", "ada@example.org"),
        ("Ada.B+trunkline@Example.ORG", "Ada.B+trunkline@example.org"),
        ("root@localhost", "root@localhost"),
        ("o'hara!#$%&*/=?^_`{|}~-@example.org", "o'hara!#$%&*/=?^_`{|}~-@example.org"),
        ("jürgen@bücher.example", "jürgen@xn--bcher-kva.example"),
        ("用户@例え.jp", "用户@xn--r8jz45g.jp"),
    ],
)
def test_an_address_has_its_domain_in_ascii(text: str, address: str) -> None:
    assert mail_address(text) == address


@each_row(
    ("mail_from", "public_url", "name", "address"),
    [
        ("", "https://gateway.example.org:8080", "Trunkline", "trunkline@gateway.example.org"),
        ("", "", "Trunkline", "trunkline@localhost"),
        ("", "https://192.0.2.1:8080", "Trunkline", "trunkline@[192.0.2.1]"),
        ("", "https://[2001:db8::1]:8080/x", "Trunkline", "trunkline@[IPv6:2001:db8::1]"),
        ("", "https://[", "Trunkline", "trunkline@localhost"),
        ("", "https://under_score.example", "Trunkline", "trunkline@localhost"),
        ("noreply@example.org", "https://gateway", "", "noreply@example.org"),
        ("Gäteway <noreply@example.org>", "", "Gäteway", "noreply@example.org"),
    ],
)
def test_sender(mail_from: str, public_url: str, name: str, address: str) -> None:
    sender = Sender.of(mail_from, public_url)
    assert (sender.name, sender.address) == (name, address)
    assert sender.header.addr_spec == address


@each_row(
    "text", ["gateway", "A\r\nB <a@example.org>", "A <a@example.org> B", "<a>", "jürgen@example.org", "a@b.c\nX: y"]
)
def test_texts_that_are_no_sender_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="mail address"):
        Sender.of(text, "")


@each_row(
    ("url", "host", "port", "security"),
    [
        ("smtp://mail.example.org", "mail.example.org", 587, MailSecurity.STARTTLS),
        ("smtp://mail.example.org:25/", "mail.example.org", 25, MailSecurity.STARTTLS),
        ("SMTP://localhost:25", "localhost", 25, MailSecurity.STARTTLS_IF_OFFERED),
        ("smtp://127.0.0.2:25", "127.0.0.2", 25, MailSecurity.STARTTLS_IF_OFFERED),
        ("smtp://[::1]:25", "::1", 25, MailSecurity.STARTTLS_IF_OFFERED),
        ("smtp://192.0.2.1", "192.0.2.1", 587, MailSecurity.STARTTLS),
        ("smtp://localhost.example.org", "localhost.example.org", 587, MailSecurity.STARTTLS),
        ("smtp+starttls://localhost", "localhost", 587, MailSecurity.STARTTLS),
        ("smtps://localhost", "localhost", 465, MailSecurity.TLS),
        ("smtps://mail.example.org:2465", "mail.example.org", 2465, MailSecurity.TLS),
    ],
)
def test_smtp_url(url: str, host: str, port: int, security: MailSecurity) -> None:
    server = SmtpServer.parse(url)
    assert (server.host, server.port, server.security, server.user) == (host, port, security, "")


def test_user_and_password_are_percent_decoded_and_the_password_is_not_shown() -> None:
    server = SmtpServer.parse("smtps://ada%40example.org:p%3A%2F%23%3F%40%25@mail.example.org")
    assert (server.user, server.password) == ("ada@example.org", "p:/#?@%")
    assert "p:/" not in repr(server)


@each_row(
    "url",
    [
        "mail.example.org:25",
        "http://mail.example.org",
        "smtp://",
        "smtp://:25",
        "smtp://user:s3cret@mail:port",
        "smtp://user:s3cret#x@mail",
        "smtp://user:s3cret?x@mail",
        "smtp://user:s3cret/x@mail",
        "smtp://[user:s3cret@mail",
        "smtp://user:s3cret@mail/path",
        "smtp://user:s3cret@mail?tls=off",
        "smtp://user:s3cret%C3%A9@mail",
        "smtp://:s3cret@mail",
        "smtp://mail:70000",
    ],
)
def test_a_wrong_smtp_url_is_an_error_that_does_not_show_the_password(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(None, {"TRUNKLINE_STATE_DIR": "/tmp", "TRUNKLINE_OUTBOUND_SMTP_URL": url})  # noqa: S108
    assert str(caught.value).startswith("environment: outbound.smtp_url: ")
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_wrong_sender_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"^environment: outbound\.mail_from: not a mail address$"):
        load_settings(None, {"TRUNKLINE_STATE_DIR": "/tmp", "TRUNKLINE_OUTBOUND_MAIL_FROM": "me"})  # noqa: S108


@each_row(
    ("one", "other"),
    [
        ("JÖRG@exämple.org", "jörg@exämple.org"),
        ("jörg@exämple.org", "jörg@xn--exmple-cua.org"),
        ("JO\u0308RG@EXA\u0308MPLE.ORG", "jörg@exämple.org"),
        ("Ada@Example.ORG", "ada@example.org"),
        (" ada@example.org ", "ada@example.org"),
        ("STRASSE@example.org", "straße@example.org"),
        ("ΣΊΣΥΦΟΣ@example.org", "σίσυφος@example.org"),
        ("a@ｅｘａｍｐｌｅ.org", "a@example.org"),
        ("a@exämple。org", "a@exämple.org"),
        ("Ångström@example.org", "A\u030angstro\u0308m@example.org"),
    ],
)
def test_one_address_in_different_writings(one: str, other: str) -> None:
    assert folded_address(one) == folded_address(other)


@each_row(
    ("one", "other"),
    [
        ("ada@example.org", "ada@example.com"),
        ("a.da@example.org", "ada@example.org"),
        ("ada+x@example.org", "ada@example.org"),
        ("a@straße.example", "a@strasse.example"),  # two domains (RFC 5891)
        ("jörg@example.org", "jorg@example.org"),
        ("ada@a@example.org", "ada@example.org"),
    ],
)
def test_different_addresses(one: str, other: str) -> None:
    assert folded_address(one) != folded_address(other)


def test_a_mail_goes_to_the_domain_that_is_compared() -> None:
    assert mail_address("a@straße.example") == folded_address("a@straße.example") == "a@xn--strae-oqa.example"


@given(st.text(max_size=40))
@example("ᾳ\u0301@x")
def test_folding_twice_changes_nothing(text: str) -> None:
    assert folded_address(folded_address(text)) == folded_address(text)
